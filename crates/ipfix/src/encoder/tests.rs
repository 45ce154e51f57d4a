//! The bytes of messages, read back by a reader of the tests' own that knows RFC 7011 and none of
//! the code.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{Application, EndReason};

fn flow(source: &str, destination: &str) -> Flow<'static> {
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
        application: Application::UNLABELLED,
        behaviour: 0,
        tcp_flags: [0x1b, 0x12],
        icmp: [0; 2],
        tos: [0xb8, 0],
        post_tos: 0x28,
        interfaces: [3, 4],
        measured: Measured { duration_us: 998_000, sizes: [[40, 1500], [52, 60]] },
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

/// Lengths of the fields by the templates in a set, for each template.
fn templates(mut templates: &[u8]) -> Vec<(u16, Vec<u16>)> {
    let mut all = Vec::new();
    while !templates.is_empty() {
        let (number, fields) = (u16_at(templates, 0), u16_at(templates, 2));
        let (mut at, mut lengths) = (4, Vec::new());
        for _ in 0..fields {
            let is_enterprise = u16_at(templates, at) & 0x8000 != 0;
            lengths.push(u16_at(templates, at + 2));
            at += if is_enterprise { 8 } else { 4 };
        }
        all.push((number, lengths));
        templates = &templates[at..];
    }
    all
}

/// Bytes of the records of a set, with fields of these lengths.
fn records(mut set: &[u8], lengths: &[u16]) -> Vec<usize> {
    let mut records = Vec::new();
    while !set.is_empty() {
        let length = lengths.iter().fold(0, |at, &length| match length {
            u16::MAX => at + 1 + usize::from(set[at]),
            length => at + usize::from(length),
        });
        records.push(length);
        set = &set[length..];
    }
    records
}

#[test]
fn records_are_as_long_as_their_templates_say() {
    for has_measured in [false, true] {
        let mut encoder = Encoder::new(1, 1400, has_measured);
        let mut messages = Vec::new();
        encoder.templates(&applications(3), 0, &mut messages);
        let templates = templates(sets(&messages[0].bytes)[0].1);
        let numbers: Vec<u16> = templates.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [FLOW_V4, FLOW_V6]);
        let ends = [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")];
        for ((number, lengths), (source, destination)) in templates.iter().zip(ends) {
            let long = Application { name: &"n".repeat(NAME_MAX), ..Application::UNLABELLED };
            for application in [Application::UNLABELLED, long] {
                encoder.flow(&Flow { application, ..flow(source, destination) }, 0);
            }
            let message = encoder.flush(0).unwrap();
            let sets = sets(&message.bytes);
            assert_eq!((sets.len(), sets[0].0), (1, *number));
            let records = records(sets[0].1, lengths);
            let short = NAME_MAX - Application::UNLABELLED.name.len();
            assert_eq!(records.len(), 2);
            assert_eq!(records[1], records[0] + short);
            assert!(records[1] <= record_length_max(*number));
        }
    }
}

#[test]
fn sequence_numbers_count_data_records_and_begin_again_with_a_session() {
    let mut encoder = Encoder::new(9, 1400, false);
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
    let mut encoder = Encoder::new(1, 600, false);
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
    let templates = templates(sets(&messages[0].bytes)[0].1);
    let (mut data, mut flows) = (0, 0);
    for message in &messages {
        assert!(message.bytes.len() <= 600);
        assert_eq!(u32_at(&message.bytes, 8), data);
        for (number, set) in sets(&message.bytes) {
            let template = templates.iter().find(|(template, _)| *template == number);
            data += match template {
                Some((_, lengths)) => records(set, lengths).len() as u32,
                None if number == APPLICATION => (set.len() / (4 + NAME_MAX)) as u32,
                None => 0,
            };
        }
        flows += message.flows;
    }
    assert_eq!((data, flows), (50 + 101, 50));
}

#[test]
fn a_session_that_broke_leaves_nothing_to_the_next() {
    let mut encoder = Encoder::new(1, 1400, false);
    encoder.flow(&flow("192.0.2.1", "192.0.2.2"), 0);
    assert_eq!(encoder.flows(), 1);
    encoder.restart();
    assert_eq!((encoder.flows(), encoder.flush(0)), (0, None));
}
