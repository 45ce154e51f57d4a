use super::*;
use crate::tests::{model, models, random};
use crate::{Answer, Isa, Network, Shape};

const BUNDLES: [&str; 5] =
    ["protocol", "protocol-small", "app-id-k10", "fenxi-cnn-k10", "iot-family"];

fn ranges(name: &str) -> Option<Ranges> {
    let text = std::fs::read_to_string(models().join(name).join("ranges.csv")).ok()?;
    Some(Ranges::parse(&text).unwrap())
}

fn written(name: &str) -> Vec<u8> {
    let about = [("model", "0123"), ("manifest", "a = \"\\b\"\n\"shape\":{\"dtype\":\"I32\"")];
    snapshot(&model(name), ranges(name).as_ref(), &about).unwrap()
}

/// Answers, with their probabilities, of rows by chance.
fn answers(network: &Network, rows: usize) -> (Vec<Answer>, Vec<f32>) {
    let Shape { channels, places, context, classes } = network.shape();
    let mut state = 11;
    let mut numbers = |count: usize| -> Vec<f32> {
        let number = |_| match random(&mut state, 9) {
            0 => [f32::NAN, -1e30, 0.0, 0.5, 70_000.0][random(&mut state, 5) as usize],
            _ => random(&mut state, 3_000) as f32 - 1_500.0,
        };
        (0..count).map(number).collect()
    };
    let (series, context) = (numbers(rows * channels * places), numbers(rows * context));
    let mut answers = vec![Answer::default(); rows];
    let mut probabilities = vec![0.0; rows * classes];
    let scratch = &mut network.scratch();
    network.probabilities(scratch, &series, &context, &mut answers, &mut probabilities);
    (answers, probabilities)
}

#[test]
fn a_snapshot_answers_as_the_model_does() {
    for name in BUNDLES {
        let compiled = Network::compile(&model(name), ranges(name).as_ref()).unwrap();
        let read = Network::from_snapshot(&written(name)).unwrap();
        assert_eq!(read.shape(), compiled.shape());
        assert_eq!(answers(&read, 1000), answers(&compiled, 1000), "{name}");
    }
    for name in ["protocol-int8", "app-id-k10-int8"] {
        let why = snapshot(&model(name), ranges(name).as_ref(), &[]).unwrap_err();
        assert_eq!(why.to_string(), "snapshot: only trees and networks with ranges have one");
    }
}

/// The same file with the hash that belongs to it.
fn forged(mut file: Vec<u8>) -> Vec<u8> {
    let hash = format!("{:016x}", hash(&file));
    file[HASH_AT..][..HASH_DIGITS].copy_from_slice(hash.as_bytes());
    file
}

#[test]
fn what_is_damaged_cut_or_newer_is_refused() {
    let refused = |file: &[u8]| Network::from_snapshot(file).err().unwrap().to_string();
    let whole = written("app-id-k10");
    let mut state = 5;
    for _ in 0..100 {
        let mut file = whole.clone();
        let near = [4000, whole.len() as u64][random(&mut state, 2) as usize];
        file[random(&mut state, near) as usize] ^= 1 << random(&mut state, 8);
        refused(&file);
        file.truncate(random(&mut state, near) as usize);
        refused(&file);
    }
    let at = 8 + START.len() + HASH_DIGITS + FORMAT.len();
    let mut newer = whole.clone();
    newer[at] = b'2';
    assert_eq!(refused(&newer), "snapshot: it has version 2, and this fenxi reads 1");
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let why = "snapshot: its content does not have the hash in its header: it is damaged";
    assert_eq!(refused(&damaged), why);
    assert_eq!(refused(b"PK\x03\x04"), "snapshot: it is no snapshot, or it is truncated");
}

#[test]
fn what_is_forged_is_refused_or_answers() {
    for name in BUNDLES {
        let whole = written(name);
        let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
        let mut state = 5;
        for i in 0..24 {
            let mut file = whole.clone();
            for _ in 0..1 + i % 3 {
                // A digit of the header, or a number: half of the time near an end.
                let len = file.len() as u64;
                let at = match i % 4 {
                    0 => random(&mut state, header as u64),
                    1 => header as u64 + random(&mut state, len - header as u64),
                    2 => len - 1 - random(&mut state, 400),
                    _ => header as u64 + random(&mut state, 400),
                } as usize;
                match file[at] {
                    b'0'..=b'9' if at < header => file[at] = b'0' + random(&mut state, 10) as u8,
                    _ if at < header => {}
                    _ => file[at] = random(&mut state, 256) as u8,
                }
            }
            if let Ok(mut network) = Network::from_snapshot(&forged(file)) {
                for isa in Isa::available() {
                    network.set_isa(isa);
                    let classes = network.shape().classes;
                    let (answers, _) = answers(&network, 20);
                    assert!(answers.iter().all(|it| usize::from(it.class) < classes));
                }
            }
        }
    }
}
