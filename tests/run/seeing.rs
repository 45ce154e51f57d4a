//! What people see of a router at work: its flows as they are now, and why each has its label and
//! its mark.

use serde_json::Value;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::{self};
use crate::run::mark::{HOSTS, start};
use crate::run::traffic::{PROGRAMS, Servers, ask, ask_udp, every_label};

fn flows(live: &Live) -> Vec<Value> {
    let reply = live.ctl(&["flows", "--top", "100", "--json"]);
    reply.expect_code(0).json()["flows"].as_array().unwrap().clone()
}

#[test]
fn a_router_explains_a_flow_from_its_first_packet_to_its_mark() {
    let Some(lab) = Lab::routed("explained", true, &PROGRAMS) else {
        return;
    };
    let servers = Servers::start(&lab, "server", &[("page", 300_000)]);
    let class = every_label("mark.class", "0x07000000");
    let live = start(&lab, "in", &class, &[]);
    let server = Lab::server(false);
    servers.fetch(&lab, "client", server, "page");
    live.wait_for("it has a mark", |live| live.metric_sum("fenxi_marks_total") > 0.0);
    let rows = flows(&live);
    let fetched = rows.iter().find(|row| {
        row["dst"].as_str().unwrap().starts_with(server) && !row["decided_by"].is_null()
    });
    let fetched = fetched.unwrap_or_else(|| panic!("no labelled flow: {rows:?}"));
    let id = fetched["flow_id"].to_string();
    let json = live.ctl(&["explain", &id, "--json"]).expect_code(0).json();
    let explained = &json["explained"];
    assert_eq!(explained["flow"]["label"], fetched["label"]);
    let elements = explained["series"]["elements"].as_array().unwrap();
    assert!(!elements.is_empty(), "{explained}");
    let mark = &explained["written"][0];
    assert_eq!((&mark["what"], &mark["value"]), (&"mark".into(), &"0x7000000/0xff000000".into()));
    assert_eq!(mark["outcome"], "the connection has the mark");
    assert!(mark["at"].is_string());
    let decided = explained["answers"].as_array().unwrap().iter();
    let decided = decided.filter(|answer| answer["outcome"] == "decided");
    let again: Vec<&Value> = decided.map(|it| &it["probabilities"][0]["label"]).collect();
    match fetched["decided_by"] == "port" {
        true => assert!(again.is_empty(), "{explained}"),
        false => assert_eq!(again, [&fetched["label"]], "{explained}"),
    }
    live.terminate(0);
}

/// Packets, bytes and rate of a flow that goes on are current, not as in its last record.
#[test]
fn a_flow_that_goes_on_is_shown_as_it_is_now() {
    let Some(lab) = Lab::routed("shown", true, &[]) else {
        return;
    };
    let class = every_label("mark.class", "0x07000000");
    let args = [&common::SIMULATED[..], &["--set", "flow.active_timeout_s=1"]].concat();
    let live = start(&lab, "in", &class, &args);
    let sockets = ask_udp(&lab, HOSTS, Lab::server(false), 10);
    let mut sent = 20;
    let port = sockets[0].local_addr().unwrap().port().to_string();
    let packets = |live: &Live| {
        let rows = flows(live);
        let row = rows.iter().find(|row| row["src"].as_str().unwrap().ends_with(&port));
        row.and_then(|row| row["packets"].as_u64())
    };
    // Reports in between take the counts out of the table, and the sums go on.
    for _ in 0..3 {
        live.wait_for("all packets are shown", |live| packets(live) == Some(sent));
        std::thread::sleep(std::time::Duration::from_millis(1100));
        ask(&sockets, 5);
        sent += 10;
    }
    live.wait_for("all packets are shown", |live| packets(live) == Some(sent));
    live.terminate(0);
}
