//! Connections in a zone of conntrack: found where `mark.zone` names it; where not, everybody is
//! told that nothing is written.

use crate::common::lab::{FOREIGN, Lab};
use crate::common::{self};
use crate::run::mark::{HOSTS, mark_at, start};
use crate::run::traffic::{ask_udp, every_label};

/// All connections of the router are in zone 7.
const ZONE: &str = "table inet zone {
chain c {
    type filter hook prerouting priority raw; policy accept;
    ct zone set 7
}
}";

/// As many labels without a connection are no accident.
const SUSPICIOUS: usize = 64;

#[test]
fn connections_of_a_zone_are_found_where_it_is_named() {
    for masquerades in [false, true] {
        let Some(lab) = Lab::routed("zone", masquerades, &[]) else {
            return;
        };
        lab.nft("router", ZONE);
        let class = every_label("mark.class", "0x42000000");
        let args = [&common::SIMULATED[..], &["--set", "mark.zone=7"]].concat();
        for interface in ["in", "out"] {
            let live = start(&lab, interface, &class, &args);
            for is_v6 in [false, true] {
                let sockets = ask_udp(&lab, HOSTS, Lab::server(is_v6), 12);
                let port = sockets[0].local_addr().unwrap().port();
                let client = if is_v6 { "[fd77:1::2]" } else { "10.77.1.2" };
                let client = format!("{client}:{port}").parse().unwrap();
                live.wait_for("the connection has its mark", |_| {
                    mark_at(&lab, client) == FOREIGN | 0x4200_0000
                });
            }
            let summary = live.terminate(0).json();
            assert_eq!(summary["live"]["marks_not_found"], 0);
        }
        assert!(lab.run("router", "conntrack -L").contains("zone=7"));
    }
}

#[test]
fn a_run_that_finds_no_connection_says_so_everywhere() {
    let Some(lab) = Lab::routed("nowhere", false, &[]) else {
        return;
    };
    lab.nft("router", ZONE);
    let class = every_label("mark.class", "0x42000000");
    let live = start(&lab, "in", &class, &common::SIMULATED);
    let status = || live.ctl(&["status"]).stdout;
    let fresh = status();
    assert!(fresh.contains("marks     0 written: no label of a flow has a mark yet"), "{fresh}");
    for flow in 0..SUSPICIOUS {
        drop(ask_udp(&lab, HOSTS, Lab::server(flow % 2 == 1), 12));
    }
    live.wait_for("no connection is found", |live| {
        live.samples_with("fenxi_marks_total", "outcome=\"not_found\"").iter().sum::<f64>()
            >= SUSPICIOUS as f64
    });
    live.wait_for("the run is degraded", |_| status().starts_with("degraded: "));
    // Lines that are longer than a terminal is wide are folded.
    let found = status().split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "[-] marks: 0 written: no connection was found for 64 labels; is connection tracking on",
        "marks 0 written: no connection was found for 64 labels",
        ", 64 marks",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    live.wait_for("the log says so", |live| {
        live.said("labels change nothing, because no connection is found for any of them") == 1
    });
    // Others are found, and the run is no longer degraded.
    lab.run("router", "nft flush chain inet zone c");
    let sockets = ask_udp(&lab, HOSTS, Lab::server(false), 12);
    live.wait_for("a mark is written", |_| status().starts_with("ready: "));
    drop(sockets);
    let found = status();
    let line = "marks     1 written, 0 kept as they were, 64 without a connection";
    assert!(found.contains(line), "{found}");
    live.terminate(0);
}
