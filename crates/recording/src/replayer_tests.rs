//! A recording may come from anybody: whatever is in it, it is replayed or refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event::tests::{event, file};

/// Of a run with two flow managers and one analytics manager.
fn header() -> String {
    let settings = json!({
        "idle_timeout_s": 30, "closed_timeout_s": 5, "half_open_timeout_s": 0, "established_timeout_s": 0,
        "active_timeout_s": 0, "end_on_fin_rst": true, "dscp": [null, 46, null],
    });
    let task = json!({
        "k": 10, "unit": "packet", "features": ["signed_length"], "midstream": false, "classes": 3, "sure": 0, "is_deeper": false,
    });
    let header = json!({
        "format": 8, "fenxi": "0.1.0", "started": "", "mode": "tap", "interfaces": [], "model": "m",
        "model_version": "1", "task": "default", "features": [], "classes": ["one", "other", "unknown"],
        "layout": "2:1:1", "instances": 1, "ring_slots": 64, "configuration": "",
        "flow": {
            "tasks": [task], "hash": {"keyed": {"seed": u64::MAX}}, "max_flows": 64, "buckets": 16,
            "settings": settings, "ports": [], "expects_counts": false, "behaviour": null,
        },
    });
    header.to_string()
}

/// The same event, of a manager that is there.
fn within(event: Event) -> Event {
    match event {
        Event::Burst {
            manager,
            now_ns,
            port,
            frames,
        } => Event::Burst {
            manager: manager % 2,
            now_ns,
            port,
            frames,
        },
        Event::Pass { manager, time_us } => Event::Pass {
            manager: manager % 2,
            time_us,
        },
        Event::Settle {
            manager,
            now_ns,
            most,
        } => Event::Settle {
            manager: manager % 2,
            now_ns,
            most,
        },
        Event::Drain { manager } => Event::Drain {
            manager: manager % 2,
        },
        Event::Round {
            now_ns,
            draining,
            costs,
            calls,
            ..
        } => Event::Round {
            manager: 0,
            now_ns,
            draining,
            costs,
            calls,
        },
        Event::Prepare { swap, .. } => Event::Prepare { manager: 0, swap },
        Event::Commit { .. } => Event::Commit { manager: 0 },
        Event::Abort { .. } => Event::Abort { manager: 0 },
        Event::Counted { counts, .. } => Event::Counted {
            who: Who::Flow(0),
            counts,
        },
        other => other,
    }
}

fn replay_of(header: &str, events: &[u8]) -> Result<Report, RecordingError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(HEADER_FILE), header).unwrap();
    std::fs::write(dir.path().join(EVENTS_FILE), events).unwrap();
    replay(dir.path(), flowmgr::SeriesShare::NONE, &mut |_| {}).map(|(_, replayed)| replayed.report)
}

fn start() -> Event {
    Event::Start {
        manager: 0,
        start: SeriesStart {
            config: SeriesConfig::unknown(10),
            devices: vec![DeviceFacts::unknown(10)],
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn events_in_any_order_are_replayed_or_refused(events in prop::collection::vec(event(), 0..30)) {
        let events: Vec<Event> = [start()].into_iter().chain(events.into_iter().map(within)).collect();
        match replay_of(&header(), &file(&events)) {
            Ok(report) => prop_assert_eq!(report.events, events.len() as u64),
            Err(error) => prop_assert!(matches!(error, RecordingError::Damaged(_)), "{error}"),
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refused = |header: &str, events: &[Event]| {
        let error = replay_of(header, &file(events)).map(|_| ()).unwrap_err();
        assert!(matches!(error, RecordingError::Damaged(_)), "{error}");
        error.to_string()
    };
    let good = header();
    for (from, to, said) in [
        ("\"2:1:1\"", "\"2:1\"", "layout"),
        ("\"ring_slots\":64", "\"ring_slots\":65", "ring_slots"),
        ("\"one\",", "", "flow.settings"),
        ("\"max_flows\":64", "\"max_flows\":0", "max_flows"),
        ("\"format\":8", "\"format\":7", "fenxi 0.1.0"),
    ] {
        let header = good.replace(from, to);
        assert_ne!(header, good, "{from}");
        assert!(refused(&header, &[]).contains(said), "{said}");
    }
    let round = |calls| Event::Round {
        manager: 0,
        now_ns: 1,
        draining: false,
        costs: Vec::new(),
        calls,
    };
    for (events, said) in [
        (
            vec![Event::Drain { manager: 2 }],
            "event 1, at byte 12: there is no flow manager 2",
        ),
        (
            vec![round(Vec::new())],
            "analytics manager 0 has not started",
        ),
        (
            vec![start(), start()],
            "analytics manager 0 cannot start here",
        ),
        (
            vec![
                start(),
                round(vec![Call::Results(vec![accel::Classification {
                    class: 3,
                    confidence: 1.0,
                }])]),
            ],
            "class 3, and there are 3",
        ),
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
    let counted = Event::Counted {
        who,
        counts: Counts::new(),
    };
    assert!(
        replay_of(&header(), &file(&[start(), counted]))
            .unwrap()
            .same
    );
}
