//! What files of rules mean.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::fs;

use policy::rule::Task;
use policy::{Dscp, Mark, Ports, RuleSet};
use rulefiles::{Options, Rules, read};

fn ran(files: &[(&str, &str)]) -> Rules {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    read(&folder.path().join(files[0].0), &Options::default()).unwrap()
}

#[test]
fn all_keys_in_both_formats() {
    let toml = ran(&[(
        "r.toml",
        r#"
[sets]
lan = ["10.0.0.0/8", "fd00::/8"]

[[rule]]
name = "one"
priority = 7
source = ["@lan", "192.0.2.1"]
source_port = [53, "1000-1999", "2000-3000"]
destination_port = 443
protocol = "tcp"
in_port = "eth0"
app = ["web", "DNS"]
over = { bytes = "10 MiB", packets = 1000, age = "30 s", rate = "5 Mbit/s" }
dscp = "EF"
mark = "0x10/0xff"
task = "none"
label = "DNS"
sample = 0.5
mirror = "probe"
drop = true

[[rule]]
task = "other"
"#,
    )]);
    let csv = ran(&[
        ("r.toml", "[sets]\nlan = [\"10.0.0.0/8\", \"fd00::/8\"]\n[[include]]\nfile = \"r.csv\"\n"),
        (
            "r.csv",
            "name,priority,source,source_port,destination_port,protocol,in_port,app,\
             over.bytes,over.packets,over.age,over.rate,dscp,mark,task,label,sample,mirror,drop\r\n\
             one,7,@lan;192.0.2.1,53; 1000-1999;2000-3000,443,tcp,eth0,web;DNS,10 MiB,1000,30 s,\
             5 Mbit/s,EF,0x10/0xff,none,DNS,0.5,probe,true\r\n\
             ,,,,,,,,,,,,,,other,,,,\r\n",
        ),
    ]);
    for Rules { set, warnings } in [toml, csv] {
        assert_eq!((set.rules.len(), set.v4.len(), set.v6.len(), warnings.len()), (2, 5, 3, 0));
        assert_eq!(set.rules[0].rank.priority(), 7);
        let filter = set.v4[3];
        assert_eq!((filter.source, filter.source_length), (0xc000_0201, 32));
        assert_eq!(set.v4[1].source_ports, Ports { first: 1000, last: 3000 });
        assert_eq!(
            (filter.destination_ports, filter.protocol, filter.in_port),
            (Ports::one(443), Some(6), 1)
        );
        assert!(filter.is_conditional && !set.v4[4].is_conditional);
        let condition = set.condition(0);
        assert_eq!(condition.labels, ["DNS", "web"]);
        let over = condition.over;
        assert_eq!((over.bytes, over.packets), (Some(10 << 20), Some(1000)));
        assert_eq!((over.age_ms, over.bits_per_s), (Some(30_000), Some(5_000_000)));
        let action = set.action(0);
        assert_eq!(
            (action.dscp, action.mark),
            (Dscp::parse("EF"), Some(Mark { bits: 0x10, mask: 0xff }))
        );
        assert_eq!((&action.task, action.label.as_deref()), (&Task::None, Some("DNS")));
        assert_eq!(
            (action.sample, action.mirror.as_deref(), action.drop),
            (Some(32_768), Some("probe"), true)
        );
        assert_eq!(
            (&set.action(1).task, set.action(1).sample),
            (&Task::Named("other".to_owned()), None)
        );
        assert_eq!((set.name(0), set.named("one")), (Some("one"), Some(0)));
    }
}

#[test]
fn rules_and_includes_count_in_their_order_and_parts_are_handed_down() {
    let acl = "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\n";
    let files = [
        (
            "r.toml",
            "[[rule]]\ndscp = 1\n[[include]]\nfile = \"a.toml\"\npriority = 5\ndscp = 2\ndrop = \
             true\n[[rule]]\ndscp = 3\n",
        ),
        ("a.toml", "[[include]]\nfile = \"acl\"\nmark = 1\n[[rule]]\ndrop = false\npriority = 6\n"),
        ("acl", acl),
    ];
    let set = ran(&files).set;
    let said = |rule: u32| {
        let action = set.action(rule);
        (
            set.rules[rule as usize].rank.priority(),
            action.dscp.map(Dscp::code_point),
            action.mark.map(|mark| mark.bits),
            action.drop,
        )
    };
    assert_eq!(
        [said(0), said(1), said(2), said(3)],
        [
            (0, Some(1), None, false),
            (5, Some(2), Some(1), true),
            (6, Some(2), None, false),
            (0, Some(3), None, false)
        ]
    );
    let lines: Vec<u32> = set.rules.iter().map(|rule| rule.line).collect();
    assert_eq!(lines, [1, 1, 4, 8]);
}

#[test]
fn warnings_are_counted_by_kind_and_file() {
    let files = [
        (
            "r.toml",
            "[sets]\nnone = { file = \"none.txt\" }\n[[rule]]\nsource \
             = \"@none\"\n[[rule]]\nprotocol = 47\n[[rule]]\nprotocol = 2\n\
             [[rule]]\nsample = 0\n",
        ),
        ("none.txt", "# nothing yet\n"),
    ];
    let Rules { set, warnings } = ran(&files);
    assert_eq!((set.rules.len(), set.v4.len()), (4, 3));
    let told: Vec<(bool, usize)> = warnings
        .iter()
        .map(|warning| (warning.to_string().contains("r.toml:"), warning.count))
        .collect();
    assert_eq!(told, [(true, 2), (true, 1), (true, 1)]);
}

#[test]
fn a_family_is_that_of_the_prefixes() {
    let set = |text: &str| -> RuleSet { ran(&[("r.toml", &format!("[[rule]]\n{text}\n"))]).set };
    for (text, v4, v6) in [
        ("", 1, 1),
        ("source = \"0.0.0.0/0\"", 1, 0),
        ("destination = \"::/0\"", 0, 1),
        ("source = [\"10.0.0.0/8\", \"::1\"]", 1, 1),
        ("source = [\"10.0.0.0/8\", \"::1\"]\ndestination = \"::2\"", 0, 1),
        ("source = [\"10.0.0.0/8\", \"10.0.0.0/8\"]\nsource_port = [1, 1, 2]", 1, 0),
    ] {
        let set = set(text);
        assert_eq!((set.v4.len(), set.v6.len()), (v4, v6), "{text}");
    }
    let icmp = set("protocol = \"icmp\"");
    assert_eq!((icmp.v4[0].protocol, icmp.v6[0].protocol), (Some(1), Some(58)));
}
