//! `io.capture = "kernel"` under a flood of flows that never go on.

use std::path::PathBuf;

use crate::common::lab::{FOREIGN, Lab};
use crate::common::packets::{checksum, ethernet, whole};
use crate::run::kernel_marks::{
    ROUNDS, SMALL, labelled, mark_of, start_kernel, talk, wait_for_labels,
};
use crate::run::mark::marks;
use crate::run::traffic::send;

/// A capture of SYNs, each of a flow of its own, from and to addresses that nobody has.
fn write_flood(path: PathBuf, numbers: std::ops::Range<u32>) -> PathBuf {
    let syn = |number: u32| {
        let mut ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 0, 0, 0, 0, 198, 51, 100, 1];
        ip[12..16].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut tcp = [0; 20];
        tcp[..2].copy_from_slice(&(1024 + (number % 60_000) as u16).to_be_bytes());
        tcp[2..4].copy_from_slice(&443_u16.to_be_bytes());
        (tcp[12], tcp[13], tcp[14], tcp[15]) = (0x50, 2, 0xff, 0xff);
        let mut frame = ethernet(0x0800, &[ip, tcp].concat());
        frame[..6].fill(0xff);
        frame
    };
    std::fs::write(&path, whole(numbers.map(syn))).unwrap();
    path
}

/// Honest connections beside 200,000 SYNs of flows that never go on: all have their labels and
/// marks, and fenxi needs no more memory.
#[test]
fn a_flood_of_syns_takes_no_label_from_honest_connections() {
    const CONNECTIONS: u16 = 100;
    const PORT: u16 = 22_000;
    const SYNS: u32 = 50_000;
    let Some(lab) = Lab::routed("kernel-flood", false, &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let floods = [0, 1, 2, 3, 4]
        .map(|at| write_flood(dir.path().join(format!("flood-{at}")), at * SYNS..(at + 1) * SYNS));
    // Each SYN has a record; a busy machine writes them later.
    let room = ["ring.slots=65536", "records.queue=524288", "records.drain_s=60"];
    let args = room.map(|key| ["--set", key]);
    let live = start_kernel(&lab, "in", SMALL, &path, args.as_flattened());
    // What waits for the writer takes memory, so each part of the flood waits for the part before.
    let flood = |at: usize| {
        assert_eq!(send(&floods[at], "eth"), u64::from(SYNS));
        let least = (at + 1) as u64 * u64::from(SYNS);
        live.wait_for_packets(least);
        live.wait_for("its records are written, but for flows in the table", |live| {
            live.metric_sum("fenxi_records_total") + 16_384.0 >= least as f64
        });
    };
    lab.on("client", || flood(0));
    let before = live.resident_kib();
    std::thread::scope(|scope| {
        let flood = scope.spawn(lab.entering("client", || (1..5).for_each(flood)));
        for at in 0..CONNECTIONS {
            let flow = (at % 2 == 1, true, PORT + at);
            talk(&lab, flow, [20 + 11 * at, 1300 - 11 * at], ROUNDS);
        }
        flood.join().unwrap();
    });
    let grown = live.resident_kib().saturating_sub(before);
    // Explanations remember the last 4,096 flows. A leak of 100 bytes a SYN would take 20 MiB.
    assert!(grown < 4096, "{grown} KiB more than {before}");
    // Their port names the flows of the SYNs.
    wait_for_labels(&live, 5 * SYNS as usize + usize::from(CONNECTIONS));
    let summary = live.terminate(0).json();
    let flows = (0..CONNECTIONS).map(|at| ((at % 2 == 1, true, PORT + at), ROUNDS)).collect();
    let marks = marks(&lab);
    let mut marked = 0;
    for record in labelled(&path, &flows) {
        let text = |name: &str| record[name].to_string().replace('"', "");
        let tuple = ["src", "src_port", "dst", "dst_port", "proto"].map(text);
        let mark = mark_of(SMALL, &record["label"]);
        assert_eq!(marks[&tuple.join(" ")], FOREIGN | mark, "{record}");
        marked += u64::from(mark != 0);
    }
    assert_eq!(summary["live"]["marks_written"], marked);
}
