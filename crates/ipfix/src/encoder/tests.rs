//! The bytes of messages, read back by a reader of the tests' own that knows RFC 7011 and none of
//! the code.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{ApplicationId, EndReason};

fn flow(source: &str, destination: &str) -> Flow {
    Flow {
        source: (source.parse().unwrap(), 41_772),
        destination: (destination.parse().unwrap(), 443),
        protocol: 6,
        start_ms: 1_500_000_000_001,
        end_ms: 1_500_000_000_999,
        packets: [3, 5],
        bytes: [300, 5000],
        reason: EndReason::EndOfFlow,
        is_initiator: true,
        flow_id: 7,
        application: ApplicationId::UNLABELLED,
        behaviour: 0,
    }
}

fn applications(count: usize) -> Applications {
    let labels: Vec<String> = (0..count).map(|number| format!("label-{number}")).collect();
    Applications::new(&labels)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Sets of a message, with their numbers; its header must be right.
fn sets(message: &[u8]) -> Vec<(u16, &[u8])> {
    assert_eq!(u16_at(message, 0), 10);
    assert_eq!(usize::from(u16_at(message, 2)), message.len());
    let mut sets = Vec::new();
    let mut at = 16;
    while at < message.len() {
        let length = usize::from(u16_at(message, at + 2));
        sets.push((u16_at(message, at), &message[at + 4..at + length]));
        at += length;
    }
    assert_eq!(at, message.len());
    sets
}

/// Bytes of a record by the template in a set of templates, for each template.
fn lengths(mut templates: &[u8]) -> Vec<(u16, usize)> {
    let mut lengths = Vec::new();
    while !templates.is_empty() {
        let (number, fields) = (u16_at(templates, 0), u16_at(templates, 2));
        let (mut at, mut length) = (4, 0);
        for _ in 0..fields {
            let is_enterprise = u16_at(templates, at) & 0x8000 != 0;
            length += usize::from(u16_at(templates, at + 2));
            at += if is_enterprise { 8 } else { 4 };
        }
        lengths.push((number, length));
        templates = &templates[at..];
    }
    lengths
}

#[test]
fn records_are_as_long_as_their_templates_say() {
    let mut encoder = Encoder::new(1, 1400);
    let mut messages = Vec::new();
    encoder.templates(&applications(3), 0, &mut messages);
    let lengths = lengths(sets(&messages[0].bytes)[0].1);
    assert_eq!(lengths[0].0, FLOW_V4);
    assert_eq!(lengths[1].0, FLOW_V6);
    for (number, source, destination) in
        [(FLOW_V4, "192.0.2.1", "198.51.100.2"), (FLOW_V6, "2001:db8::1", "2001:db8::2")]
    {
        encoder.flow(&flow(source, destination), 0);
        let message = encoder.flush(0).unwrap();
        let sets = sets(&message.bytes);
        assert!(lengths.contains(&(number, sets[0].1.len())), "{number}");
        assert_eq!((sets.len(), sets[0].0), (1, number));
    }
}

#[test]
fn sequence_numbers_count_data_records_and_begin_again_with_a_session() {
    let mut encoder = Encoder::new(9, 1400);
    let mut messages = Vec::new();
    let sequence = |message: &Message| u32_at(&message.bytes, 8);
    for _ in 0..2 {
        messages.clear();
        encoder.templates(&applications(2), 5, &mut messages);
        assert_eq!((messages.len(), sequence(&messages[0])), (1, 0));
        assert_eq!(u32_at(&messages[0].bytes, 4), 5, "time of export");
        assert_eq!(u32_at(&messages[0].bytes, 12), 9, "domain");
        encoder.flow(&flow("192.0.2.1", "192.0.2.2"), 6);
        // Two labels and "unlabelled" are data; templates are not.
        assert_eq!(sequence(&encoder.flush(6).unwrap()), 3);
        encoder.flow(&flow("192.0.2.1", "192.0.2.2"), 6);
        assert_eq!(sequence(&encoder.flush(6).unwrap()), 4);
        assert_eq!(encoder.flush(7), None);
        encoder.restart();
    }
}

#[test]
fn messages_are_no_longer_than_asked_and_lose_no_flow() {
    let mut encoder = Encoder::new(1, 600);
    let mut messages = Vec::new();
    encoder.templates(&applications(100), 0, &mut messages);
    assert!(messages.len() > 2);
    for number in 0..50 {
        let flow = match number % 3 {
            0 => flow("2001:db8::1", "2001:db8::2"),
            _ => flow("192.0.2.1", "192.0.2.2"),
        };
        messages.extend(encoder.flow(&flow, 0));
    }
    messages.extend(encoder.flush(0));
    let (mut records, mut flows) = (0, 0);
    for message in &messages {
        assert!(message.bytes.len() <= 600);
        assert_eq!(u32_at(&message.bytes, 8), records);
        for (number, set) in sets(&message.bytes) {
            records += match number {
                FLOW_V4 | FLOW_V6 => (set.len() / record_length(number)) as u32,
                APPLICATION => (set.len() / (4 + NAME_MAX)) as u32,
                _ => 0,
            };
        }
        flows += message.flows;
    }
    assert_eq!((records, flows), (50 + 101, 50));
}

#[test]
fn a_session_that_broke_leaves_nothing_to_the_next() {
    let mut encoder = Encoder::new(1, 1400);
    encoder.flow(&flow("192.0.2.1", "192.0.2.2"), 0);
    assert_eq!(encoder.flows(), 1);
    encoder.restart();
    assert_eq!((encoder.flows(), encoder.flush(0)), (0, None));
}
