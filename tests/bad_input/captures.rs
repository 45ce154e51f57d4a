//! Captures that are cut, are none, or cannot be read.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use flate2::{Compression, write::GzEncoder};
use packetio::CaptureFormat;
use serde_json::Value;

use super::{assert_refused, assert_says};
use crate::common::packets::{ETHERNET, capture, conversation, record_offsets, timed};
use crate::common::{Finished, SIMULATED, demo, demo_packets, fenxi, json_lines, run, sum};

fn replay(file: &Path, more: &[&str]) -> Finished {
    let mut command = fenxi(["replay"]);
    run({
        command.arg(file).args(SIMULATED).args(more);
        command
    })
}

/// The same with the file on standard input.
fn replay_stdin(file: &Path, more: &[&str]) -> Finished {
    let mut command = fenxi(["replay", "-"]);
    command.args(SIMULATED).args(more).stdin(Stdio::from(File::open(file).unwrap()));
    Finished::from_output(command.output().unwrap())
}

/// A folder with one file in it.
fn holding(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Everything before the cut is processed and the sums balance: `packets` of them, one record for
/// each flow begun.
#[track_caller]
fn assert_processed(finished: &Finished, packets: u64, records: &Path) -> Value {
    let summary = finished.json();
    assert_eq!(summary["packets"], packets);
    assert_eq!(sum(&summary["verdicts"]), packets);
    let flows: Vec<Value> =
        json_lines(records).into_iter().filter(|record| record["type"] == "flow").collect();
    assert_eq!(summary["flows"]["begun"], flows.len());
    let counted = |name: &str| flows.iter().map(|flow| flow[name].as_u64().unwrap()).sum::<u64>();
    let of_flows =
        ["labelled", "unlabelled"].map(|name| summary["verdicts"][name].as_u64().unwrap());
    assert_eq!(counted("packets_fwd") + counted("packets_rev"), of_flows.iter().sum::<u64>());
    summary
}

#[test]
fn a_pcap_cut_inside_a_packet() {
    let whole = std::fs::read(demo()).unwrap();
    let packets = 219;
    let cut = record_offsets(&whole)[packets];
    let (dir, path) = holding("cut.pcap", &whole[..cut + 16 + 5]);
    let records = dir.path().join("flows.jsonl");
    let more = ["--json", "--flows", records.to_str().unwrap()];
    let place = format!("packet (byte {cut}, after {packets} packets)");
    let parts = ["truncated: the file ends inside the data of a ", &place];
    for (name, finished) in
        [("cut.pcap: ", replay(&path, &more)), ("standard input: ", replay_stdin(&path, &more))]
    {
        let finished = finished.expect_code(65);
        assert_says(&finished, &[&parts[..], &[name]].concat());
        let summary = assert_processed(&finished, packets as u64, &records);
        assert!(summary["series"]["emitted"].as_u64().unwrap() > 0);
        assert_eq!(summary["verdicts"]["table_full"], 0);
    }
}

#[test]
fn a_pcap_cut_inside_a_record_header() {
    let whole = capture(
        CaptureFormat::Pcap { nanosecond: false },
        &timed(ETHERNET, conversation(false, 1, 12)),
    );
    let (dir, path) = holding("cut.pcap", &[&whole[..], &[0; 7]].concat());
    let records = dir.path().join("flows.jsonl");
    let finished = replay(&path, &["--json", "--flows", records.to_str().unwrap()]).expect_code(65);
    assert_says(&finished, &["ends inside a record header", "after 12 packets"]);
    assert_processed(&finished, 12, &records);
}

#[test]
fn a_pcapng_cut_inside_a_block() {
    let whole = capture(CaptureFormat::Pcapng, &timed(ETHERNET, conversation(true, 1, 30)));
    let (dir, path) = holding("cut.pcapng", &whole[..whole.len() - 5]);
    let records = dir.path().join("flows.jsonl");
    let finished = replay(&path, &["--json", "--flows", records.to_str().unwrap()]).expect_code(65);
    assert_says(
        &finished,
        &["cut.pcapng: truncated: the file ends inside a pcapng block", "after 29 packets"],
    );
    assert_processed(&finished, 29, &records);
}

#[test]
fn a_cut_or_corrupt_gzip_stream() {
    let (packed, all) = (gzip(&std::fs::read(demo()).unwrap()), demo_packets() as u64);
    let cut = &packed[..packed.len() / 2];
    // Only the checksum at the end tells: all packets are there by then.
    let mut corrupt = packed.clone();
    corrupt[packed.len() - 6] ^= 0x55;
    for (bytes, whole, is_stdin) in
        [(cut, false, false), (cut, false, true), (&corrupt, true, false)]
    {
        let (dir, path) = holding("cut.pcap.gz", bytes);
        let records = dir.path().join("flows.jsonl");
        let more = ["--json", "--flows", records.to_str().unwrap()];
        let finished = if is_stdin { replay_stdin(&path, &more) } else { replay(&path, &more) };
        let finished = finished.expect_code(65);
        let packets = finished.json()["packets"].as_u64().unwrap();
        assert!(packets == all || !whole && (100..all).contains(&packets), "{packets}");
        let place = format!("after {packets} packets)");
        assert_says(
            &finished,
            &[
                "truncated: the file ends inside the gzip stream, which is cut or corrupt (byte ",
                &place,
            ],
        );
        assert_processed(&finished, packets, &records);
    }
}

#[test]
fn a_packet_longer_than_any() {
    let mut bytes = capture(
        CaptureFormat::Pcap { nanosecond: false },
        &timed(ETHERNET, conversation(false, 1, 3)),
    );
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 1, 0, 4, 0]); // 262,145 captured bytes
    let (_dir, path) = holding("long.pcap", &bytes);
    let finished = replay(&path, &["--json"]).expect_code(65);
    assert_says(
        &finished,
        &["bad record: a packet claims 262145 captured bytes, more than 262144", "after 3 packets"],
    );
    assert_eq!(finished.json()["packets"], 3);
}

#[test]
fn what_is_no_capture() {
    for (name, bytes, part) in [
        ("empty.pcap", &b""[..], "the file is empty"),
        (
            "notes.pcap",
            b"Dear diary, ",
            "not a capture: it begins with [44, 65, 61, 72], which is neither pcap nor pcapng",
        ),
        ("short.pcap", b"\xd4\xc3", "truncated: the file ends inside the file header"),
        (
            "header.pcap",
            b"\xd4\xc3\xb2\xa1\x02\x00",
            "truncated: the file ends inside the file header",
        ),
        ("text.gz", &gzip(b"Dear diary, "), "not a capture"),
        ("empty.gz", &gzip(b""), "the file is empty"),
        ("cut.gz", b"\x1f\x8b\x08", "the gzip stream, which is cut or corrupt"),
    ] {
        let (_dir, path) = holding(name, bytes);
        assert_refused(replay(&path, &[]), 65, &[&format!("{name}: "), part]);
        assert_refused(replay_stdin(&path, &[]), 65, &["fenxi: standard input: ", part]);
    }
}

#[test]
fn what_cannot_be_opened() {
    let (dir, path) = holding("file", b"");
    let gone = dir.path().join("gone.pcap");
    assert_refused(replay(&gone, &[]), 66, &["gone.pcap: no such file"]);
    assert_refused(replay(dir.path(), &[]), 66, &["is a directory; name a capture file in it"]);
    let through = path.join("x.pcap");
    assert_refused(replay(&through, &[]), 66, &["file/x.pcap: cannot be opened: Not a directory"]);
    // A later file is looked at before the first packet of the first.
    let records = dir.path().join("flows.jsonl");
    let more = [gone.to_str().unwrap(), "--flows", records.to_str().unwrap()];
    assert_refused(replay(&demo(), &more), 66, &["gone.pcap: no such file"]);
    assert!(!records.exists());
}

/// Whatever stands in a name, it is part of one line.
#[test]
fn a_name_does_not_forge_a_line() {
    let refused = replay(Path::new("no\nfenxi: success\u{1b}[K"), &[]).expect_code(66);
    let expected = "fenxi: no\\nfenxi: success\\u{1b}[K: no such file\n";
    assert_eq!(refused.stderr, expected);
}
