//! A recording may come from anybody: whatever is in it, it is replayed or refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event::Port;
use crate::event::tests::{device, event, file};

/// The header of a run with two flow managers, one analytics manager and two tasks, of which the
/// second comes after the first.
fn header() -> String {
    let settings = json!({
        "idle_timeout_s": 30, "closed_timeout_s": 5, "half_open_timeout_s": 0,
        "established_timeout_s": 0, "active_timeout_s": 0, "end_on_fin_rst": true,
        "dscp": [[null, 46, null], [46, null, null]],
    });
    let asked = |after: &[u8]| {
        json!({
            "protocols": [], "ports": [], "in_ports": [], "directions": ["out"], "sample": null,
            "by_rule": false, "after": after,
        })
    };
    let names = |name: &str| {
        json!({
            "name": name, "model": "m", "model_version": "1",
            "classes": ["one", "other", "unknown"],
        })
    };
    let task = |after: &[u8]| {
        json!({
            "unit": "packet", "features": ["signed_length"], "midstream": false, "classes": 3,
            "depths": [{"k": 10, "sure": 0, "contradicts": null}], "asked": asked(after),
            "ports": [],
            "target": null,
        })
    };
    let header = json!({
        "format": 13, "fenxi": "0.1.0", "started": "", "mode": "tap", "interfaces": [],
        "tasks": [names("first"), names("second")],
        "layout": "2:1:1", "instances": 1, "ring_slots": 64, "configuration": "",
        "flow": {
            "tasks": [task(&[]), task(&[0])], "inside": [],
            "flow_id_step": 2, "hash": {"keyed": {"seed": u64::MAX}}, "max_flows": 64,
            "buckets": 16,
            "settings": settings, "expects_counts": false, "behaviour": null,
        },
    });
    header.to_string()
}

/// The same event, of a manager that is there.
fn within(event: Event<'static>) -> Event<'static> {
    match event {
        Event::Burst { manager, now_ns, from, frames } => {
            Event::Burst { manager: manager % 2, now_ns, from, frames }
        }
        Event::Pass { manager, time_us } => Event::Pass { manager: manager % 2, time_us },
        Event::Settle { manager, now_ns, most } => {
            Event::Settle { manager: manager % 2, now_ns, most }
        }
        Event::Drain { manager } => Event::Drain { manager: manager % 2 },
        Event::Round { now_ns, drains, costs, calls, .. } => {
            Event::Round { manager: 0, now_ns, drains, costs, calls }
        }
        Event::Prepare { task, swap, .. } => Event::Prepare { manager: 0, task, swap },
        Event::Commit { task, .. } => Event::Commit { manager: 0, task },
        Event::Abort { task, .. } => Event::Abort { manager: 0, task },
        Event::Counted { counts, .. } => Event::Counted { who: Who::Flow(0), counts },
        other => other,
    }
}

fn replay_of(header: &str, events: &[u8]) -> Result<Report, RecordingError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(HEADER_FILE), header).unwrap();
    std::fs::write(dir.path().join(EVENTS_FILE), events).unwrap();
    replay(dir.path(), flowmgr::SeriesShare::NONE, &mut |_| {}).map(|(_, replayed)| replayed.report)
}

fn task(word: u8) -> TaskStart {
    let words = cring::TaskWords { first: 0, depths: vec![cring::Depth::PORT] };
    let test = analytics::Test::Confidence(0..=9);
    let need = (word > 0).then_some(analytics::Need { words, test });
    TaskStart {
        config: TaskConfig(analytics::Config {
            k: 10,
            features: vec![cring::Feature::SignedLength],
            context: Vec::new(),
            policy: analytics::Policy::None,
            cache: analytics::CacheConfig { prefix: 0, entries: 0, audit: 0.0 },
            probe: Vec::new(),
            word,
            priority: 0,
            after: analytics::After { needs: need.into_iter().collect() },
        }),
        devices: vec![device()],
    }
}

fn start() -> Event<'static> {
    Event::Start { manager: 0, tasks: vec![task(0), task(1)] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn events_in_any_order_are_replayed_or_refused(
        events in prop::collection::vec(event(), 0..30),
    ) {
        let events = events.into_iter().map(within);
        let events: Vec<Event<'_>> = [start()].into_iter().chain(events).collect();
        match replay_of(&header(), &file(&events)) {
            Ok(report) => prop_assert_eq!(report.events, events.len() as u64),
            Err(error) => prop_assert!(matches!(error, RecordingError::Damaged(_)), "{error}"),
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refused = |header: &str, events: &[Event<'_>]| {
        let error = replay_of(header, &file(events)).map(|_| ()).unwrap_err();
        assert!(matches!(error, RecordingError::Damaged(_)), "{error}");
        error.to_string()
    };
    let good = header();
    for (from, to, said) in [
        ("\"2:1:1\"", "\"2:1\"", "layout"),
        ("\"ring_slots\":64", "\"ring_slots\":65", "ring_slots"),
        ("\"one\",", "", "a task has no classes"),
        ("\"target\":null", "\"target\":{\"of\":\"Volume\",\"edges\":[1,2]}", "bands"),
        ("[null,46,null]", "[null,46]", "flow.settings"),
        ("[46,null,null]", "[46],[],[]", "flow.settings"),
        ("\"after\":[0]", "\"after\":[2]", "after"),
        (",\"name\":\"second\"", ",\"names\":\"second\"", "missing field"),
        ("\"max_flows\":64", "\"max_flows\":0", "max_flows"),
        ("\"format\":13", "\"format\":11", "fenxi 0.1.0"),
    ] {
        let header = good.replace(from, to);
        assert_ne!(header, good, "{from}");
        assert!(refused(&header, &[]).contains(said), "{said}");
    }
    let round =
        |calls| Event::Round { manager: 0, now_ns: 1, drains: false, costs: Vec::new(), calls };
    for (events, said) in [
        (vec![Event::Drain { manager: 2 }], "event 1, at byte 12: there is no flow manager 2"),
        (vec![round(Vec::new())], "analytics manager 0 has not started"),
        (vec![Event::Start { manager: 0, tasks: vec![task(0), task(2)] }], "label words"),
        (vec![start(), Event::Commit { manager: 0, task: 2 }], "analytics manager 0 has no task 2"),
        (
            vec![Event::Burst {
                manager: 0,
                now_ns: 1,
                from: Port::default(),
                frames: vec![Frame {
                    time_us: 1,
                    captured: 3,
                    wire: 3,
                    link: 1,
                    rss: None,
                    gso: 0,
                    kept: vec![0; 4].into(),
                }],
            }],
            "a frame of 3 bytes with 4 kept",
        ),
        (vec![start(), start()], "analytics manager 0 cannot start here"),
        (vec![start(), round(vec![Call::Results(vec![(3, 1.0)])])], "class 3, and there are 3"),
    ] {
        let text = refused(&good, &events);
        assert!(text.contains(said), "{text}");
    }
}

/// A recording without counters is no proof of anything.
#[test]
fn without_counters_nothing_is_the_same() {
    let report = replay_of(&header(), &file(&[start()])).unwrap();
    assert!(!report.same && report.first_difference.is_none());
    let who = Who::Flow(1);
    let counted = Event::Counted { who, counts: CountsByName::new() };
    assert!(replay_of(&header(), &file(&[start(), counted])).unwrap().same);
}
