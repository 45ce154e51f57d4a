//! What is written is read again, and nothing else panics.

use std::io::Cursor as Bytes;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use accel::{DeviceError, Sizes};

use super::*;
use crate::forms::{DeviceFacts, DeviceFailure, ModelSwap, TaskConfig};
use crate::reader::{Next, ReadError, Reader};

fn frame() -> impl Strategy<Value = Frame<'static>> {
    let kept = prop::collection::vec(any::<u8>(), 0..80);
    let fields = (
        any::<i64>(),
        0u32..100_000,
        prop_oneof![Just(None), any::<Option<u32>>()],
        any::<u16>(),
        any::<Option<NonZeroU32>>(),
        prop_oneof![Just(0), any::<u16>()],
    );
    (fields, kept).prop_map(|((time_us, more, wire, link, rss, gso), kept)| Frame {
        time_us,
        captured: kept.len() as u32 + more,
        wire: wire.unwrap_or(kept.len() as u32 + more),
        link,
        rss,
        gso,
        kept: kept.into(),
    })
}

fn error() -> impl Strategy<Value = DeviceError> {
    let texts = ("[a-z]{0,9}", ".{0,30}");
    let sizes = prop_oneof![
        (1usize..100).prop_map(|cap| Sizes::Any { cap }),
        prop::collection::vec(1usize..100, 1..4).prop_map(Sizes::Fixed),
    ];
    let numbers = (0usize..5000, 0usize..5000, any::<f32>());
    (0..6, texts, numbers, sizes).prop_map(
        |(kind, (device, cause), (rows, classes, value), sizes)| match kind {
            0 => DeviceError::Busy { device },
            1 => DeviceError::Rows { device, rows, sizes },
            2 => DeviceError::Run { device, rows, cause },
            3 => DeviceError::Output { device, rows, classes, found: cause },
            4 => DeviceError::NotAProbability { row: rows, class: classes, value },
            _ => DeviceError::Gone { device, cause },
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let result = any::<(u16, f32)>();
    prop_oneof![
        Just(()).prop_map(|()| Call::Nothing),
        prop::collection::vec(result, 0..40).prop_map(Call::Results),
        error().prop_map(|error| Call::Failed(DeviceFailure(error))),
        (0usize..5000, any::<u32>(), prop::option::of(error())).prop_map(
            |(rows, input, refused)| Call::Submitted {
                rows,
                input,
                refused: refused.map(DeviceFailure),
            }
        ),
    ]
}

fn series_config() -> impl Strategy<Value = TaskConfig> {
    let policy = prop_oneof![
        Just(analytics::Policy::None),
        Just(analytics::Policy::Max),
        any::<u32>().prop_map(|us| analytics::Policy::Timeout {
            timeout: Duration::from_micros(us.into())
        }),
        (any::<u32>(), 0.0..0.5f64).prop_map(|(us, phi)| analytics::Policy::CarryOver {
            timeout: Duration::from_nanos(us.into()),
            phi,
            max_wait: Duration::from_secs(1),
        }),
        (1u32.., 0.0..0.9f64).prop_map(|(us, delta)| analytics::Policy::Slo {
            latency_goal: Duration::from_nanos(us.into()),
            delta,
        }),
        (1u32.., 0.0..0.9f64).prop_map(|(us, delta)| analytics::Policy::OnOff {
            latency_goal: Duration::from_nanos(us.into()),
            delta,
        }),
    ];
    let probe = prop::collection::vec(any::<f32>(), 0..12);
    let test = prop_oneof![
        any::<(u16, u16)>().prop_map(|(first, last)| analytics::Test::Confidence(first..=last)),
        any::<(Vec<bool>, bool)>()
            .prop_map(|(is_wanted, without)| analytics::Test::Class { is_wanted, without }),
    ];
    let depths = prop::collection::vec(any::<(u16, usize, Option<u16>)>(), 0..3);
    let need = (0u8..3, depths, test).prop_map(|(first, depths, test)| {
        let depths = depths.into_iter();
        let depth = |(sure, classes, contradicts)| cring::Depth { sure, classes, contradicts };
        let depths = depths.map(depth).collect();
        let words = cring::TaskWords { first, depths };
        analytics::Need { words, test }
    });
    let needs = prop::collection::vec(need, 0..2);
    let cache = (0.0..1.0f64, 0usize..32);
    (policy, probe, cache, needs).prop_map(|(policy, probe, (audit, prefix), needs)| {
        TaskConfig(analytics::Config {
            context: Vec::new(),
            k: 10,
            features: vec![cring::Feature::SignedLength],
            policy,
            cache: analytics::CacheConfig { prefix, entries: 100, audit },
            probe,
            word: 0,
            priority: 0,
            after: analytics::After { needs },
        })
    })
}

pub fn event() -> impl Strategy<Value = Event<'static>> {
    let counts = prop::collection::btree_map("[a-z.]{1,12}", any::<u64>(), 0..5);
    let rounds = (any::<u32>(), any::<u64>(), any::<bool>());
    let lists = (prop::collection::vec(any::<u64>(), 0..5), prop::collection::vec(call(), 0..5));
    let changes = (series_config(), series_config());
    prop_oneof![
        (any::<u32>(), any::<u64>(), prop::collection::vec(frame(), 0..20)).prop_map(
            |(manager, now_ns, frames)| Event::Burst {
                manager,
                now_ns,
                from: Port { number: now_ns as u8, owns_flows: now_ns > 9 },
                frames
            }
        ),
        (any::<u32>(), any::<i64>())
            .prop_map(|(manager, time_us)| Event::Pass { manager, time_us }),
        any::<(u32, u64, u64)>().prop_map(|(manager, now_ns, most)| Event::Settle {
            manager,
            now_ns,
            most
        }),
        (any::<u32>(), any::<u16>(), prop::collection::vec(any::<Option<u8>>(), 0..9)).prop_map(
            |(manager, idle_timeout_s, dscp)| Event::Configure {
                manager,
                settings: flowmgr::Settings {
                    idle_timeout_s,
                    closed_timeout_s: 1,
                    half_open_timeout_s: 2,
                    established_timeout_s: 600,
                    active_timeout_s: 7,
                    end_on_fin_rst: true,
                    actions: flowmgr::Actions::of_tasks([&dscp, &dscp]),
                },
            }
        ),
        any::<u32>().prop_map(|manager| Event::Drain { manager }),
        (any::<u32>(), series_config()).prop_map(|(manager, config)| Event::Start {
            manager,
            tasks: vec![TaskStart { config, devices: vec![device()] }],
        }),
        (rounds, lists).prop_map(|((manager, now_ns, drains), (costs, calls))| Event::Round {
            manager,
            now_ns,
            drains,
            costs,
            calls,
        }),
        (any::<u32>(), prop::option::of(changes), any::<bool>()).prop_map(
            |(manager, settings, has_model)| {
                let model = has_model.then(|| ModelSwap {
                    devices: vec![device()],
                    generation: 3,
                    coming: analytics::Coming::Canary,
                });
                Event::Prepare { manager, task: manager % 2, swap: TaskSwap { model, settings } }
            }
        ),
        any::<u32>().prop_map(|manager| Event::Commit { manager, task: 0 }),
        any::<u32>().prop_map(|manager| Event::Abort { manager, task: 1 }),
        (any::<u32>(), any::<bool>(), counts).prop_map(|(number, is_flow, counts)| {
            Event::Counted {
                who: if is_flow { Who::Flow(number) } else { Who::Series(number) },
                counts,
            }
        }),
        any::<(u32, [IpAddr; 2], [u64; 2], i64)>().prop_map(
            |(manager, addresses, packets, last_us)| Event::Count {
                manager,
                from: Port::default(),
                flows: vec![FlowCount {
                    protocol: 6,
                    ends: addresses.map(|address| (address, 80)),
                    packets,
                    bytes: packets,
                    generation: 1,
                    last_us,
                }],
            }
        ),
        any::<(u32, bool, bool, u8, bool)>().prop_map(
            |(manager, has_bounds, has_behaviours, label_tasks, is_renumbered)| {
                Event::ChangeRules {
                    manager,
                    has_bounds,
                    has_behaviours,
                    label_tasks,
                    is_renumbered,
                }
            }
        ),
        any::<(u32, u64, Option<u32>, u8, Option<u16>)>().prop_map(
            |(manager, now_ns, rule, unasked, class)| Event::AnswerRules {
                manager,
                now_ns,
                answers: vec![Answer(RuleAnswer {
                    rule,
                    action: Action { dscp: Some(46), drop: false, mirror: true },
                    unasked,
                    class,
                    kept: 0,
                })],
            }
        ),
        ".{0,60}".prop_map(|text| Event::Note { text }),
        ".{0,60}".prop_map(|reason| Event::End { reason }),
    ]
}

/// A device that takes one row of ten numbers at a time.
pub fn device() -> DeviceFacts {
    DeviceFacts {
        requested: "none".to_owned(),
        effective: "none".to_owned(),
        sizes: Sizes::Any { cap: 1 },
        row_len: 10,
        context: 0,
        profile: None,
        deadline: None,
        executor: 0,
    }
}

/// A whole file.
pub fn file(events: &[Event<'_>]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    for event in events {
        let mut body = Vec::new();
        event.encode(&mut body);
        put_event(&mut bytes, &body);
    }
    bytes
}

/// All that is read of it, and how it ends.
fn read(bytes: &[u8]) -> (Vec<Event<'static>>, Result<Next, ReadError>) {
    let mut events = Vec::new();
    let mut reader = match Reader::new(Bytes::new(bytes)) {
        Ok(reader) => reader,
        Err(error) => return (events, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Next::Event(event)) => events.push(event),
            end => return (events, end),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in prop::collection::vec(event(), 0..8)) {
        let (found, end) = read(&file(&events));
        prop_assert_eq!(found.len(), events.len());
        for (found, event) in found.iter().zip(&events) {
            // NaN is not equal to itself; its bytes are.
            let mut bytes = [Vec::new(), Vec::new()];
            found.encode(&mut bytes[0]);
            event.encode(&mut bytes[1]);
            prop_assert_eq!(&bytes[0], &bytes[1]);
        }
        prop_assert!(matches!(end, Ok(Next::End)), "{end:?}");
    }

    /// Cut anywhere, all whole events are there, and it is known whether one is missing.
    #[test]
    fn a_torn_tail_is_read_up_to_the_last_whole_event(
        events in prop::collection::vec(event(), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = file(&events);
        let cut = 12 + cut.index(bytes.len() - 12);
        let (found, end) = read(&bytes[..cut]);
        prop_assert!(found.len() < events.len());
        let is_whole = file(&events[..found.len()]).len() == cut;
        match is_whole {
            true => prop_assert!(matches!(end, Ok(Next::End)), "{end:?}"),
            false => prop_assert!(matches!(end, Ok(Next::Torn)), "{end:?}"),
        }
    }

    /// A changed byte is told: nothing but the events before it is taken for true.
    #[test]
    fn a_changed_byte_is_found(
        events in prop::collection::vec(event(), 1..6),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
    ) {
        let mut bytes = file(&events);
        let at = 12 + at.index(bytes.len() - 12);
        bytes[at] ^= change;
        let (found, end) = read(&bytes);
        prop_assert!(found.len() < events.len());
        prop_assert!(matches!(end, Err(ReadError::Damaged { .. }) | Ok(Next::Torn)), "{end:?}");
    }

    #[test]
    fn any_bytes_are_an_event_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Event::decode(&bytes);
        let _ = read(&bytes);
        let _ = read(&[&file(&[])[..], &bytes].concat());
    }

    /// Damage within a body, which a checksum would find.
    #[test]
    fn a_damaged_body_is_an_event_or_an_error(
        event in event(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut body = Vec::new();
        event.encode(&mut body);
        let at = at.index(body.len());
        body[at] = value;
        let _ = Event::decode(&body);
        let _ = Event::decode(&body[..keep.index(body.len())]);
    }
}

#[test]
fn other_files_are_named() {
    assert!(matches!(read(b"").1, Err(ReadError::Magic)));
    assert!(matches!(read(b"FENXIREC").1, Err(ReadError::Magic)));
    assert!(matches!(read(b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0").1, Err(ReadError::Magic)));
    let version = VERSION + 1;
    let newer = [&MAGIC[..], &version.to_le_bytes()].concat();
    assert!(matches!(read(&newer).1, Err(ReadError::Version(found)) if found == version));
}
