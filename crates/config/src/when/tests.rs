//! From texts to terms and back, and which terms contradict each other.

use proptest::prelude::*;

use super::never::{Needed, contradiction};
use super::*;

fn parsed(text: &str) -> When<String> {
    When::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_text_becomes_its_terms() {
    let when = parsed(
        "protocol=tcp,udp and port = 443, 8000-8100 and in_port = 'eth0' and direction = out and \
         rule != \"a \"\"b\"\"\", c \
         and sample = .5 and app.label = \"video\" and other-1.confidence >= 0.9",
    );
    let one = Ports::one(443);
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let terms = [
        Term::Protocol(vec![Protocol::Tcp, Protocol::Udp]),
        Term::Port(vec![one, Ports { first: 8000, last: 8100 }]),
        Term::InPort(names(&["eth0"])),
        Term::Direction(vec![Direction::Out]),
        Term::Rule(Choice { is_one: false, names: names(&["a \"b\"", "c"]) }),
        Term::Sample(0.5),
        Term::Label {
            task: "app".to_owned(),
            labels: Choice { is_one: true, names: names(&["video"]) },
        },
        Term::Confidence {
            task: "other-1".to_owned(),
            comparison: Comparison::AtLeast,
            bound: 0.9,
        },
    ];
    assert_eq!(when.terms, terms);
    assert_eq!(
        when.to_string(),
        "protocol = tcp, udp and port = 443, 8000-8100 and in_port = eth0 and direction = out and \
         rule != \"a \"\"b\"\"\", c \
         and sample = 0.5 and app.label = video and other-1.confidence >= 0.9"
    );
    assert_eq!(when.tasks().collect::<Vec<_>>(), ["app", "other-1"]);
    assert!(parsed(" \n").is_always() && !when.is_always());
}

#[test]
fn words_that_mean_something_else_stand_in_quotes() {
    for name in ["and", "", "a b", "a,b", "a=b", "it's", "\"", " "] {
        let when = When { terms: vec![Term::<String>::InPort(vec![name.to_owned()])] };
        assert_eq!(parsed(&when.to_string()), when, "{name:?}");
    }
    assert_eq!(parsed("and.label = x").tasks().collect::<Vec<_>>(), ["and"]);
}

#[test]
fn each_wrong_text_gets_its_term_and_a_cure() {
    for (text, says) in [
        ("protocol = tpc", "protocol = tpc: found tpc, expected tcp or udp"),
        ("protocol = icmp", "expected tcp or udp"),
        (
            "protocl = tcp",
            "protocl = tcp: unknown protocl; expected protocol, port, in_port, vlan, direction, \
             rule, sample, TASK.label or TASK.confidence; did you mean protocol?",
        ),
        ("interface = eth0", "did you mean in_port?"),
        ("label = video", "did you mean TASK.label?"),
        ("app.lable = video", "write app.label or app.confidence; did you mean label?"),
        (".label = video", "write .label or .confidence"),
        ("protocol != tcp", "protocol != tcp: found !=, expected = after protocol"),
        ("app.label < video", "found <, expected = or != after app.label"),
        ("app.confidence = 1", "found =, expected <, <=, >= or > after app.confidence"),
        ("app.confidence => 1", "found =>, expected <"),
        ("app.confidence < 1.5", "found 1.5, expected a number from 0 to 1"),
        ("app.confidence < nan", "found nan, expected a number"),
        ("app.confidence < +1", "found +1, expected a number"),
        ("app.confidence < 0.1, 0.2", "found 2 values, expected one"),
        ("sample = 10%", "found 10%, expected a number from 0 to 1"),
        ("port = http", "found http, expected a port from 0 to 65535"),
        ("port = 70000", "found 70000, expected a port"),
        ("port = 90-80", "found 90-80, expected a port"),
        ("port = -80", "found -80, expected a port"),
        ("direction = outt", "found outt, expected out, in, inside or outside; did you mean out?"),
        ("protocol", "protocol: expected = after protocol"),
        ("protocol =", "protocol =: the value is missing"),
        ("protocol = tcp,", "expected a value on both sides of each comma"),
        ("protocol = ,tcp", "expected a value on both sides of each comma"),
        (
            "rule = big downloads",
            "found downloads after a value, expected a comma or \"and\"; put a value with spaces \
             in quotes",
        ),
        ("rule = \"big downloads", "a \" is missing at the end of a value"),
        ("protocol = tcp and", "protocol = tcp and: expected a term on both sides of \"and\""),
        ("and", "expected a term on both sides"),
        ("port = 1 or port = 2", "found or after a value"),
        ("= 3", "= 3: expected protocol, port,"),
        ("protocol = 'a\nb'", "protocol = 'a b': found a b, expected tcp or udp"),
    ] {
        let error = When::parse(text).expect_err(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let long = format!("rule = {}", "a ".repeat(1000));
    assert!(When::parse(&long).unwrap_err().to_string().len() < 250);
    let word = "w".repeat(500);
    for text in [
        format!("{word} = x"),
        format!("{word}.lable = x"),
        format!("{word}.label < x"),
        format!("{word}.label"),
        format!("protocol = {word}"),
        format!("port = {word}"),
        format!("sample = {word}"),
        format!("rule = a {word}"),
        format!("rule {}", "=".repeat(500)),
    ] {
        let error = When::parse(&text).unwrap_err();
        assert!(error.why.contains("...") && error.why.len() < 300, "{error}");
    }
}

/// Positions of contradicting terms, where tasks have the numbers of their order.
fn never(text: &str) -> Option<Vec<usize>> {
    let tasks = ["a", "b"];
    let number = |_: &Term<String>, name: &String| {
        let number = tasks.iter().position(|task| task == name);
        number.ok_or_else(|| format!("{name} is no task"))
    };
    let when = parsed(text).try_map(number).expect(text);
    let terms = when.terms.iter().map(|term| Needed { task: 0, term });
    contradiction(&terms.collect::<Vec<_>>())
}

#[test]
fn what_can_never_hold_is_found() {
    for (text, positions) in [
        ("sample = 0", &[0][..]),
        ("sample = 0.5 and sample = 0.0", &[1]),
        ("protocol = tcp and protocol = udp", &[0, 1]),
        ("port = 80 and protocol = tcp and port = 443, 8000-8100", &[0, 2]),
        // Each two have something in common.
        ("port = 1, 2 and port = 2, 3 and port = 1, 3", &[0, 1, 2]),
        ("in_port = a and in_port = b", &[0, 1]),
        ("direction = out, in and direction = inside", &[0, 1]),
        ("rule = a and rule = b", &[0, 1]),
        ("rule = a and rule != b, a", &[0, 1]),
        ("rule = a, b and rule != a and rule != b", &[0, 1, 2]),
        ("a.label = x and a.label != x", &[0, 1]),
        ("a.confidence < 0", &[0]),
        ("a.confidence > 1", &[0]),
        ("a.confidence < 0.5 and a.confidence >= 0.9", &[0, 1]),
        ("a.confidence < 0.5 and a.confidence >= 0.5", &[0, 1]),
        ("a.confidence > 0.5 and a.confidence <= 0.5", &[0, 1]),
        // No label word has a confidence between the two.
        ("a.confidence > 0.5 and a.confidence < 0.500001", &[0, 1]),
        (
            "b.confidence <= 0.9 and a.confidence <= 0.5 and a.confidence <= 0.7 and a.confidence \
             > 0.6",
            &[1, 3],
        ),
    ] {
        assert_eq!(never(text).as_deref(), Some(positions), "{text}");
    }
}

#[test]
fn what_may_hold_is_left_alone() {
    for text in [
        "",
        "sample = 0.1 and sample = 0.2",
        "protocol = tcp, udp and protocol = udp",
        "port = 1-100 and port = 100-200",
        "rule = a, b and rule != a",
        "rule != a and rule != b",
        // One may be the taxonomy of the other.
        "a.label = x and a.label = y",
        "a.label = x and b.label != x",
        "a.label = x, y and a.label != x",
        "a.confidence <= 0",
        "a.confidence < 0.000001",
        "a.confidence > 0.999999",
        "a.confidence >= 1",
        "a.confidence >= 0.5 and a.confidence <= 0.5",
        "a.confidence < 0.5 and b.confidence >= 0.9",
    ] {
        assert_eq!(never(text), None, "{text}");
    }
}

#[test]
fn a_bound_parts_the_steps_of_confidences() {
    let step = (0.9_f32 * 65_535.0).round() as u16;
    let of = |comparison: Comparison| comparison.steps(0.9);
    assert_eq!(of(Comparison::Below), 0..=step - 1);
    assert_eq!(of(Comparison::AtMost), 0..=step);
    assert_eq!(of(Comparison::AtLeast), step..=u16::MAX);
    assert_eq!(of(Comparison::Above), step + 1..=u16::MAX);
    assert!(Comparison::Below.steps(0.0).is_empty());
    assert!(Comparison::Above.steps(1.0).is_empty());
    // A bound within the first or the last step leaves that step.
    assert_eq!(Comparison::Below.steps(0.000_001), 0..=0);
    let last = u16::MAX..=u16::MAX;
    assert_eq!(Comparison::Above.steps(0.999_999), last);
}

#[test]
fn confidences_and_directions_are_told_apart() {
    let holds = |name: &str| {
        let comparison = Comparison::parse(name).unwrap();
        [0.4, 0.5, 0.6].map(|confidence| comparison.holds(confidence, 0.5))
    };
    assert_eq!(holds("<"), [true, false, false]);
    assert_eq!(holds("<="), [true, true, false]);
    assert_eq!(holds(">="), [false, true, true]);
    assert_eq!(holds(">"), [false, false, true]);
    let of = |name: &str| Direction::parse(name).unwrap();
    assert_eq!(Direction::from_ends(true, false), of("out"));
    assert_eq!(Direction::from_ends(false, true), of("in"));
    assert_eq!(Direction::from_ends(true, true), of("inside"));
    assert_eq!(Direction::from_ends(false, false), of("outside"));
}

fn names() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![3 => "[a-z]{1,5}", 1 => "and|or", 2 => any::<String>()];
    prop::collection::vec(name, 1..4)
}

fn choices() -> impl Strategy<Value = Choice> {
    (any::<bool>(), names()).prop_map(|(is_one, names)| Choice { is_one, names })
}

fn terms() -> impl Strategy<Value = Term<String>> {
    let task = || "[A-Za-z0-9_-]{1,32}";
    let protocols = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let directions = prop_oneof![
        Just(Direction::Out),
        Just(Direction::In),
        Just(Direction::Inside),
        Just(Direction::Outside),
    ];
    let comparisons = prop_oneof![
        Just(Comparison::Below),
        Just(Comparison::AtMost),
        Just(Comparison::AtLeast),
        Just(Comparison::Above),
    ];
    let ports =
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Ports { first: a.min(b), last: a.max(b) });
    prop_oneof![
        prop::collection::vec(protocols, 1..3).prop_map(Term::Protocol),
        prop::collection::vec(ports, 1..4).prop_map(Term::Port),
        names().prop_map(Term::InPort),
        prop::collection::vec(directions, 1..4).prop_map(Term::Direction),
        choices().prop_map(Term::Rule),
        (0.0..=1.0f64).prop_map(Term::Sample),
        (task(), choices()).prop_map(|(task, labels)| Term::Label { task, labels }),
        (task(), comparisons, 0.0..=1.0f32)
            .prop_map(|(task, comparison, bound)| { Term::Confidence { task, comparison, bound } }),
    ]
}

/// Texts that come near to one that can be read.
fn near_texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("and"),
        Just("protocol"),
        Just("port"),
        Just("a.label"),
        Just("a.confidence"),
        Just("rule"),
        Just("="),
        Just("!="),
        Just("<"),
        Just(","),
        Just("\""),
        Just("'"),
        Just("0.5"),
        Just("tcp"),
        Just("8-9"),
        Just("."),
        Just("é"),
        Just("\n"),
        Just(""),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(terms in prop::collection::vec(terms(), 0..6)) {
        let when = When { terms };
        let text = when.to_string();
        prop_assert_eq!(When::parse(&text), Ok(when), "{}", text);
    }

    #[test]
    fn no_text_panics(text in prop_oneof![any::<String>(), near_texts()]) {
        match When::parse(&text) {
            Ok(when) => prop_assert_eq!(When::parse(&when.to_string()), Ok(when)),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }

    /// A condition that some confidence meets is not refused, and one that none meets is.
    #[test]
    fn confidences_contradict_each_other_where_none_meets_all(
        bounds in prop::collection::vec((0usize..4, 0u8..=4), 1..5),
    ) {
        let terms: Vec<Term> = bounds
            .iter()
            .map(|(comparison, quarters)| Term::Confidence {
                task: 0,
                comparison: Comparison::parse(Comparison::NAMES[*comparison]).unwrap(),
                bound: f32::from(*quarters) / 4.0,
            })
            .collect();
        let meets = |confidence: f32| terms.iter().all(|term| match term {
            Term::Confidence { comparison, bound, .. } => comparison.holds(confidence, *bound),
            _ => false,
        });
        // The bounds, and what lies between them.
        let some = (0u8..=8).any(|eighths| meets(f32::from(eighths) / 8.0));
        let needed: Vec<_> = terms.iter().map(|term| Needed { task: 0, term }).collect();
        prop_assert_eq!(contradiction(&needed).is_none(), some);
    }
}
