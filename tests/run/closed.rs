//! Rules that count for some profiles, hosts and hours only, and marks that others take away.

use std::fs;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::run::capture::{listen, seen};
use crate::run::inline::{self, RIGHT};
use crate::run::mark;
use crate::run::traffic::{ask, ask_udp};

/// AF41, AF42 and EF, which every label has.
const AF41: u8 = 34;
const AF42: u8 = 36;
const EF: u8 = 46;

const RULES: &str = r#"
[[rule]]
name = "never"
when = "mon 00:00-00:01"
priority = 9
destination = "192.0.2.0/24"
dscp = "AF41"

[[rule]]
name = "at work"
profile = "work"
dscp = "AF41"

[[rule]]
name = "hers"
host = "laptop"
dscp = "AF42"
"#;

/// A flow that goes on has the rules of a profile while it is on, which a reload does not switch,
/// and the rule of its host once that has a name.
#[test]
fn profiles_and_hosts_choose_the_rule() {
    let Some(lab) = Lab::bridged("closed", &["tcpdump", "tshark"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [file, capture] = ["rules.toml", "capture"].map(|name| dir.path().join(name));
    fs::write(&file, RULES).unwrap();
    let leases = dir.path().join("dnsmasq.leases");
    fs::write(&leases, "").unwrap();
    let sets = [
        format!("policy.rules={}", file.display()),
        format!("names.leases=[\"{}\"]", leases.display()),
    ];
    let live = inline::start(&lab, &["--set", &sets[0], "--set", &sets[1]]);
    let right = listen(&lab, &live, &capture);

    let going_on = ask_udp(&lab, ["left", "right"], RIGHT[0], 20);
    let profile = |name: &str, switch: &str, code| {
        live.ctl(&["policy", "profile", name, switch]).expect_code(code)
    };
    let said = profile("work", "on", 0).stdout;
    assert!(said.contains("profile work is on; it has 1 rule"), "{said}");
    ask(&going_on, 5);
    live.ctl(&["reload"]).expect_code(0);
    ask(&going_on, 5);
    let shown = live.ctl(&["policy", "show"]).expect_code(0).stdout;
    assert!(shown.contains("; profile work is on"), "{shown}");
    assert!(shown.contains("[outside its hours (mon 00:00-00:01)]"), "{shown}");
    let flow = format!("udp {} > {}", addr(&going_on[0]), addr(&going_on[1]));
    let explained = live.ctl(&["explain", &flow]).expect_code(0).stdout;
    assert!(explained.contains("profile = \"work\""), "{explained}");
    profile("work", "off", 0);
    ask(&going_on, 5);
    let explained = live.ctl(&["explain", &flow]).expect_code(0).stdout;
    assert!(explained.contains("not 2, "), "{explained}");
    assert!(explained.contains(": profile work is off"), "{explained}");
    assert!(!explained.contains("(never)"), "its box does not have the flow: {explained}");
    let nobody = "[no host is called laptop]";
    let shows = |live: &Live| live.ctl(&["policy", "show"]).expect_code(0).stdout;
    assert!(shows(&live).contains(nobody), "{}", shows(&live));
    fs::write(&leases, "9999999999 02:00:5e:00:00:01 10.78.0.1 laptop *\n").unwrap();
    live.wait_for("the host has its name", |live| !shows(live).contains(nobody));
    ask(&going_on, 5);
    assert_eq!(live.said("no host is called laptop now"), 1);
    let refused = profile("wrok", "on", 65).stderr;
    assert!(refused.contains("no rule has the profile \"wrok\"; there are work"), "{refused}");
    right.finish(&live);

    let dscps: Vec<u8> =
        seen(&capture).into_iter().filter(|it| it.flow.is_some()).map(|it| it.dscp).collect();
    // A label has its own DSCP; which of the first packets is the first with it depends on time.
    assert_eq!(dscps[20..], [[AF41; 10].as_slice(), &[EF; 5], &[AF42; 5]].concat());
    live.terminate(0);
}

fn addr(socket: &std::net::UdpSocket) -> String {
    socket.local_addr().unwrap().to_string()
}

/// Another program takes fenxi's mark away: `explain` reads the connection again and says so.
#[test]
fn a_mark_that_did_not_stick_is_explained() {
    let Some(lab) = Lab::routed("stuck", false, &[]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    fs::write(&file, "[[rule]]\nprotocol = \"udp\"\nmark = 0x42000000\n").unwrap();
    let rules = format!("policy.rules={}", file.display());
    let class = crate::run::traffic::every_label("mark.class", "0x41000000");
    let live = mark::start(&lab, "in", &class, &["--set", &rules]);
    let [near, far] = ask_udp(&lab, mark::HOSTS, Lab::server(false), 20);
    let client = near.local_addr().unwrap();
    let marked = |live: &Live, bits: u32| {
        let is_marked = |_: &Live| mark::mark_at(&lab, client) & 0xff00_0000 == bits;
        live.wait_for("the connection has the mark", is_marked);
    };
    marked(&live, 0x4200_0000);
    let flow = format!("udp {client} > {}", far.local_addr().unwrap());
    let explain = || live.ctl(&["explain", &flow]).expect_code(0).stdout;
    let said = explain();
    assert!(said.contains("connection now mark 0x42"), "{said}");
    assert!(said.contains(": the bits are as fenxi wrote them"), "{said}");

    lab.nft(
        "router",
        "add table inet thief; add chain inet thief f { type filter hook forward \
        priority 0; }; add rule inet thief f udp dport != 0 ct mark set 0x7",
    );
    let sockets = [near, far];
    ask(&sockets, 2);
    let said = explain();
    assert!(said.contains("connection now mark 0x7: fenxi wrote 0x42000000/0xff000000"), "{said}");
    assert!(said.contains("another program has cleared these bits"), "{said}");

    lab.run("router", "nft delete table inet thief");
    lab.run("router", "conntrack -D -p udp");
    let said = explain();
    assert!(said.contains("connection now: there is none"), "{said}");
    live.terminate(0);
}
