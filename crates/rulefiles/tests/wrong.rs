//! Each kind of wrong file, and the line that says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::fs;

use policy::RuleSet;
use rulefiles::{Options, ReadError, Rules, parse_one, read};

/// Reads the first of these files in a folder of its own; errors without the name of the folder.
fn ran(files: &[(&str, &str)], interfaces: &[String]) -> Result<Rules, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let options = Options { interfaces, ..Options::default() };
    let read = read(&folder.path().join(files[0].0), &options);
    let prefix = format!("{}/", folder.path().display());
    read.map_err(|error: ReadError| error.to_string().replace(&prefix, ""))
}

fn error(files: &[(&str, &str)]) -> String {
    ran(files, &[]).map(|_| ()).expect_err("it is wrong")
}

const TOML: &[(&str, &str)] = &[
    (
        "[[rule]]\nsource =\n",
        "r.toml:2: not TOML: string values must be quoted, expected literal string",
    ),
    ("[[rule]]\nsorce = \"::/0\"\n", "r.toml:2: unknown key \"sorce\"; did you mean source?"),
    ("[rules]\n", "r.toml:1: unknown table \"rules\"; did you mean rule?"),
    ("[rule]\n", "r.toml:1: unknown table \"rule\"; write [[rule]] for each, and its keys below"),
    ("dscp = \"EF\"\n", "r.toml:1: unknown table \"dscp\"; keys of a rule stand below [[rule]]"),
    (
        "[[rule]]\nsource = [\"10.0.0.1/8\"]\n",
        "r.toml:2: source: 10.0.0.1/8 has bits set beyond its length; write 10.0.0.0/8 for the \
         prefix, or 10.0.0.1 for the one address",
    ),
    (
        "[[rule]]\ndestination = \"example.org\"\n",
        "r.toml:2: destination: found \"example.org\", expected an address or a prefix such as \
         10.0.0.0/8 or 2001:db8::/32",
    ),
    (
        "[[rule]]\nvlan = 4095\n",
        "r.toml:2: vlan: found \"4095\", expected a VLAN from 0 (no tag) to 4094, or the first and \
         the last as in \"20-29\"",
    ),
    (
        "[[rule]]\ndscp_seen = \"ef\"\n",
        "r.toml:2: dscp_seen: found \"ef\", expected a DSCP name (CS0 to CS7, AF11 to AF43, EF, \
         VA, LE, DF) or an integer from 0 to 63; did you mean EF?",
    ),
    (
        "[[rule]]\nwhen = \"21:00\"\n",
        "r.toml:2: when: found \"21:00\", expected days and hours such as \"mon-fri 21:00-06:30\", \
         \"sat,sun\" or \"08:00-17:00\"",
    ),
    (
        "[[rule]]\nhost = [\"laptop\", \"10.0.0.300\"]\n",
        "r.toml:2: host: found \"10.0.0.300\", expected an address or a prefix such as 10.0.0.0/8 \
         or 2001:db8::/32",
    ),
    (
        "[sets]\nkids = [\"Tablet\"]\n[[rule]]\nsource = \"@kids\"\n",
        "r.toml:4: source: set \"kids\" has names of hosts, such as tablet; write host = \
         \"@kids\", which holds for flows that they begin and for others",
    ),
    (
        "[[rule]]\nsource = []\n",
        "r.toml:2: source: an empty list matches nothing; leave the key out for every one",
    ),
    (
        "[[rule]]\nsource = \"@lan\"\n",
        "r.toml:2: source: there is no set \"lan\"; name it under [sets], in this file or one that \
         is read before",
    ),
    (
        "[sets]\nguests = [\"::1\"]\n[[rule]]\nsource = \"@gests\"\n",
        "r.toml:4: source: there is no set \"gests\"; did you mean guests?",
    ),
    (
        "[sets]\nguests = \"10.0.0.0/8\"\n",
        "r.toml:2: sets: found \"10.0.0.0/8\", expected a list [\"10.0.0.0/8\", ...] or { file \
         = \"list.txt\" }",
    ),
    (
        "[[rule]]\nsource = \"10.0.0.0/8\"\ndestination = \"::1\"\n",
        "r.toml:1: source is IPv4, destination is IPv6: no packet has both; write prefixes of one \
         family",
    ),
    (
        "[[rule]]\nsource_port = \"5010-5000\"\n",
        "r.toml:2: source_port: found \"5010-5000\", expected a port from 0 to 65535, or the first \
         and the last as in \"5000-5010\"",
    ),
    (
        "[[rule]]\ndestination_port = 65536\n",
        "r.toml:2: destination_port: found \"65536\", expected a port from 0 to 65535, or the \
         first and the last as in \"5000-5010\"",
    ),
    (
        "[[rule]]\nprotocol = \"sctp\"\n",
        "r.toml:2: protocol: found \"sctp\", expected \"tcp\", \"udp\", \"icmp\" or a number up to \
         255",
    ),
    (
        "[[rule]]\nprotocol = [6, 17]\n",
        "r.toml:2: protocol: a list of 2 values, expected one value; write a rule for each",
    ),
    (
        "[[rule]]\npriority = -1\n",
        "r.toml:2: priority: found \"-1\", expected a whole number from 0 to 4294967295; the \
         greater wins",
    ),
    (
        "[[rule]]\nover = { bytes = 10 }\n",
        "r.toml:2: over.bytes: found \"10\", expected a number with its unit (TiB, TB, GiB, GB, \
         MiB, MB, KiB, kB, B), such as \"10 MiB\"",
    ),
    (
        "[[rule]]\nover = { age = \"30 sec\" }\n",
        "r.toml:2: over.age: found \"30 sec\", expected a number with its unit (d, h, min, s, ms), \
         such as \"30 s\"",
    ),
    (
        "[[rule]]\nover = \"10 MiB\"\n",
        "r.toml:2: over: found \"10 MiB\", expected a table such as over = { bytes = \"10 MiB\" }",
    ),
    (
        "[[rule]]\nover = { byte = \"1 B\" }\n",
        "r.toml:2: unknown key \"over.byte\"; did you mean over.bytes?",
    ),
    (
        "[[rule]]\ndscp = \"ef\"\n",
        "r.toml:2: dscp: found \"ef\", expected a DSCP name (CS0 to CS7, AF11 to AF43, EF, VA, LE, \
         DF) or an integer from 0 to 63; did you mean EF?",
    ),
    (
        "[[rule]]\nmark = \"0x100/0xff\"\n",
        "r.toml:2: mark: found \"0x100/0xff\", expected bits and mask as in \"0x10/0xff\", where \
         bits are not 0 and lie in the mask",
    ),
    (
        "[[rule]]\nsample = 1.5\n",
        "r.toml:2: sample: found \"1.5\", expected a share of the flows from 0 to 1, such as 0.1",
    ),
    ("[[rule]]\ndrop = \"yes\"\n", "r.toml:2: drop: found \"yes\", expected true or false"),
    (
        "[[rule]]\nname = \"\"\n",
        "r.toml:2: name: found \"\", expected a name of 1 to 100 bytes, without spaces around it, \
         control characters and ;",
    ),
    (
        "[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"a\"\n",
        "r.toml:4: a rule named \"a\" is already at r.toml:1; give it another name",
    ),
    (
        "[[rule]]\ndscp = 1979-05-27\n",
        "r.toml:2: dscp: found \"1979-05-27\", expected a text, a number or a list of them",
    ),
    (
        "[[include]]\nfile = \"r.toml\"\n",
        "r.toml:1: include: r.toml includes itself; remove one include",
    ),
    ("[[include]]\nfile = \".\"\n", "r.toml:1: include: . is not a regular file"),
    ("[[include]]\npriority = 1\n", "r.toml:1: [[include]] needs file = \"NAME\""),
    (
        "[[include]]\nfile = \"x\"\nsource = \"::\"\n",
        "r.toml:3: unknown key \"source\"; there are file, format, priority, profile, dscp, mark, \
         task, label, sample, mirror, drop",
    ),
    (
        "[[include]]\nfile = \"x\"\nformat = \"json\"\n",
        "r.toml:3: format: found \"json\", expected \"toml\", \"csv\", \"classbench\"",
    ),
];

const CSV: &[(&str, &str)] = &[
    (
        "",
        "r.csv:1: no header; the first line names the columns, such as: \
         source,destination_port,dscp",
    ),
    ("source,dcsp\n", "r.csv:1: unknown column \"dcsp\"; did you mean dscp?"),
    ("source,source\n", "r.csv:1: column source is in the header twice; remove one"),
    (
        "source,dscp\n# a remark\n\n::1\n",
        "r.csv:4: 1 cells, but the header has 2 columns; leave cells empty, but keep their commas",
    ),
    ("source\n\"::1\n", "r.csv:2: a quoted cell does not end on its line; close it with \""),
    (
        "source\n\"::1\"2\n",
        "r.csv:2: text behind a quoted cell; double the quotes inside: \"a \"\"b\"\"\"",
    ),
    (
        "source_port\n80;;90\n",
        "r.csv:2: source_port: found \"\", expected a port from 0 to 65535, or the first and the \
         last as in \"5000-5010\"",
    ),
];

#[test]
fn each_wrong_file_gives_its_line() {
    for (text, expected) in TOML {
        let told =
            error(&[("r.toml", text)]).replace("/.", ".").replace("include: .is", "include: . is");
        assert_eq!(told, *expected, "{text}");
    }
    for (text, expected) in CSV {
        assert_eq!(error(&[("r.csv", text)]), *expected, "{text}");
    }
    assert_eq!(
        error(&[("r.cb", "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\n")])
            .split(',')
            .next()
            .unwrap(),
        "r.cb:1: not a ClassBench filter (no protocol)"
    );
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.csv");
    let mut text = b"source\n::1\n".to_vec();
    text.extend([0xff, b'\n']);
    fs::write(&path, &text).unwrap();
    let told = read(&path, &Options::default()).unwrap_err().to_string();
    assert!(told.ends_with("r.csv:3: not UTF-8; save the file as UTF-8"), "{told}");
    fs::write(&path, vec![b'x'; 3 << 20]).unwrap();
    let told = read(&path, &Options::default()).unwrap_err().to_string();
    assert!(
        told.ends_with("r.csv:1: a line longer than 1048576 bytes; split the rule into several"),
        "{told}"
    );
}

#[test]
fn includes_that_go_wrong_name_the_line_that_includes() {
    let cycle = [
        ("r.toml", "[[include]]\nfile = \"sub/a.toml\"\n"),
        ("sub/a.toml", "\n\n[[include]]\nfile = \"../r.toml\"\n"),
    ];
    assert_eq!(
        error(&cycle),
        "sub/a.toml:3: include: sub/../r.toml includes itself; remove one include"
    );
    let twice = [
        ("r.toml", "[[include]]\nfile = \"a.csv\"\n[[include]]\nfile = \"./a.csv\"\n"),
        ("a.csv", "source\n::1\n"),
    ];
    assert_eq!(error(&twice), "r.toml:3: include: ./a.csv is included twice; remove one include");
    let missing = [("r.toml", "[[include]]\nfile = \"a.csv\"\n")];
    let told = error(&missing);
    assert!(told.starts_with("r.toml:1: a.csv: cannot be opened: "), "{told}");
    let inner = [
        ("r.toml", "[sets]\nbad = { file = \"bad.txt\" }\n"),
        ("bad.txt", "# a list\n10.0.0.0/8 # ours\n\nexample.org\n"),
    ];
    let told = error(&inner);
    assert!(
        told.starts_with("bad.txt:4: sets: found \"example.org\", expected an address"),
        "{told}"
    );
    let names: Vec<(String, String)> = (0..9)
        .map(|number| {
            (format!("{number}.toml"), format!("[[include]]\nfile = \"{}.toml\"\n", number + 1))
        })
        .collect();
    let names: Vec<(&str, &str)> = names.iter().map(|(name, text)| (&**name, &**text)).collect();
    assert_eq!(
        error(&names),
        "7.toml:1: include: more than 8 files inside each other; include the files from one place"
    );
}

#[test]
fn sizes_have_bounds() {
    let ports: Vec<String> = (0..2000).map(|port| (port * 2).to_string()).collect();
    let text =
        format!("[[rule]]\nsource_port = [{0}]\ndestination_port = [{0}]\n", ports.join(","));
    assert_eq!(
        error(&[("r.toml", &text)]),
        "r.toml:1: the rule has 8000000 combinations of prefixes and ports, 1048576 at most; use \
         fewer ports, or several rules"
    );
}

#[test]
fn an_interface_is_one_of_those_that_there_are() {
    let file = [("r.toml", "[[rule]]\nin_port = \"eth1\"\n[[rule]]\nin_port = \"eth0\"\n")];
    let free = ran(&file, &[]).unwrap().set;
    assert_eq!(free.interfaces, ["eth1", "eth0"]);
    assert_eq!([free.v4[0].in_port, free.v6[1].in_port], [1, 2]);
    let known = ["wan".to_owned(), "eth0".to_owned()];
    let told = ran(&file, &known).unwrap_err();
    assert_eq!(told, "r.toml:1: in_port: there is no interface \"eth1\"; there are wan, eth0");
}

#[test]
fn one_rule_is_added_or_nothing_changes() {
    let mut rules = RuleSet::default();
    let rule = parse_one(
        &mut rules,
        "name = \"x\", source = \"10.0.0.0/8\", drop = true",
        "command",
        RuleSet::named,
    )
    .unwrap();
    assert_eq!((rule, rules.filters()), (0, 1));
    assert_eq!(rules.place_of(&rules.rules[0]), "command");
    for (text, expected) in [
        ("name = \"x\"", "command: a rule named \"x\" is already at command; give it another name"),
        ("sorce = \"::\"", "command: unknown key \"sorce\"; did you mean source?"),
        (
            "in_port = \"a\", source = \"::\", destination = \"10.0.0.1\"",
            "command: source is IPv6, destination is IPv4: no packet has both; write prefixes of \
             one family",
        ),
        (
            "source = \"@x\"",
            "command: source: there is no set \"x\"; name it under [sets], in this file or one \
             that is read before",
        ),
    ] {
        assert_eq!(
            parse_one(&mut rules, text, "command", RuleSet::named).unwrap_err().to_string(),
            expected
        );
    }
    for text in ["drop = true }\n[[rule]", "drop = true\n[[rule]]", "}", "drop", "\""] {
        assert!(parse_one(&mut rules, text, "command", RuleSet::named).is_err(), "{text}");
    }
    assert_eq!((rules.rules.len(), rules.interfaces.len(), rules.files.len()), (1, 0, 1));
}
