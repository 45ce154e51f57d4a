//! Several captures as one port.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::burst::Frame;
use crate::capture::{Sequence, SequenceSettings};
use crate::error::{RxError, RxErrorKind};
use crate::faults::FaultRates;
use crate::rx::{Received, Rx};
use crate::writer::{CaptureFormat, CaptureWriter};

/// A capture with frames of these times.
fn capture(dir: &tempfile::TempDir, name: &str, times_us: &[i64]) -> PathBuf {
    let path = dir.path().join(name);
    let format = CaptureFormat::Pcap { nanosecond: true };
    let mut writer = CaptureWriter::create(format, std::fs::File::create(&path).unwrap()).unwrap();
    for &time_us in times_us {
        let frame = Frame { time_us, wire: 60, ..Frame::default() };
        writer.write(&frame, &[7; 60]).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn settings(files: &[PathBuf], loops: u32) -> SequenceSettings {
    SequenceSettings { files: files.to_vec(), loops, faults: FaultRates::default(), seed: 0 }
}

fn open(settings: SequenceSettings) -> Result<Sequence, RxError> {
    Sequence::open(settings, Arc::default(), Arc::default())
}

/// The times of all frames.
fn times(sequence: &mut Sequence) -> Result<Vec<i64>, RxError> {
    let mut times = Vec::new();
    loop {
        match sequence.receive(2)? {
            Received::Burst(burst) => times.extend(burst.frames().iter().map(|it| it.time_us)),
            Received::Nothing => {}
            Received::End => return Ok(times),
        }
    }
}

#[test]
fn time_goes_on_from_pass_to_pass() {
    let dir = tempfile::tempdir().unwrap();
    let files = [capture(&dir, "a", &[100, 130, 120]), capture(&dir, "b", &[110])];
    let read = Arc::new(AtomicU64::new(0));
    let settings = settings(&files, 3);
    let mut sequence = Sequence::open(settings.clone(), read.clone(), Arc::default()).unwrap();
    let pass = [100, 130, 120, 110];
    let expected = [0, 31, 62].map(|shift_us| pass.map(|us| us + shift_us));
    assert_eq!(times(&mut sequence).unwrap(), expected.as_flattened());
    let counts = sequence.counts();
    assert_eq!((counts.received, counts.bytes), (12, 12 * 60));
    assert_eq!(Some(read.load(Ordering::Relaxed)), Sequence::size(&settings));
}

#[test]
fn faults_strike_alike_in_each_pass() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<i64> = (0..200).collect();
    let files = [capture(&dir, "a", &many)];
    let settings = SequenceSettings {
        faults: FaultRates { loss: 0.5, ..FaultRates::default() },
        seed: 7,
        ..settings(&files, 2)
    };
    let times = times(&mut open(settings).unwrap()).unwrap();
    let (first, second) = times.split_at(times.len() / 2);
    assert!((60..140).contains(&first.len()), "{}", first.len());
    let shift_us = second[0] - first[0];
    assert!(first.iter().map(|us| us + shift_us).eq(second.iter().copied()));
}

#[test]
fn errors_name_the_file_and_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let good = capture(&dir, "good", &[1, 2]);
    let missing = dir.path().join("missing");
    let error = open(settings(&[good.clone(), missing], 1)).unwrap_err();
    assert_eq!(error.kind, RxErrorKind::NoInput);
    assert!(error.to_string().ends_with("missing: no such file"), "{error}");
    assert_eq!(open(settings(&[], 1)).unwrap_err().kind, RxErrorKind::NoInput);

    let cut = dir.path().join("cut");
    let bytes = std::fs::read(&good).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let mut sequence = open(settings(&[good, cut], 1)).unwrap();
    let error = times(&mut sequence).unwrap_err();
    assert_eq!((error.kind, sequence.counts().received), (RxErrorKind::Damaged, 3));
    assert!(sequence.name().ends_with("cut"));
}

#[test]
fn what_a_stop_cuts_off_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let cut = capture(&dir, "cut", &[1, 2]);
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let mut sequence = Sequence::open(settings(&[cut], 1), Arc::default(), stop).unwrap();
    assert_eq!(times(&mut sequence).unwrap(), [1]);
}
