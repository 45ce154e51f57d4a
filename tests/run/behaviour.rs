//! Behaviours of flows from real sockets, through to marks, rules and records, with all packets
//! sent up and with the first only.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::mark::{HOSTS, mark_at, start};
use crate::run::traffic::{ask_udp, connect, talk};

/// Bytes of a download.
const DOWNLOAD: usize = 2_000_000;

const BULK: u32 = 0x0010_0000;
const INTERACTIVE: u32 = 0x0020_0000;
const REALTIME: u32 = 0x0030_0000;
const IDLE: u32 = 0x0040_0000;
const MARKS: &str = "mark.behaviour={ bulk = 0x100000, interactive = 0x200000, \
                     realtime = 0x300000, idle = 0x400000 }";

/// A question and an answer of 172 bytes each, then a pause of 20 ms.
fn speak([near, far]: &[UdpSocket; 2]) {
    near.send(&[1; 172]).unwrap();
    let (_, from) = common::uninterrupted(|| far.recv_from(&mut [0; 1500])).unwrap();
    far.send_to(&[2; 172], from).unwrap();
    common::uninterrupted(|| near.recv(&mut [0; 1500])).unwrap();
    std::thread::sleep(Duration::from_millis(20));
}

/// The behaviour that records name last, by the client's port.
fn recorded(path: &Path, port: u16) -> String {
    let records = common::json_lines(path);
    let mut of_flow = records
        .iter()
        .rev()
        .filter(|record| record["type"] == "flow" && record["src_port"] == port);
    of_flow.next().unwrap()["behaviour"].as_str().unwrap_or("none").to_owned()
}

#[test]
fn a_call_a_session_and_a_download_have_their_marks() {
    for capture in ["all", "first"] {
        let Some(lab) = Lab::routed(&format!("behaves-{capture}"), false, &["conntrack"]) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("records");
        let capture = format!("io.capture={capture}");
        let own = ["--set", &capture, "--set", "behaviour.idle_s=3", "--flows"];
        let args = [&own[..], &[records.to_str().unwrap()], &common::SIMULATED].concat();
        let live = start(&lab, "in", MARKS, &args);
        let server = Lab::server(false);
        // Nothing of a label's bits, which the simulated device gives at random.
        let behaviour = |near| mark_at(&lab, near) & !0xff00_0000;

        let [mut near, mut far] = connect(&lab, HOSTS, server);
        let download = near.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_all(&[1; DOWNLOAD]).unwrap());
            far.read_exact(&mut vec![0; DOWNLOAD]).unwrap();
        });
        live.wait_for("the download is bulk", |_| behaviour(download) == FOREIGN | BULK);

        let call = ask_udp(&lab, HOSTS, server, 1);
        let session = connect(&lab, HOSTS, server);
        let [caller, typing] = [call[0].local_addr().unwrap(), session[0].local_addr().unwrap()];
        let ends: [&TcpStream; 2] = session.each_ref();
        for round in 0..350 {
            speak(&call);
            if round % 25 == 0 {
                talk(ends, 1);
            }
        }
        live.wait_for("the call is realtime", |_| behaviour(caller) == FOREIGN | REALTIME);
        live.wait_for("the session is interactive", |_| behaviour(typing) == FOREIGN | INTERACTIVE);
        live.wait_for("both fall silent", |_| {
            behaviour(caller) == FOREIGN | IDLE && behaviour(typing) == FOREIGN | IDLE
        });
        talk(ends, 1);
        live.wait_for("the session goes on", |_| behaviour(typing) == FOREIGN | INTERACTIVE);
        check_figures(&live);
        drop((session, near, far));
        live.terminate(0);
        for (end, expected) in [(download, "bulk"), (caller, "realtime"), (typing, "interactive")] {
            assert_eq!(recorded(&records, end.port()), expected);
        }
    }
}

fn check_figures(live: &Live) {
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    let sum = |name: &str, of: &str| -> f64 {
        let of = format!("behaviour=\"{of}\"");
        live.samples_with(name, &of).iter().sum()
    };
    let flows = |of| sum("fenxi_behaviour_flows_total", of);
    assert_eq!([flows("bulk"), flows("realtime")], [1.0, 1.0]);
    assert_eq!(flows("interactive"), 2.0, "before it was silent, and behind");
    assert!(sum("fenxi_behaviour_bytes_total", "bulk") > 1_800_000.0);
    let shown = live.ctl(&["flows"]).expect_code(0).stdout;
    assert!(shown.contains("idle") && shown.contains("interactive"), "{shown}");
}

/// With all packets and with the first: the bound is crossed within a stream that then stands
/// still, so that nothing but the packet which crosses it can tell.
#[test]
fn a_rule_for_bulk_acts_though_nothing_follows() {
    for capture in ["all", "first"] {
        let Some(lab) = Lab::routed(&format!("bulk-{capture}"), false, &["conntrack"]) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.toml");
        std::fs::write(
            &rules,
            "[[rule]]\nname = \"big\"\nbehaviour = \"bulk\"\nmark = 0x20000000\n",
        )
        .unwrap();
        let capture = format!("io.capture={capture}");
        let rules = format!("policy.rules=\"{}\"", rules.display());
        let own = ["--set", &capture, "--set", &rules];
        let args = [&own[..], &common::SIMULATED].concat();
        let live = start(&lab, "in", "mark.overwrite=true", &args);
        let call = ask_udp(&lab, HOSTS, Lab::server(false), 1);
        let end = call[0].local_addr().unwrap();
        let [near, far] = &call;
        // 476 bytes so far, and 1,428 more with each.
        for _ in 0..69 {
            near.send(&[1; 1400]).unwrap();
            common::uninterrupted(|| far.recv(&mut [0; 1500])).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500));
        let is_big = || mark_at(&lab, end) == FOREIGN | 0x2000_0000;
        assert!(!is_big(), "99,008 bytes");
        near.send(&[1; 1400]).unwrap();
        live.wait_for("the flow is big", |_| is_big());
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        live.terminate(0);
    }
}
