//! Tasks against the shipped models and the models of the tests.

use std::path::Path;

use super::*;
use crate::opening::bundle::open_bundles;

/// Tasks named a, b and so on, each with a model and these settings.
fn checked(tasks: &[(&str, &[&str])], sets: &[&str]) -> Result<(), Error> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut all: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    for (name, (model, sets)) in ('a'..='z').zip(tasks) {
        all.push(format!("task.{name}.model={}", root.join(model).display()));
        all.extend(sets.iter().map(|set| format!("task.{name}.{set}")));
    }
    let config = Config::load(None, &all).expect("a configuration");
    check_tasks(&config, &open_bundles(&config)?)
}

fn refused(tasks: &[(&str, &[&str])], sets: &[&str]) -> String {
    checked(tasks, sets).expect_err("it is wrong").to_string()
}

const APP: &str = "models/app-id-k10";
const DATA: &str = "tests/bundles/data-k3";
const DEVICE: &str = "models/iot-family";

#[test]
fn labels_and_taxonomies_may_be_named() {
    let when = "when=b.label = TLS, web, unknown and b.label != QUIC";
    let marks = ["mark={ TLS = 0x1, web = 0x2 }", "dscp={ voip = \"EF\" }"];
    checked(&[(DATA, &[when]), (APP, &marks)], &["io.mode=mark"]).unwrap();
}

#[test]
fn labels_that_the_model_lacks_are_named_with_what_it_has() {
    let when = refused(&[(APP, &[]), (DATA, &["when=a.label != TLS, vidoe"])], &[]);
    let start = "--set: task.b.when: a.label != TLS, vidoe: the model app-id-k10 of task a has no \
        label \"vidoe\", and no \
                 taxonomy of that name; it has ETHEREUM (crypto), ";
    assert!(when.starts_with(start), "{when}");
    let mark = [(DATA, &[][..]), (APP, &["mark={ TSL = 0x1 }"])];
    let refused_mark = refused(&mark, &["io.mode=mark"]);
    let start = "--set: task.b.mark: the model app-id-k10 has no label \"TSL\"";
    assert!(refused_mark.starts_with(start), "{refused_mark}");
    // Nothing writes marks in other modes, as with [mark].
    checked(&mark, &[]).unwrap();
    let dscp = refused(&[(DATA, &[]), (APP, &["dscp={ TSL = 1 }"])], &[]);
    let start = "--set: task.b.dscp: the model app-id-k10 has no label \"TSL\"";
    assert!(dscp.starts_with(start), "{dscp}");
}

/// A name may be a label or the taxonomy of one, which only the model tells.
#[test]
fn labels_that_no_flow_has_together_are_refused() {
    let with = |when: &str| {
        let when = format!("when={when}");
        checked(&[(APP, &[]), (DATA, &[&when])], &[])
    };
    with("a.label = web and a.label = TLS").unwrap();
    with("a.label != web and a.label != TLS").unwrap();
    for when in ["a.label = \"\"", "a.label != \"\""] {
        let refused = with(when).unwrap_err().to_string();
        assert!(refused.contains("of task a has no label \"\", and no"), "{refused}");
    }
    let long = with(&format!("a.label = {}", "w".repeat(500))).unwrap_err();
    assert!(long.to_string().matches('w').count() < 200, "{long}");
    for when in ["a.label = voip and a.label = TLS", "a.label = TLS and a.label != web"] {
        let refused = with(when).unwrap_err().to_string();
        let says = format!(
            "task.b.when: {when} never hold together: no label of the model app-id-k10 satisfies"
        );
        assert!(refused.contains(&says), "{refused}");
    }
}

/// A task is asked only about flows about which those before it were asked.
#[test]
fn labels_that_a_chain_of_tasks_excludes_are_refused() {
    let chain = |last: &str| {
        let tasks = [(APP, &[][..]), (DATA, &["when=a.label = TLS"][..]), (DATA, &[last][..])];
        checked(&tasks, &[])
    };
    chain("when=b.confidence <= 1 and a.label = web").unwrap();
    let refused = chain("when=b.confidence <= 1 and a.label = HTTP").unwrap_err();
    let says = "task.c.when: a.label = HTTP and a.label = TLS (of task b) never hold together: no \
        label of the model app-id-k10";
    assert!(refused.to_string().contains(says), "{refused}");
}

#[test]
fn a_model_that_is_missing_is_that_of_a_task() {
    let refused = refused(&[(APP, &[]), ("models/nosuch", &[])], &[]);
    assert!(refused.starts_with("--set: task.b.model: "), "{refused}");
    assert!(refused.contains("models/nosuch: no such folder"), "{refused}");
}

#[test]
fn depths_count_as_tasks() {
    let all = [(DEVICE, &[][..]), ("models/protocol", &[]), (APP, &[])];
    let refused = refused(&all, &[]);
    let says = "--set: task.b.depths: the tasks have 11 depths together, and at most 8 are \
        supported: a (5), b (5), c (1); name fewer \
                with task.NAME.depths";
    assert!(refused.starts_with(says), "{refused}");
    let fewer = [(DEVICE, &["depths=[2, 10]"][..]), ("models/protocol", &[]), (APP, &[])];
    checked(&fewer, &[]).unwrap();
}

/// `flow.k` is the most that any model gets.
#[test]
fn of_several_models_none_wants_more_than_flow_k() {
    let two = [(DATA, &[][..]), (APP, &[])];
    checked(&two, &[]).unwrap();
    checked(&two, &["flow.k=12"]).unwrap();
    let refused = refused(&two, &["flow.k=5"]);
    assert!(
        refused.starts_with(
            "--set: flow.k = 5: task b (model app-id-k10) wants k = 10 packets; \
            set flow.k = 10, or take"
        ),
        "{refused}"
    );
    checked(&[(DATA, &[]), (DATA, &[])], &["flow.k=5"]).unwrap();
    // What is asked for counts, and not what the model could take.
    let early = (DEVICE, &["depths=[2, 3]"][..]);
    checked(&[early, (DATA, &[])], &["flow.k=5"]).unwrap();
}
