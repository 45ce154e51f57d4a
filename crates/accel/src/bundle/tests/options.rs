//! What a bundle may leave out: depths, context, ports, hosts and target.

use super::*;

const HOSTS: &str = "[hosts]\nflows = 20\nmin_flows = 3\nconfidence = 0.75\n";
const CONFUSION: &str = "[[hosts.confusions]]\nnamed = \"TLS\"\nlabel = \"DNS\"\nshare = 0.6\n";
const PORT: &str = "[[ports]]\nprotocol = \"udp\"\nport = 53\nlabel = \"DNS\"\nprecision = 0.995\n";

/// The manifest with these lines before its tables, and with these tables at its end.
fn with(lines: &str, tables: &str) -> String {
    manifest().replacen("k = 3", &format!("k = 3\n{lines}"), 1) + tables
}

fn opened(manifest: &str) -> Bundle {
    let dir = bundle_with("model.toml", manifest.as_bytes());
    Bundle::open(dir.path()).unwrap()
}

fn lines_refused(lines: &str, tables: &str, parts: &[&str]) {
    file_refused("model.toml", with(lines, tables).as_bytes(), parts);
}

#[test]
fn a_bundle_without_depths_answers_once() {
    let bundle = opened(&manifest());
    let depth = Depth { elements: 3, confidence: 0.0, contradiction: None };
    assert_eq!(bundle.depths(), [depth]);
}

#[test]
fn depths_have_a_confidence_each() {
    let bundle = opened(&with("depths = [1, 3]\nconfidence = [0.75, 1]", ""));
    let depths = bundle.depths().iter();
    let depths: Vec<_> = depths.map(|it| (it.elements, it.confidence)).collect();
    assert_eq!(depths, [(1, 0.75), (3, 1.0)]);
    let bundle = opened(&with("depths = [3]\nconfidence = [0.5]", ""));
    assert_eq!(bundle.depths().len(), 1);
}

#[test]
fn a_model_may_be_asked_at_some_of_its_depths() {
    let depths = with("depths = [1, 2, 3]\nconfidence = [0.75, 0.5, 1]", "");
    let at = |depths_asked: &[usize]| {
        let bundle = opened(&depths).at_depths(depths_asked)?;
        let depths = bundle.depths().iter();
        Ok(depths.map(|it| (it.elements, it.confidence)).collect())
    };
    assert_eq!(at(&[]), Ok(vec![(1, 0.75), (2, 0.5), (3, 1.0)]));
    assert_eq!(at(&[1, 3]), Ok(vec![(1, 0.75), (3, 1.0)]));
    assert_eq!(at(&[3]), Ok(vec![(3, 1.0)]));
    assert_eq!(at(&[1]), Ok(vec![(1, 0.75)]));
    for wrong in [&[4][..], &[2, 4], &[0, 3]] {
        let refused: NoSuchDepths = at(wrong).unwrap_err();
        assert_eq!(refused.depths, [1, 2, 3], "{wrong:?}");
    }
}

#[test]
fn answers_may_contradict_ports_at_each_depth() {
    let depths = "depths = [1, 3]\nconfidence = [0.75, 0.5]\n";
    let bundle = opened(&with(depths, PORT));
    assert!(!bundle.is_ports_first() && bundle.port(17, 53).is_some());
    let bundle = opened(&with(&format!("{depths}contradiction = [1.0, 0.9]"), PORT));
    assert!(bundle.is_ports_first() && bundle.port(6, 53).is_none());
    let at = bundle.depths().iter().map(|depth| depth.contradiction);
    assert_eq!(at.collect::<Vec<_>>(), [Some(1.0), Some(0.9)]);
    for (lines, parts) in [
        ("contradiction = [0.9]", &["contradiction is given without depths"][..]),
        (
            &format!("{depths}contradiction = [0.9]"),
            &["contradiction has 1 entries", "must have 2"],
        ),
        (
            &format!("{depths}contradiction = [0.9, 1.5]"),
            &["contradiction[1] is 1.5", "must be 0 to 1"],
        ),
    ] {
        lines_refused(lines, PORT, parts);
    }
}

#[test]
fn depths_that_are_refused() {
    let refused = |depths: &str, confidence: &str, parts: &[&str]| {
        let lines = format!("depths = {depths}\nconfidence = {confidence}");
        lines_refused(&lines, "", parts);
    };
    for (depths, entries) in [("[]", "0 entries"), ("[-3, -2, -1, 0, 1, 2, 3]", "7 entries")] {
        refused(depths, "[]", &["depths has", entries, "1 to 6"]);
    }
    for depths in ["[3, 1]", "[1, 1, 3]", "[0, 3]", "[-1, 3]"] {
        refused(depths, "[0.5, 0.5]", &["depths is", depths, "rise from 1"]);
    }
    for depths in ["[1, 2]", "[1, 4]", "[1, 9223372036854775807]"] {
        let parts = ["depths is", depths, "must end with k, which is 3"];
        refused(depths, "[0.5, 0.5]", &parts);
    }
    refused("[1, 3]", "[0.5]", &["confidence has 1 entries", "must have 2"]);
    for bad in ["-0.1", "1.01", "nan"] {
        let parts = ["confidence[1] is", "must be 0 to 1"];
        refused("[1, 3]", &format!("[0.5, {bad}]"), &parts);
    }
    refused("3", "[0.5]", &[":7:", "invalid type"]);
    lines_refused("depths = [1, 3]", "", &["confidence is missing", "depths"]);
    lines_refused(
        "confidence = [0.5]",
        "",
        &["confidence is given without depths", "min_confidence"],
    );
}

const CONTEXT_INPUT: &str = "[context_input]\nname = \"flow\"\n";

#[test]
fn a_bundle_without_context_has_one_input() {
    let bundle = opened(&manifest());
    assert!(bundle.context().is_empty());
    assert_eq!(bundle.context_input_name(), None);
    assert_eq!(bundle.golden().contexts, [[0.0_f32; 0], []]);
}

#[test]
fn a_golden_row_ends_with_its_context() {
    let text = with("context = [\"server_port\", \"protocol\"]", CONTEXT_INPUT);
    let dir = bundle_with("model.toml", text.as_bytes());
    refused(
        dir.path(),
        &["inputs.csv:1: 3 numbers", "asks for 5 (channels × K, then the context)"],
    );
    let inputs = "100,-200,0,443,6\n1,2,3,53,17\n";
    fs::write(dir.path().join("golden/inputs.csv"), inputs).unwrap();
    let bundle = Bundle::open(dir.path()).unwrap();
    assert_eq!(bundle.context(), ["server_port", "protocol"]);
    assert_eq!(bundle.context_input_name(), Some("flow"));
    let shape = bundle.shape();
    assert_eq!((shape.row_len(), shape.context), (3, 2));
    let golden = bundle.golden();
    assert_eq!(golden.inputs, [[100.0, -200.0, 0.0], [1.0, 2.0, 3.0]]);
    assert_eq!(golden.contexts, [[443.0, 6.0], [53.0, 17.0]]);
}

#[test]
fn a_context_that_is_refused() {
    let refused = |context: &str, parts: &[&str]| {
        lines_refused(&format!("context = {context}"), CONTEXT_INPUT, parts);
    };
    refused("[]", &["context is empty", "protocol", "left out"]);
    refused("[\"client_port\"]", &["context asks for \"client_port\"", "server_port"]);
    refused("[\"protocol\", \"protocol\"]", &["context names \"protocol\" twice"]);
    let lines = "context = [\"protocol\"]";
    lines_refused(lines, "", &["context_input is missing", "context needs it"]);
    lines_refused("", CONTEXT_INPUT, &["context_input is given without context", "remove it"]);
    lines_refused(
        lines,
        "[context_input]\nname = \"series\"\n",
        &["context_input.name is \"series\"", "input.name"],
    );
    lines_refused(lines, "[context_input]\nname = \"\"\n", &["context_input.name is \"\""]);
    lines_refused(lines, "[context_input]\ndtype = 1\n", &["unknown field `dtype`"]);
}

#[test]
fn ports_have_a_label_each() {
    assert!(opened(&manifest()).ports().is_empty());
    let tcp = PORT.replace("udp", "tcp").replace("DNS", "TLS").replace("0.995", "0");
    let bundle = opened(&with("", &format!("{PORT}{tcp}")));
    let expected = [(17, 1, 0.995), (6, 0, 0.0)].map(|(protocol, label, precision)| PortLabel {
        protocol,
        port: 53,
        label,
        precision,
    });
    assert_eq!(bundle.ports(), expected);
}

#[test]
fn ports_that_are_refused() {
    let refused = |from: &str, to: &str, parts: &[&str]| {
        assert!(PORT.contains(from), "{from:?} is in the entry");
        lines_refused("", &PORT.replace(from, to), parts);
    };
    refused("udp", "sctp", &["ports[0].protocol is \"sctp\"", "\"tcp\" or \"udp\""]);
    for port in ["0", "-1", "65536", "9223372036854775807"] {
        let parts = [&*format!("ports[0].port is {port}"), "1 to 65535"];
        refused("53", port, &parts);
    }
    refused("53", "\"53\"", &["invalid type"]);
    refused("DNS", "QUIC", &["ports[0].label is \"QUIC\"", "one of [[labels]]"]);
    refused("DNS", "unknown", &["ports[0].label is \"unknown\"", "name a label"]);
    for precision in ["-0.5", "1.5", "nan"] {
        let parts = ["ports[0].precision is", "0 to 1"];
        refused("0.995", precision, &parts);
    }
    refused("precision = 0.995", "", &["missing field `precision`"]);
    refused("port = 53", "port = 53\nname = \"x\"", &["unknown field `name`"]);
    lines_refused("", &format!("{PORT}{PORT}"), &["ports[1] names udp port 53", "earlier entry"]);
}

#[test]
fn hosts_are_named_only_where_the_bundle_asks_for_it() {
    assert_eq!(opened(&manifest()).hosts(), None);
    let expected = HostLabels { flows: 20, min_flows: 3, confidence: 0.75, confusions: Vec::new() };
    assert_eq!(opened(&with("", HOSTS)).hosts(), Some(&expected));
    let bundle = opened(&with("", &format!("{HOSTS}{CONFUSION}")));
    let expected =
        HostLabels { confusions: vec![Confusion { named: 0, label: 1, share: 0.6 }], ..expected };
    assert_eq!(bundle.hosts(), Some(&expected));
}

#[test]
fn confusions_that_are_refused() {
    let both = |confusions: &str, parts: &[&str]| {
        lines_refused("", &format!("{HOSTS}{confusions}"), parts);
    };
    let refused = |from: &str, to: &str, parts: &[&str]| {
        assert!(CONFUSION.contains(from), "{from:?} is in the entry");
        both(&CONFUSION.replace(from, to), parts);
    };
    for name in ["QUIC", "unknown"] {
        let named = ["hosts.confusions[0].named is", name, "one of [[labels]]"];
        refused("TLS", name, &named);
        let label = ["hosts.confusions[0].label is", name, "one of [[labels]]"];
        refused("DNS", name, &label);
    }
    refused("DNS", "TLS", &["label is \"TLS\"", "name another"]);
    for share in ["-0.5", "1.5", "nan"] {
        refused("0.6", share, &["hosts.confusions[0].share is", "0 to 1"]);
    }
    refused("share = 0.6", "", &["missing field `share`"]);
    refused("share", "part", &["unknown field `part`"]);
    let twice = ["hosts.confusions[1] has the labels of an earlier entry"];
    both(&format!("{CONFUSION}{CONFUSION}"), &twice);
}

#[test]
fn hosts_that_are_refused() {
    let refused = |from: &str, to: &str, parts: &[&str]| {
        assert!(HOSTS.contains(from), "{from:?} is in the table");
        lines_refused("", &HOSTS.replacen(from, to, 1), parts);
    };
    for flows in ["0", "-1", "257", "9223372036854775807"] {
        let parts = [&*format!("hosts.flows is {flows}"), "1 to 256 flows"];
        refused("20", flows, &parts);
    }
    for min_flows in ["0", "-1", "21"] {
        let found = format!("hosts.min_flows is {min_flows}");
        let parts = [&*found, "1 to hosts.flows, which is 20"];
        refused("min_flows = 3", &format!("min_flows = {min_flows}"), &parts);
    }
    for confidence in ["-0.5", "1.5", "nan"] {
        refused("0.75", confidence, &["hosts.confidence is", "0 to 1"]);
    }
    for key in ["flows = 20\n", "min_flows = 3\n", "confidence = 0.75\n"] {
        refused(key, "", &["missing field"]);
    }
    refused("flows = 20", "flows = 2.5", &["invalid type"]);
    refused("[hosts]", "[hosts]\nlabel = 1", &["unknown field `label`"]);
}

const TARGET: &str = "[target]\nof = \"volume\"\nedges = [10000]\n";

#[test]
fn labels_may_be_bands_of_what_a_flow_will_do() {
    assert_eq!(opened(&manifest()).target(), None);
    let target = Target { of: "volume".to_owned(), edges: vec![10_000] };
    assert_eq!(opened(&with("", TARGET)).target(), Some(&target));
    let unknown = format!("[[labels]]\nname = \"unknown\"\ntaxonomy = \"none\"\n{TARGET}");
    for (tables, parts) in [
        (TARGET.replace("volume", "weight"), &["target.of is \"weight\"", "\"rate\""][..]),
        (TARGET.replace("10000", ""), &["target.edges has 0 entries, but must have 1 to 15"]),
        (TARGET.replace("10000", "5, 5"), &["target.edges is [5, 5]", "rise from 1"]),
        (TARGET.replace("10000", "0, 5"), &["target.edges is [0, 5]", "rise from 1"]),
        (TARGET.replace("10000", "1, 5"), &["target.edges needs 3 labels", "there are 2"]),
        (TARGET.replace("10000]", "1]\nunit = 3"), &["unknown field `unit`"]),
        (unknown, &["target is given with a label \"unknown\""]),
        (format!("{PORT}{TARGET}"), &["target is given with ports"]),
        (format!("{HOSTS}{TARGET}"), &["target is given with hosts"]),
    ] {
        lines_refused("", &tables, parts);
    }
}
