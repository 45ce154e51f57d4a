//! Batches of changes, without flow workers.

use config::Sources;
use policy::hours::{DAY_MINUTES, Hours};

use super::*;
use crate::names::Host;
use crate::protocol::Code;

const LABELS: [&str; 2] = ["DNS", "TLS"];

fn rules_with(set: &[&str]) -> Rules {
    let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
    let config = Sources::named(None, &set).load().unwrap().config;
    let labels = LABELS.map(|name| Label {
        name: name.into(),
        taxonomy: "Network".into(),
        target: String::new(),
    });
    Rules::load(&config, &[labels.into()], Traffic::Live).unwrap()
}

/// A rule by a band names no task, but only one task may have the band.
#[test]
fn a_rule_by_a_band_finds_the_task_that_has_it() {
    let size = ["small", "huge"].map(|name| Label {
        name: name.into(),
        taxonomy: "size".into(),
        target: "volume".into(),
    });
    let by_ports = LABELS.map(|name| Label { name: name.into(), ..Label::default() });
    let with = |labels: &[Arc<[Label]>], tasks: &[&str]| {
        let set: Vec<String> =
            tasks.iter().map(|name| format!("task.{name}.model=\"models/protocol\"")).collect();
        let inline = ["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"].map(str::to_owned);
        let config = Sources::named(None, &[inline.to_vec(), set].concat()).load().unwrap().config;
        Rules::load(&config, labels, Traffic::Live).unwrap()
    };
    let labels: [Arc<[Label]>; 2] = [by_ports.clone().into(), size.clone().into()];
    let mut rules = with(&labels, &["ports", "size"]);
    rules.change("add volume = \"huge\", drop = true").unwrap();
    assert_eq!(texts(&rules), ["1 volume = \"huge\", drop = true"]);
    rules.change("add volume = [\"huge\", \"small\"], dscp = \"CS1\"").unwrap();
    let refused = |rules: &mut Rules, text: &str| rules.change(text).unwrap_err().why;
    for (text, parts) in [
        ("add volume = \"hug\", drop = true", ["\"volume.hug\"", "did you mean volume.huge?"]),
        ("add rate = \"huge\", drop = true", ["\"rate.huge\"", "there are DNS, TLS; of task size"]),
        ("add volume = \"huge\", app = \"DNS\"", ["one of app, volume", "write a rule for each"]),
    ] {
        let why = refused(&mut rules, text);
        assert!(parts.iter().all(|part| why.contains(part)) && !why.contains('\n'), "{why}");
    }
    let labels = [by_ports.into(), size.clone().into(), size.into()];
    let why = refused(
        &mut with(&labels, &["ports", "size", "sizes"]),
        "add volume = \"huge\", drop = true",
    );
    assert!(why.contains("there are app = \"size.huge\", app = \"sizes.huge\""), "{why}");
}

fn texts(rules: &Rules) -> Vec<String> {
    let shown = rules.shown(None, 100).unwrap();
    shown.rows.into_iter().map(|row| format!("{} {}", row.number, row.rule)).collect()
}

#[test]
fn a_batch_is_made_whole() {
    let mut rules = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    assert!(rules.at_start().is_none());
    let old = rules.version();
    let text = "# two rules\nadd name = \"a\", source = \"10.0.0.0/8\", dscp = \"AF41\"\n\n  add \
        drop = true\n";
    let changed = rules.change(text).unwrap();
    assert_eq!((changed.first, changed.added, changed.rules), (Some(1), 2, 2));
    assert!(rules.advance(&old), "another version");
    let before = texts(&rules);
    assert_eq!(
        before[0],
        "1 name = \"a\", source = [\"10.0.0.0/8\"], dscp = \"AF41\"".replace(['[', ']'], "")
    );
    // The name is taken, free once its rule is deleted, and taken again.
    rules.change("add name = \"a\", drop = true").unwrap_err();
    let both = "delete a\nadd name = \"a\", dscp = \"CS1\"\nadd dscp = \"CS2\"\ndelete 2";
    let changed = rules.change(both).unwrap();
    assert_eq!((changed.first, changed.added, changed.deleted), (Some(3), 2, 2));
    assert_eq!(texts(&rules), ["3 name = \"a\", dscp = \"CS1\"", "4 dscp = \"CS2\""]);
    rules.undo().unwrap();
    assert_eq!(texts(&rules), before);
    assert_eq!(rules.changes, 1);
    rules.change("delete a").unwrap();
    assert_eq!(texts(&rules), ["2 drop = true"]);
}

#[test]
fn a_wrong_line_is_named_and_nothing_is_changed() {
    let mut rules = rules_with(&["io.mode=mark", "mark.mask=0xff000000"]);
    rules.change("add name = \"a\", label = \"DNS\"").unwrap();
    let before = (texts(&rules), rules.version().policy);
    let refused = |rules: &mut Rules, text: &str| rules.change(text).unwrap_err().why;
    for (text, why) in [
        ("", "there is no change"),
        ("ad drop = true", "\"ad\" is no change"),
        ("delete 2", "there is no rule 2"),
        ("delete 0", "there is no rule 0"),
        ("delete", "which rule?"),
        ("delete b", "there is no rule b"),
        ("delete a\ndelete 1", "line 2: there is no rule 1"),
        ("add dscp = \"AF99\"", "dscp: "),
        (
            "\nadd label = \"DNS\"\nadd app = \"Napster\"",
            "line 3: there is no label or taxonomy \"Napster\"; there are DNS",
        ),
        ("add drop = true", "drop: only mode inline can drop packets"),
        ("add mark = 1", "mark: 0x1 has bits outside of mark.mask"),
        (
            "add mark = \"0x1000000/0x1ff0000\"",
            "mark: the mask of 0x1000000/0x1ff0000 has bits outside of mark.mask = 0xff000000",
        ),
        ("add dscp = \"CS1\"", "dscp: in mode mark "),
        ("add name = \"a\", label = \"DNS\"", "already"),
        ("add source = \"10.0.0.0/8\", , dscp", "not TOML"),
    ] {
        let said = refused(&mut rules, text);
        assert!(said.contains(why), "{text}: {said}");
        assert!(!said.contains('\n'), "{said}");
        assert_eq!(texts(&rules), before.0, "{text}");
        assert!(Arc::ptr_eq(&rules.version().policy, &before.1), "{text}");
    }
    assert_eq!(rules.changes, 1);
    // A refused change leaves nothing behind.
    rules.change("add app = \"DNS\", mark = 0x1000000").unwrap();
    assert_eq!(texts(&rules)[1], "2 app = \"DNS\", mark = \"0x1000000/0xff000000\"");
}

#[test]
fn in_mode_mark_a_dscp_is_written_into_the_mark() {
    let mut rules = rules_with(&["io.mode=mark", "mark.as=dscp"]);
    rules.change("add dscp = \"EF\"\nadd dscp = \"EF\", mark = \"0x81/0xbf\"").unwrap();
    assert_eq!(
        texts(&rules),
        ["1 dscp = \"EF\", mark = \"0xae/0xbf\"", "2 dscp = \"EF\", mark = \"0x81/0xbf\""]
    );
    let Err(Refused { code: Code::Invalid, why: said }) = rules.change("add mark = \"0x88/0xff\"")
    else {
        panic!("bits that are not fenxi's");
    };
    assert!(
        said.starts_with("mark: the mask of 0x88/0xff has bits outside of mark.mask = 0xbf"),
        "{said}"
    );
}

/// Numbers and names as shown to users, by the numbers of flow workers.
fn known(rules: &Rules, numbers: std::ops::Range<RuleNumber>) -> Vec<String> {
    let known = numbers.filter_map(|number| rules.in_force.known(number));
    known
        .map(|rule| {
            let name = rule.name();
            let name = name.as_deref().unwrap_or("-");
            format!("{} {name}", number_by_order(rule.order))
        })
        .collect()
}

/// Holds for deleted rules too, and after the rules before them are gone.
#[test]
fn rules_are_known_by_the_order_in_which_they_were_written() {
    let mut rules = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    let old = rules.version();
    let add = "add name = \"a\", drop = true\nadd drop = true\nadd name = \"b\", drop = true";
    rules.change(add).unwrap();
    rules.advance(&old);
    let waiting = rules.in_force.known(0).unwrap();
    let old = rules.version();
    // A refused change frees its names.
    let refused = "add name = \"c\", drop = true\nadd app = \"Napster\"";
    rules.change(refused).unwrap_err();
    rules.change("delete a\nadd name = \"a\", drop = true").unwrap();
    rules.advance(&old);
    assert_eq!(known(&rules, 0..5), ["1 a", "2 -", "3 b", "4 a"]);

    let old = rules.version();
    let many = "add source = \"10.0.0.0/8\", drop = true\n".repeat(600);
    rules.change(&many).unwrap();
    let all: String = (5..605).map(|number| format!("delete {number}\n")).collect();
    rules.change(&all).unwrap();
    assert!(rules.compact().unwrap());
    rules.advance(&old);
    assert_eq!(known(&rules, 0..5), ["2 -", "3 b", "4 a"]);
    assert_eq!(waiting.name().as_deref(), Some("a"), "it is deleted");
}

#[test]
fn counted_rules_keep_their_places_while_numbers_mean_the_same() {
    let mut rules = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    let mut counted = Vec::new();
    for round in 0..3 {
        let old = rules.version();
        let numbering = rules.in_force.numbering;
        let add = format!("add name = \"n{round}\", drop = true\nadd drop = true");
        rules.change(&add).unwrap();
        rules.change(&format!("delete n{round}")).unwrap();
        rules.advance(&old);
        assert_eq!(rules.in_force.numbering, numbering);
        assert!(rules.in_force.counted.starts_with(&counted), "{counted:?}");
        counted = rules.in_force.counted.to_vec();
    }
    assert_eq!(rules.state().counted.len(), 3);
}

#[test]
fn a_rule_names_the_interface_for_copies() {
    let inline = ["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"];
    let add = "add mirror = \"copy\"";
    let refused = |set: &[&str]| rules_with(set).change(add).unwrap_err().why;
    let said = refused(&inline);
    assert!(
        said.starts_with("there is no mirror \"copy\", because policy.mirror is empty; "),
        "{said}"
    );
    let said = refused(&[&inline[..], &["policy.mirror=ids0"]].concat());
    assert!(
        said.starts_with("there is no mirror \"copy\"; there is ids0, of policy.mirror; "),
        "{said}"
    );
    let said = refused(&["io.mode=tap", "policy.mirror=copy"]);
    assert!(said.starts_with("mirror: only mode inline can copy packets"), "{said}");
    let mut rules = rules_with(&[&inline[..], &["policy.mirror=copy"]].concat());
    rules.change(add).unwrap();
    assert_eq!(texts(&rules), ["1 mirror = \"copy\""]);
}

#[test]
fn a_rule_cannot_ask_a_task_alone_that_waits_for_another() {
    let tasks = ["task.a.name=a", "task.b.when=a.confidence < 0.9"];
    let mut rules = rules_with(&tasks);
    rules.change("add task = \"a\"").unwrap();
    let Err(Refused { code: Code::Invalid, why: said }) = rules.change("add task = \"b\"") else {
        panic!("a task that is never asked");
    };
    assert!(
        said.starts_with("task: task b waits for the label of task a, and this rule asks b alone"),
        "{said}"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    std::fs::write(&file, "[[rule]]\n\n[[rule]]\ntask = \"b\"\n").unwrap();
    let config = Sources::named(None, &tasks.map(str::to_owned)).load();
    let terms = Terms::new(&config.unwrap().config, &[], Traffic::Live);
    let said = Rules::read(&file, "", terms, &AtomicBool::new(false)).err().unwrap().to_string();
    assert!(said.contains("r.toml:3: task: task b waits for"), "{said}");
}

/// A replay copies nothing, so it takes rules for any router.
#[test]
fn a_replay_takes_any_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    std::fs::write(&file, "[[rule]]\nmirror = \"any\"\ndrop = true\n").unwrap();
    let config = Sources::named(None, &[]).load().unwrap().config;
    let read = |traffic| {
        let terms = Terms::new(&config, &[], traffic);
        Rules::read(&file, "", terms, &AtomicBool::new(false))
    };
    let rules = read(Traffic::Replay).unwrap();
    assert_eq!(texts(&rules), ["1 drop = true"]);
    assert!(read(Traffic::Live).is_err());
}

/// A load that took too long is given up, and its thread must not go on.
#[test]
fn reading_ends_once_nobody_waits_for_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.csv");
    std::fs::write(&file, "source\n10.0.0.1\n").unwrap();
    let config = Sources::named(None, &[]).load().unwrap().config;
    let read = |stop| {
        let terms = Terms::new(&config, &[], Traffic::Live);
        Rules::read(&file, "", terms, &AtomicBool::new(stop))
    };
    assert_eq!(read(false).unwrap().len(), 1);
    let said = read(true).err().unwrap().to_string();
    assert!(said.ends_with("r.csv: cannot be read: given up"), "{said}");
}

/// Elsewhere it is another time.
#[test]
fn hours_and_profiles_open_and_close_rules() {
    let mut rules = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    let clock = |zone: &str| LocalClock::named(zone).unwrap();
    rules.terms.clock = clock("UTC0");
    let now = rules.terms.clock.now().minute;
    let hours = |from: u16, to: u16| Hours {
        days: Hours::ALL_DAYS,
        from: (now + from) % DAY_MINUTES,
        to: match (now + to) % DAY_MINUTES {
            0 => DAY_MINUTES,
            to => to,
        },
    };
    // From three hours ago to three hours from now.
    let hours = hours(21 * 60, 3 * 60);
    let old = rules.version();
    let add = format!("add when = \"{hours}\", drop = true\nadd profile = \"kids\", drop = true");
    rules.change(&add).unwrap();
    assert!(rules.advance(&old));
    rules.open_and_close();
    let closed = |rules: &Rules| -> Vec<Option<String>> {
        rules.shown(None, 9).unwrap().rows.into_iter().map(|row| row.closed).collect()
    };
    let off = Some("profile kids is off".to_owned());
    assert_eq!(closed(&rules), [None, off.clone()]);
    rules.terms.clock = clock("ELSE-12");
    assert!(rules.open_and_close());
    assert_eq!(closed(&rules), [Some(format!("outside its hours ({hours})")), off]);
    assert!(!rules.open_and_close(), "nothing is new");
    assert_eq!(rules.switch("kids", true), Ok(1));
    assert!(rules.open_and_close());
    assert_eq!(closed(&rules)[1], None);
    let explained = |before| {
        let flow = "10.0.0.1:1 > 10.0.0.2:2 tcp";
        let rows = rules.closed_for(flow, before).unwrap().rows;
        rows.into_iter().map(|row| row.number).collect::<Vec<_>>()
    };
    assert_eq!(
        (explained(Some(2)), explained(Some(1)), explained(None)),
        (vec![1], vec![], vec![1])
    );
    let before = rules.standing();
    assert_eq!(rules.switch("kids", false), Ok(1));
    assert!(rules.open_and_close());
    rules.put_back(before);
    assert_eq!(closed(&rules)[1], None, "no worker took the switch");
    assert!(!rules.open_and_close());
    let refused = rules.switch("kid", true).unwrap_err();
    assert!(refused.why.contains("there are kids"), "{}", refused.why);
    // A reload goes on with the profiles.
    let mut next = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    next.follow(&rules);
    next.change("add profile = \"kids\", drop = true").unwrap();
    assert_eq!(closed(&next), [None]);
}

#[test]
fn rules_follow_a_host_when_its_names_change() {
    let mut rules = rules_with(&["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"]);
    let old = rules.version();
    rules.change("add host = \"nas\", drop = true").unwrap();
    assert!(rules.advance(&old));
    let names = Names::default();
    rules.know_hosts(names.clone());
    assert!(!rules.open_and_close());
    let closed = |rules: &Rules| rules.shown(None, 1).unwrap().rows[0].closed.is_some();
    assert!(closed(&rules));
    let nas = |address: &str| Host {
        name: Some("nas".into()),
        addresses: vec![address.parse().unwrap()],
        ..Host::default()
    };
    for address in ["10.0.0.9", "10.0.0.10"] {
        assert!(names.publish(vec![nas(address)]) && rules.open_and_close());
        assert!(!closed(&rules) && !rules.open_and_close());
    }
    assert!(names.publish(Vec::new()) && rules.open_and_close());
    assert!(closed(&rules));
}
