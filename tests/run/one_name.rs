//! What all that tells of a flow calls its label, and where the flow came in and left.

use std::fs;

use serde_json::Value;

use crate::common;
use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::control::seeing::Terminal;
use crate::run::mark::HOSTS;
use crate::run::traffic::{connect, talk};

const LABEL: &str = "SSH";
const RULES: &str = "[[rule]]\nname = \"all\"\nprotocol = \"tcp\"\nlabel = \"SSH\"\n";
const SET: &str = "table inet act {\n set clients { type ipv4_addr; size 9; flags timeout; }\n}";

/// The flow's record in a file of IPFIX messages (`docs/ipfix.md`): TCP flags in reverse and
/// forward, types of service likewise and as it leaves; both interfaces; the label.
fn record(messages: &[u8], flow_id: u64) -> (&[u8], [u32; 2], &str) {
    // Behind the flow's number comes the application's, which begins with 6. The table of names,
    // which is first, may look like that.
    let begin = [&flow_id.to_be_bytes()[..], &[6]].concat();
    let at = messages.windows(begin.len()).rposition(|bytes| bytes == begin).expect("a record");
    let bytes = &messages[at + 8 + 4 + 2..];
    let index = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    // Behind type and code of ICMP.
    let name = &bytes[16..16 + usize::from(bytes[15])];
    (&bytes[..5], [index(5), index(9)], std::str::from_utf8(name).unwrap())
}

#[test]
fn a_label_has_one_name_in_every_sink() {
    let Some(lab) = Lab::routed("one-name", false, &["tmux"]) else { return };
    lab.nft("router", SET);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("rules.toml"), RULES).unwrap();
    let (flows, ipfix) = (path("flows.jsonl"), format!("file:{}", path("flows.ipfix")));
    let sets = [
        "io.interfaces=[\"in\", \"out\"]",
        "io.mode=mark",
        "mark.as=dscp",
        "tag.dscp={ SSH = \"CS2\" }",
        "nftset.clients.set=inet act clients",
        "nftset.clients.labels=[\"SSH\"]",
        &format!("policy.rules={}", path("rules.toml")),
    ];
    let mut args = vec!["--flows", &flows, "--ipfix", &ipfix];
    args.extend(sets.iter().flat_map(|set| ["--set", *set]));
    args.extend(common::SIMULATED);
    let live = Live::start(&lab, "router", &args);
    let [near, far] = connect(&lab, HOSTS, Lab::server(false));
    talk([&near, &far], 12);

    let label = format!("label=\"{LABEL}\"");
    live.wait_for("metrics", |live| live.samples_with("fenxi_labels_total", &label).contains(&1.0));
    live.wait_for("the set", |_| {
        lab.run("router", "nft list set inet act clients").contains("10.77.1.2 ")
    });
    let row = |live: &Live| {
        let dscps = ["--dscp", "DF", "--dscp-set", "CS2"];
        let reply = live.ctl(&[&["flows", "--json"], &dscps[..]].concat()).expect_code(0).json();
        reply["flows"].as_array().unwrap().iter().find(|row| row["proto"] == 6).cloned()
    };
    live.wait_for("ctl flows", |live| row(live).is_some_and(|row| row["label"] == LABEL));
    let dscps = |row: &Value| [row["dscp_seen"].clone(), row["dscp_set"].clone()];
    assert_eq!(dscps(&row(&live).unwrap()), ["DF", "CS2"]);
    live.wait_for("the page", |live| {
        let page = live.get("/?dscp_seen=0&dscp_set=cs2");
        page.contains(&format!(">{LABEL}")) && page.contains("<td>DF&gt;CS2<td>")
    });
    let other = live.ctl(&["flows", "--dscp", "EF"]).expect_code(0).stdout;
    assert_eq!(other.lines().count(), 1, "{other}");
    let top =
        format!("{} top -n 1 --socket {}", env!("CARGO_BIN_EXE_fenxi"), live.socket().display());
    if let Some(terminal) = Terminal::start("one-name", &top) {
        let shows = |screen: &str| {
            let mut lines = screen.lines();
            let has_all = |line: &str| {
                ["10.77.1.2", LABEL, " DF>CS2 "].iter().all(|part| line.contains(part))
            };
            lines.any(has_all)
        };
        terminal.wait_for("top", shows);
    }
    let explained = live.ctl(&["explain", &row(&live).unwrap()["flow_id"].to_string()]);
    let explained = explained.expect_code(0).stdout;
    for part in [&format!("label    {LABEL}"), "dscp     DF seen, CS2 set\n"] {
        assert!(explained.contains(part), "{explained}");
    }
    drop((near, far));
    live.wait_for("the flow has ended", |live| {
        let page = live.scrape();
        let counted = page.contains("fenxi_dscp_set_flows_total{dscp=\"CS2\"} 1\n");
        counted && page.matches("\nfenxi_dscp_seen_flows_total{").count() == 1
    });
    live.terminate(0);

    let records = common::json_lines(flows.as_ref());
    let mut records = records.iter().filter(|record| record["proto"] == 6);
    assert!(records.clone().count() >= 2, "of the label and the flow");
    assert!(records.clone().all(|record| record["label"] == LABEL));
    let flow = records.find(|record| record["type"] == "flow").unwrap();
    assert_eq!((&flow["in_interface"], &flow["out_interface"]), (&"in".into(), &"out".into()));
    assert_eq!((&flow["dscp_fwd"], &flow["dscp_set"]), (&0.into(), &16.into()));
    // SYN and ACK. The kernel is told soon that it is enough, so PSH may not be walked, nor FIN.
    let flags = ["tcp_flags_rev", "tcp_flags_fwd"].map(|it| flow[it].as_u64().unwrap() as u8);
    assert_eq!(flags.map(|flags| flags | 9), [0x1b; 2]);
    let messages = fs::read(path("flows.ipfix")).unwrap();
    let (seen, interfaces, name) = record(&messages, flow["flow_id"].as_u64().unwrap());
    assert_eq!((seen, name), (&[flags[0], flags[1], 0, 0, 16 << 2][..], LABEL));
    let index = |link: &str| {
        let index = lab.run("router", &format!("cat /sys/class/net/{link}/ifindex"));
        index.trim().parse::<u32>().unwrap()
    };
    assert_eq!(interfaces, ["in", "out"].map(index));
}
