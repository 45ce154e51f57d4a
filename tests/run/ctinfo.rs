//! Marks in the form that `tc ... action ctinfo dscp 63 128` reads.

use crate::common::lab::{FOREIGN, Lab};
use crate::common::live::Live;
use crate::common::{self};
use crate::run::mark::{HOSTS, mark_at, start};
use crate::run::traffic::{ask_udp, every_label};

/// A flow with a label, whose connection has this mark from then on.
fn labelled(lab: &Lab, live: &Live, mark: u32) -> [std::net::UdpSocket; 2] {
    let sockets = ask_udp(lab, HOSTS, Lab::server(false), 12);
    // The socket is bound to no address; conntrack knows it by its host's address.
    let port = sockets[0].local_addr().unwrap().port();
    let client = format!("10.77.1.2:{port}").parse().unwrap();
    live.wait_for("the connection has its mark", |_| mark_at(lab, client) == mark);
    sockets
}

/// The mark holds the DSCP in its six low bits and the bit that says so, and the bits of others
/// stay; of DSCP 0, too.
#[test]
fn a_mark_holds_the_dscp_of_the_label() {
    let Some(lab) = Lab::routed("ctinfo", true, &[]) else {
        return;
    };
    for (name, code_point) in [("EF", 46), ("CS1", 8), ("CS0", 0)] {
        let dscp = every_label("tag.dscp", &format!("\"{name}\""));
        let args = [&common::SIMULATED[..], &["--set", "mark.as=dscp"]].concat();
        let live = start(&lab, "in", &dscp, &args);
        let mark = FOREIGN | 128 | code_point;
        assert_eq!((mark & 63, mark & 128, mark & !0xbf), (code_point, 128, FOREIGN));
        let sockets = labelled(&lab, &live, mark);
        live.wait_for("the flow has its DSCP", |live| {
            let reply = live.ctl(&["flows", "--dscp-set", name, "--json"]).expect_code(0).json();
            !reply["flows"].as_array().unwrap().is_empty()
        });
        drop(sockets);
        live.terminate(0);
    }
}
