//! Marks in the form that `tc ... action ctinfo dscp 63 128` reads, and the shapers that use it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::mark::{HOSTS, mark_at, start};
use crate::traffic::{ask, ask_udp, every_label};

/// Programs of the scripts.
const TOOLS: [&str; 2] = ["tc", "conntrack"];

/// A flow with a label, whose connection has this mark from then on.
fn labelled(lab: &Lab, live: &Live, mark: u32) -> [std::net::UdpSocket; 2] {
    let sockets = ask_udp(lab, HOSTS, Lab::server(false), 12);
    // The socket is bound to no address; conntrack knows it by that of its host.
    let port = sockets[0].local_addr().unwrap().port();
    let client = format!("10.77.1.2:{port}").parse().unwrap();
    live.wait_for("the connection has its mark", |_| {
        mark_at(lab, client) == mark
    });
    sockets
}

/// The mark holds the DSCP in its six low bits and the bit that says so, and the bits of others stay; of DSCP 0, too.
#[test]
fn a_mark_holds_the_dscp_of_the_label() {
    let Some(lab) = Lab::routed("ctinfo", true, &TOOLS) else {
        return;
    };
    for (name, code_point) in [("EF", 46), ("CS1", 8), ("CS0", 0)] {
        let dscp = every_label("tag.dscp", &format!("\"{name}\""));
        let args = [&common::SIMULATED[..], &["--set", "mark.as=dscp"]].concat();
        let live = start(&lab, "in", &dscp, &args);
        let mark = FOREIGN | 128 | code_point;
        assert_eq!(
            (mark & 63, mark & 128, mark & !0xbf),
            (code_point, 128, FOREIGN)
        );
        drop(labelled(&lab, &live, mark));
        live.terminate(0);
    }
}

/// Puts a `tc` of its own before the real one, which does what the kernel cannot without its part: a kernel that lacks
/// act_ctinfo, sch_cake or sch_hfsc refuses the line with exit code 2, while a line that tc itself cannot read has another code. All
/// lines are written to `log`.
fn stand_in(dir: &Path) {
    let script = format!(
        r#"#!/bin/sh
real=$(PATH=/usr/sbin:/sbin:/usr/bin:/bin command -v tc)
echo "$*" >> {log}
case " $* " in
*" ctinfo "* | *" cake "* | *" hfsc "*) ;;
*) exec "$real" "$@" ;;
esac
said=$("$real" "$@" 2>&1) && exit 0
code=$?
if [ $code -ne 2 ]; then
    echo "$said" >&2
    exit $code
fi
exec "$real" $(echo "$*" | sed -e 's/ action ctinfo dscp 63 128//' -e 's/ cake .*/ pfifo/' \
    -e 's/ hfsc default/ htb default/' -e 's/ hfsc .*/ htb rate 1mbit ceil 50mbit quantum 1514/')
"#,
        log = dir.join("log").display()
    );
    let file = dir.join("tc");
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a shipped script for the uplink, which must say nothing.
fn shape(lab: &Lab, dir: &Path, script: &str, rates: &str) {
    let script = common::root().join("examples/mark").join(script);
    let line = format!(
        "PATH={}:$PATH {} out {rates} 2>&1",
        dir.display(),
        script.display()
    );
    assert_eq!(lab.run("router", &line), "", "{line}");
}

/// Bytes that a class has let through.
fn shaped(lab: &Lab, device: &str, class: &str) -> usize {
    let classes = lab.run("router", &format!("tc -s class show dev {device}"));
    let found = ["hfsc", "htb"].map(|kind| classes.split_once(&format!("class {kind} {class} ")));
    let (_, class) = found.into_iter().flatten().next().unwrap();
    let (_, bytes) = class.split_once("Sent ").unwrap();
    bytes.split(' ').next().unwrap().parse().unwrap()
}

/// What act_ctinfo does, for a kernel that lacks it.
const COPIED: &str = "table inet copied {
chain c {
    type filter hook postrouting priority mangle; policy accept;
    ct mark & 0xbf == 0x92 ip dscp set af21
    ct mark & 0xbf == 0x88 ip dscp set cs1
}
}";

#[test]
fn the_lines_for_hfsc_sort_packets_by_the_dscp_of_their_label() {
    let Some(lab) = Lab::routed("hfsc", true, &TOOLS) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    stand_in(dir.path());
    shape(&lab, dir.path(), "tc-hfsc.sh", "50000 80000");
    // Again, over what is there.
    shape(&lab, dir.path(), "tc-hfsc.sh", "50000 80000");
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(
        log.matches(" action ctinfo dscp 63 128").count(),
        4,
        "{log}"
    );
    lab.nft("router", COPIED);

    for (name, code_point, class) in [("AF21", 18, "1:10"), ("CS1", 8, "1:30")] {
        let dscp = every_label("tag.dscp", &format!("\"{name}\""));
        let args = [&common::SIMULATED[..], &["--set", "mark.as=dscp"]].concat();
        let live = start(&lab, "in", &dscp, &args);
        let sockets = labelled(&lab, &live, FOREIGN | 128 | code_point);
        let before = [class, "1:40"].map(|class| shaped(&lab, "out", class));
        let answers = shaped(&lab, "ifb-out", "1:40");
        ask(&sockets, 20);
        let after = [class, "1:40"].map(|class| shaped(&lab, "out", class));
        // Twenty packets of 20 to 39 bytes, each with 42 bytes of headers.
        assert!(
            after[0] >= before[0] + 20 * 62,
            "{name}: {before:?} {after:?}"
        );
        assert!(
            after[1] < before[1] + 20 * 62,
            "{name}: {before:?} {after:?}"
        );
        // What arrives goes through the ifb.
        assert!(shaped(&lab, "ifb-out", "1:40") + shaped(&lab, "ifb-out", class) > answers);
        live.terminate(0);
    }
    shape(&lab, dir.path(), "tc-hfsc.sh", "off");
    assert!(!lab.run("router", "tc qdisc show dev out").contains(" 1: "));
    assert!(!lab.run("router", "ip -br link").contains("ifb-out"));
}

#[test]
fn the_lines_for_cake_are_those_that_tc_reads() {
    let Some(lab) = Lab::routed("cake", true, &TOOLS) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    stand_in(dir.path());
    shape(&lab, dir.path(), "tc-cake.sh", "50000 80000");
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    for line in [
        "filter add dev out egress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128",
        "qdisc add dev out root cake bandwidth 50000kbit diffserv4 nat",
        "filter add dev out ingress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp 63 128 \
         action mirred egress redirect dev ifb-out",
        "qdisc add dev ifb-out root cake bandwidth 80000kbit diffserv4 nat ingress",
    ] {
        assert_eq!(
            log.lines().filter(|it| *it == line).count(),
            1,
            "{line}: {log}"
        );
    }
    // Traffic passes, both ways.
    ask_udp(&lab, HOSTS, Lab::server(false), 5);
    shape(&lab, dir.path(), "tc-cake.sh", "off");
    assert!(!lab.run("router", "ip -br link").contains("ifb-out"));

    // A line that tc does not know is an error of the stand-in, too.
    let wrong = "tc filter add dev out egress protocol all prio 10 u32 match u32 0 0 action ctinfo dscp x 128";
    let line = format!(
        "PATH={}:$PATH; tc qdisc add dev out clsact; if {wrong} 2>/dev/null; then echo read; fi",
        dir.path().display()
    );
    assert_eq!(lab.run("router", &line), "");
}
