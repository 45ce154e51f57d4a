//! What `replay` does with rules: the DSCPs of `--write`, labels in records, and the same whatever
//! the bursts are.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::packets::{conversation, pcap, read_capture};
use crate::common::{
    Finished, SIMULATED, bundle, demo, fenxi_asking_once, json_lines, labels, run,
};

/// A folder with rules, and what replays with them write.
struct Replays {
    dir: tempfile::TempDir,
}

impl Replays {
    fn new(rules: &str) -> Replays {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.toml"), rules).unwrap();
        Replays { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn replay(&self, input: &Path, more: &[&str]) -> Finished {
        let [rules, written, records] =
            ["rules.toml", "out.pcap", "records"].map(|name| self.path(name));
        let mut command = fenxi_asking_once(["replay", "--json"]);
        command.arg(input).arg("--write").arg(written);
        command.arg("--flows").arg(records).args(SIMULATED);
        command.args(["--set", &format!("policy.rules={}", rules.display())]);
        command.args(more);
        run(command)
    }

    /// Packets and records of a replay.
    fn written(&self, input: &Path, more: &[&str]) -> [Vec<u8>; 2] {
        self.replay(input, more).expect_code(0);
        ["out.pcap", "records"].map(|name| fs::read(self.path(name)).unwrap())
    }
}

/// DSCP of an Ethernet frame of IP.
fn dscp(frame: &[u8]) -> u8 {
    match frame[12..14] {
        [0x08, 0x00] => frame[15] >> 2,
        _ => (frame[14] << 4 | frame[15] >> 4) >> 2,
    }
}

/// A rule for all labels of the model.
fn for_all_labels(keys: &str) -> String {
    let labels = labels(&bundle());
    format!("[[rule]]\napp = {labels:?}\n{keys}\n")
}

/// By tuple from the first packet on, and from a bound on; a label by rule stands in the records,
/// and costs no series.
#[test]
fn rules_by_tuple_are_in_the_packets_and_the_records() {
    let rules = "[[rule]]\nsource = \"fd00::/16\"\nlabel = \"STUN\"\ndscp = \"AF41\"\n\
                 [[rule]]\nover.packets = 8\ndscp = \"LE\"\n\
                 [[rule]]\nsource_port = 4000\ntask = \"none\"\ndscp = \"AF11\"\n";
    let replays = Replays::new(rules);
    let input = replays.path("in.pcap");
    let frames = [conversation(false, 4000, 40), conversation(true, 4000, 25)].concat();
    fs::write(&input, pcap(frames)).unwrap();
    let summary = replays.replay(&input, &[]).expect_code(0).json();
    assert_eq!(summary["series"]["emitted"], 0, "{summary}");
    assert_eq!(summary["decided"]["by_rule"], 1, "{summary}");
    let after = read_capture(&replays.path("out.pcap"));
    let dscps: Vec<u8> = after.iter().map(|(_, frame)| dscp(frame)).collect();
    let (four, six) = dscps.split_at(40);
    // A direction's packets are looked at by number, the 1st, 2nd, 4th, 8th and so on: the 15th
    // packet is the eighth of the forward one.
    assert_eq!(four, [[10].repeat(14), [1].repeat(26)].concat());
    assert_eq!(six, [34; 25]);
    let records = json_lines(&replays.path("records"));
    let six = |record: &&Value| record["src"] == "fd00::1";
    for record in records.iter().filter(six) {
        assert_eq!((&record["label"], &record["decided_by"]), (&"STUN".into(), &"rule".into()));
    }
    assert_eq!(records.iter().filter(six).count(), 2, "{records:?}");
}

/// Each record of a flow has its rule by number, in the order in which the rules are written, and
/// by name.
#[test]
fn records_of_flows_name_the_rule() {
    let rules = "[[rule]]\nname = \"big\"\npriority = 1\nover.packets = 30\ndscp = \"LE\"\n\
                 [[rule]]\nsource_port = 4001\ndscp = \"AF11\"\n\
                 [[rule]]\nname = \"all of six\"\nsource = \"fd00::/16\"\n";
    let replays = Replays::new(rules);
    let input = replays.path("in.pcap");
    let frames = [(false, 4000, 40), (false, 4001, 8), (false, 4002, 8), (true, 4003, 8)];
    let frames = frames.map(|(is_v6, port, packets)| conversation(is_v6, port, packets));
    fs::write(&input, pcap(frames.concat())).unwrap();
    replays.replay(&input, &[]).expect_code(0);
    let records = json_lines(&replays.path("records"));
    let of_flow = |port: u16| {
        let mut of_type = records.iter().filter(|record| record["type"] == "flow");
        let record = of_type.find(|record| record["src_port"] == port).unwrap();
        (record.get("rule"), record.get("rule_name"))
    };
    let (one, two, three): (Value, Value, Value) = (1.into(), 2.into(), 3.into());
    assert_eq!(of_flow(4000), (Some(&one), Some(&"big".into())));
    assert_eq!(of_flow(4001), (Some(&two), None));
    assert_eq!(of_flow(4002), (None, None));
    assert_eq!(of_flow(4003), (Some(&three), Some(&"all of six".into())));
    let labels = records.iter().filter(|record| record["type"] == "label");
    assert!(labels.clone().count() > 0);
    assert!(labels.into_iter().all(|label| label.get("rule").is_none()));
}

/// A rule for ICMP acts on its packets, and its label counts for nothing.
#[test]
fn a_rule_acts_on_icmp_and_gives_it_no_label() {
    let rules =
        "[[rule]]\nname = \"pings\"\nprotocol = \"icmp\"\nlabel = \"STUN\"\ndscp = \"CS1\"\n";
    let replays = Replays::new(rules);
    let summary = replays.replay(&demo(), &[]).expect_code(0).json();
    assert_eq!(summary["decided"]["by_rule"], 0, "{summary}");
    let records = json_lines(&replays.path("records"));
    let (icmp, others): (Vec<&Value>, Vec<&Value>) =
        records.iter().partition(|it| [1, 58].contains(&it["proto"].as_u64().unwrap()));
    assert_eq!(icmp.len(), 4, "{icmp:?}");
    assert!(icmp.iter().all(|it| it["rule_name"] == "pings" && it["label"].is_null()));
    assert!(others.iter().all(|it| it.get("rule").is_none()));
    let after = read_capture(&replays.path("out.pcap"));
    // IPv6 without extensions; the rest are of neighbours.
    let is_ping = |frame: &[u8]| frame[20] == 58 && [128, 129].contains(&frame[54]);
    let of_v6 = after.iter().filter(|(_, frame)| frame[12..14] == [0x86, 0xdd]);
    let pings = of_v6.filter(|(_, frame)| is_ping(frame));
    assert_eq!(pings.map(|(_, frame)| dscp(frame)).collect::<Vec<_>>(), [8; 16]);
}

/// Whatever the bursts are, as labels without rules.
#[test]
fn what_is_written_does_not_depend_on_bursts() {
    let rules = [
        "[[rule]]\nprotocol = \"tcp\"\nover = { packets = 5 }\ndscp = \"AF41\"\n".to_owned(),
        for_all_labels("over = { packets = 13, bytes = \"2 kB\" }\ndscp = \"LE\""),
        for_all_labels("sample = 0.5\ndscp = \"AF11\""),
        "[[rule]]\ndestination_port = 53\nlabel = \"STUN\"\n".to_owned(),
    ];
    let replays = Replays::new(&rules.concat());
    let [first, others @ ..] = ["1", "7", "32", "256"]
        .map(|burst| replays.written(&demo(), &["--set", &format!("io.burst={burst}")]));
    let dscps = |packets: &[u8]| {
        fs::write(replays.path("first.pcap"), packets).unwrap();
        let frames = read_capture(&replays.path("first.pcap"));
        let of_ip = frames.iter().filter(|(_, frame)| frame[12..14] == [8, 0]);
        of_ip.map(|(_, frame)| dscp(frame)).collect::<Vec<u8>>()
    };
    let dscps = dscps(&first[0]);
    assert!([1, 10, 34].iter().all(|dscp| dscps.contains(dscp)), "{dscps:?}");
    for (other, burst) in others.iter().zip(["7", "32", "256"]) {
        assert!(*other == first, "bursts of {burst}");
    }
}

/// A rule for all labels writes what `tag.dscp` with all labels does.
#[test]
fn a_rule_for_all_labels_is_as_the_table_of_labels() {
    let names = labels(&bundle());
    let entries: Vec<String> = names.iter().map(|name| format!("\"{name}\" = \"CS5\"")).collect();
    let table = format!("tag.dscp={{ {} }}", entries.join(", "));
    let by_label = Replays::new("");
    let by_rule = Replays::new(&for_all_labels("dscp = \"CS5\""));
    let expected = by_label.written(&demo(), &["--set", &table]);
    assert!(by_rule.written(&demo(), &["--set", "tag.dscp={}"]) == expected);
}

/// Packets that rules drop are left out, as mode inline leaves them out; a rule that no model and
/// no file can keep is refused.
#[test]
fn dropped_packets_are_left_out() {
    let replays = Replays::new("[[rule]]\nsource = \"10.0.0.0/8\"\ndrop = true\n");
    let input = replays.path("in.pcap");
    let frames = [conversation(false, 4000, 12), conversation(true, 4000, 12)].concat();
    fs::write(&input, pcap(frames)).unwrap();
    let summary = replays.replay(&input, &[]).expect_code(0).json();
    assert_eq!(summary["verdicts"]["dropped"], 12, "{summary}");
    let after = read_capture(&replays.path("out.pcap"));
    assert_eq!(after.len(), 12);
    assert!(after.iter().all(|(_, frame)| frame[12..14] == [0x86, 0xdd]));
    let wrong = Replays::new("[[rule]]\napp = \"STUN\"\n\n[[rule]]\nlabel = \"Napster\"\n");
    let said = wrong.replay(&input, &[]).expect_code(65).stderr;
    assert!(said.contains("rules.toml:4: there is no label \"Napster\""), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!wrong.path("records").exists(), "nothing is written");
}
