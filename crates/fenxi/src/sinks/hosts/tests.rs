//! What hosts are called as flows get their labels.

use std::net::IpAddr;
use std::num::NonZeroUsize;

use accel::HostLabels;
use flowmgr::record::{DecidedBy, Decision, EndReason, FlowName, FlowRecord, LabelRecord, Record};
use flowmgr::{Counts, TaskId};

use super::*;

const LABELS: usize = 4;

fn hosts(flows: usize, min_flows: usize, confidence: f32, most: usize) -> SharedHosts {
    let rules = HostLabels { flows, min_flows, confidence, confusions: Vec::new() };
    SharedHosts::new(&rules, LABELS, &[], NonZeroUsize::new(most).unwrap())
}

fn flow(host: u8) -> FlowName {
    FlowName {
        flow_id: 0,
        protocol: 6,
        source: ([10, 0, 0, host].into(), 1),
        destination: ([203, 0, 113, 1].into(), 443),
        first_us: 0,
    }
}

fn decision(class: u16, confidence: f64) -> Decision {
    Decision {
        contradicts: None,
        class,
        confidence: (confidence * f64::from(u16::MAX)) as u16,
        decided_by: DecidedBy::Model,
        depth: 3,
        model: 0,
        time_to_label_us: Some(0),
        truth: None,
    }
}

fn label(host: u8, decision: Decision) -> Record {
    Record::Label(LabelRecord { flow: flow(host), task: TaskId::FIRST, time_us: 7, decision })
}

fn ended(host: u8, reason: EndReason, decision: Option<Decision>) -> Record {
    Record::Flow(FlowRecord {
        flow: flow(host),
        last_us: 9,
        midstream: false,
        counts: Counts::default(),
        reason,
        is_half_open: false,
        decisions: std::array::from_fn(|task| decision.filter(|_| task == 0)),
        series: None,
        rule: None,
        behaviour: flowmgr::Behaviour::None,
        headers: Default::default(),
        measured: None,
    })
}

fn states(hosts: &SharedHosts) -> Vec<table::HostState> {
    hosts.lock().states().collect()
}

fn class_of(named: Option<HostRecord>) -> Option<u16> {
    named.map(|host| host.class)
}

#[test]
fn a_host_is_named_by_enough_flows_that_are_sure_enough() {
    let hosts = hosts(20, 2, 0.9, 10);
    let sure = label(1, decision(2, 0.95));
    assert_eq!(hosts.take(&sure), None, "one flow");
    let named = hosts.take(&sure).unwrap();
    let address: IpAddr = [10, 0, 0, 1].into();
    assert_eq!((named.address, named.class), (address, 2));
    assert_eq!((named.flows, named.time_us, named.model), (2, 7, 0));
    assert!(named.confidence > 0.99, "{}", named.confidence);
    assert_eq!(hosts.take(&sure), None, "the name is the same");
    assert_eq!(hosts.lock().sums().named, [0, 0, 1, 0]);
    // Another host, of which nothing is likely enough yet.
    for class in [0, 1] {
        assert_eq!(hosts.take(&label(2, decision(class, 0.6))), None);
    }
    assert_eq!(class_of(hosts.take(&label(2, decision(1, 0.9)))), Some(1));
    assert_eq!(hosts.lock().sums().tracked, 2);
}

#[test]
fn a_name_changes_with_what_later_flows_say() {
    let hosts = hosts(20, 1, 0.9, 10);
    assert_eq!(class_of(hosts.take(&label(1, decision(0, 0.92)))), Some(0));
    let other = label(1, decision(3, 0.95));
    assert_eq!(hosts.take(&other), None, "neither is likely enough");
    let states = states(&hosts);
    let (class, confidence) = states[0].name.unwrap();
    assert!(class == 0 && confidence < 0.5, "it keeps its name: {confidence}");
    assert_eq!(class_of(hosts.take(&other)), Some(3));
    assert_eq!(hosts.lock().sums().named, [0, 0, 0, 1]);
}

#[test]
fn only_the_first_flows_count() {
    let hosts = hosts(2, 1, 0.9, 10);
    for _ in 0..2 {
        hosts.take(&label(1, decision(0, 0.95)));
    }
    for _ in 0..9 {
        assert_eq!(hosts.take(&label(1, decision(1, 1.0))), None);
    }
    let sums = hosts.lock().sums();
    assert_eq!((sums.counted, sums.beyond), (2, 9));
    assert_eq!(states(&hosts)[0].flows, 2);
}

#[test]
fn a_label_counts_once_and_unknown_never() {
    let hosts = hosts(20, 1, 0.5, 10);
    let said = Some(decision(1, 0.9));
    let late = Some(Decision { time_to_label_us: None, ..decision(1, 0.9) });
    let unknown = label(1, decision(LABELS as u16, 1.0));
    let other_task = Record::Label(LabelRecord {
        flow: flow(1),
        task: TaskId(1),
        time_us: 7,
        decision: decision(1, 0.9),
    });
    for nothing in [
        ended(1, EndReason::Fin, None),
        ended(1, EndReason::Fin, said),
        ended(1, EndReason::Active, late),
        unknown,
        other_task,
    ] {
        assert_eq!(hosts.take(&nothing), None, "{nothing:?}");
    }
    assert_eq!(hosts.lock().sums().counted, 0);
    let named = hosts.take(&ended(1, EndReason::Fin, late)).unwrap();
    assert_eq!((named.class, named.time_us), (1, 9));
}

#[test]
fn a_later_model_restarts_all_sums_and_an_earlier_one_does_not_count() {
    let hosts = hosts(20, 1, 0.9, 10);
    let by = |model, class| {
        let decision = Decision { model, ..decision(class, 0.95) };
        label(1, decision)
    };
    assert_eq!(class_of(hosts.take(&by(0, 0))), Some(0));
    hosts.take(&label(2, decision(1, 0.95)));
    let named = hosts.take(&by(1, 2)).unwrap();
    assert_eq!((named.class, named.flows, named.model), (2, 1, 1));
    assert_eq!(hosts.lock().sums().named, [0, 0, 1, 0]);
    assert_eq!(hosts.take(&by(0, 0)), None);
    // Which model a port's label belongs to does not matter.
    let port = Decision { decided_by: DecidedBy::Port, time_to_label_us: None, ..decision(2, 1.0) };
    hosts.take(&ended(1, EndReason::Fin, Some(port)));
    assert_eq!(states(&hosts)[0].flows, 2);
    // Generations wrap.
    for model in [100, 200, 255, 0] {
        hosts.take(&by(model, 3));
        assert_eq!(states(&hosts)[0].flows, 1, "{model}");
    }
}

#[test]
fn the_host_with_the_oldest_label_makes_room() {
    let hosts = hosts(20, 1, 0.9, 2);
    for host in [1, 2, 1, 3] {
        hosts.take(&label(host, decision(0, 0.95)));
    }
    let states = states(&hosts);
    let kept: Vec<IpAddr> = states.iter().map(|host| host.address).collect();
    assert_eq!(kept, [[10, 0, 0, 3], [10, 0, 0, 1]].map(IpAddr::from));
    let sums = hosts.lock().sums();
    assert_eq!((sums.tracked, sums.evicted), (2, 1));
    assert_eq!(sums.named, [2, 0, 0, 0]);
}
