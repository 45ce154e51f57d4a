//! Flows and series agree with an independent extractor, and nothing is lost.
//!
//! The reference (`reference/series.py` beside the shared captures) is a plain
//! program that defines flows, lengths, verdicts and file errors. It knows no flows of
//! ICMP, so those are left out. Every shared capture is replayed with flows that nothing
//! ends, as the reference has them, and compared flow by flow and verdict by verdict. The sums
//! of every replay must balance, here and with the default lifetimes, for which there is
//! no reference.
//!
//! Each capture is a process of its own. Their tables hold 8,192 flows, many more
//! than the largest capture has: the default of a million takes its memory at the
//! start, and would take most of this test's time.

use crate::common;
mod extractor;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Finished;
use extractor::{Flow, Reference, recorded};
use serde_json::Value;

/// Flows that differ from the reference, as `capture/flow`, and why they may.
const EXPLAINED: &[(&str, &str)] = &[];

const REFERENCE_LIFETIMES: &[&str] =
    &["flow.idle_timeout_s=0", "flow.active_timeout_s=0", "flow.end_on_fin_rst=false"];

/// One replay of one capture.
struct Replay {
    finished: Finished,
    summary: Value,
    records: Vec<Value>,
}

impl Replay {
    fn run(capture: &Path, sets: &[&str]) -> Replay {
        let dir = tempfile::tempdir().expect("a folder");
        let flows = dir.path().join("flows.jsonl");
        let mut command = common::fenxi_asking_once(["replay", "--series", "--json", "--flows"]);
        command.arg(&flows).arg(capture).args(["--set", "flow.max_flows=8192"]);
        for set in sets {
            command.args(["--set", set]);
        }
        let finished = common::run(command);
        let at = capture.display();
        assert!(
            matches!(finished.code, 0 | 65),
            "{at}: exit code {}: {}",
            finished.code,
            finished.stderr
        );
        assert!(!finished.stderr.contains("panicked"), "{at}: {}", finished.stderr);
        Replay { summary: finished.json(), records: common::json_lines(&flows), finished }
    }

    fn flow_records(&self) -> impl Iterator<Item = &Value> {
        self.records.iter().filter(|record| record["type"] == "flow")
    }

    /// Flows of ICMP and their packets.
    fn icmp(&self) -> [u64; 2] {
        let flows = self.flow_records().map(recorded).filter(|flow| !flow.is_of_reference());
        flows.fold([0; 2], |[flows, packets], flow| [flows + 1, packets + flow.packets])
    }

    /// A count of the summary, or the sum of an object of counts.
    fn sum(&self, path: &str) -> u64 {
        let counts = self.summary.pointer(path).unwrap_or_else(|| panic!("no {path}"));
        counts.as_u64().unwrap_or_else(|| common::sum(counts))
    }

    /// Records with this value in this field.
    fn records_with(&self, field: &str, value: impl Into<Value>) -> u64 {
        let value = value.into();
        let with = |record: &&Value| record[field] == value;
        self.records.iter().filter(with).count() as u64
    }

    /// All sums that must balance, whatever the capture and the configuration.
    fn assert_conserves(&self, capture: &Path) {
        let sum = |paths: &[&str]| paths.iter().map(|path| self.sum(path)).sum::<u64>();
        let of_records = self.flow_records().map(|record| recorded(record).packets);
        let begun = self.sum("/flows/begun");
        let fates = ["/series/cached", "/series/inferred", "/series/shed", "/series/failed"];
        let in_flows = ["/verdicts/labelled", "/verdicts/unlabelled"];
        for (what, one, other) in [
            ("packets, verdicts", self.sum("/packets"), self.sum("/verdicts")),
            ("series, fates", self.sum("/series/emitted"), sum(&fates)),
            ("flows, last records", begun, self.records_with("final", true)),
            ("flows, ends", begun, self.sum("/flows/ended")),
            ("packets of flows, of records", sum(&in_flows), of_records.sum()),
            ("reports, records", self.sum("/flows/reported"), self.records_with("final", false)),
            ("labels, records", self.sum("/labels"), self.records_with("type", "label")),
            ("labels too late, none", self.sum("/series/post_mortem"), 0),
            ("records dropped, none", self.sum("/records_dropped"), 0),
        ] {
            assert_eq!(one, other, "{}: {what}", capture.display());
        }
    }
}

/// `check` for each of the items, two at a time: each waits for a process.
fn for_each<T: Sync>(items: &[T], check: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(item);
                }
            });
        }
    });
}

/// The reference's data, if a test can run on them.
fn data(test: &str) -> Option<PathBuf> {
    let counts = common::shared("reference/train_counts.jsonl");
    if counts.is_none() {
        common::skip(test, "the shared captures and their reference");
    }
    counts.and_then(|path| Some(path.parent()?.parent()?.to_owned()))
}

/// The differences between a capture's flows and the reference's, by name.
fn differences(capture: &str, replay: &Replay, expected: &[Flow]) -> Vec<String> {
    let flows = replay.flow_records().map(recorded).filter(Flow::is_of_reference);
    let in_order: BTreeMap<u64, Flow> = flows.map(|flow| (flow.number, flow)).collect();
    let numbered = (0..).zip(in_order.into_values());
    let mut found: BTreeMap<u64, Flow> =
        numbered.map(|(number, flow)| (number, Flow { number, ..flow })).collect();
    let mut different = Vec::new();
    for flow in expected {
        let found = found.remove(&flow.number);
        if found.as_ref() != Some(flow) {
            eprintln!("{capture}: expected {flow:?}\n  found {found:?}");
            different.push(format!("{capture}/{}", flow.number));
        }
    }
    different.extend(found.keys().map(|number| format!("{capture}/{number}")));
    different
}

/// The packets of the captures that are whole, as Wireshark's `capinfos` counts
/// them; `None` where that tool is not there.
fn count_with_capinfos(reference: &Reference) -> Option<BTreeMap<String, u64>> {
    let whole: Vec<&str> = reference
        .counts
        .iter()
        .filter(|counts| counts["status"] == "ok")
        .map(|counts| counts["capture"].as_str().expect("a name"))
        .collect();
    let mut command = Command::new("capinfos");
    command.args(["-c", "-M", "-T", "-r", "-m"]).args(&whole).current_dir(&reference.folder);
    let table = String::from_utf8(command.output().ok()?.stdout).expect("UTF-8");
    let counted: BTreeMap<String, u64> = table
        .lines()
        .filter_map(|line| line.rsplit_once(','))
        .map(|(capture, packets)| (capture.to_owned(), packets.parse().expect("a count")))
        .collect();
    assert_eq!(counted.len(), whole.len(), "captures that capinfos can read");
    Some(counted)
}

/// Verdicts, packets and the file's state.
fn assert_counts(capture: &str, replay: &Replay, counts: &Value) {
    let expected_code = if counts["status"] == "ok" { 0 } else { 65 };
    assert_eq!(replay.finished.code, expected_code, "{capture}: {}", replay.finished.stderr);
    assert_eq!(replay.summary["packets"], counts["packets"], "{capture}: packets");
    let [icmp_flows, icmp_packets] = replay.icmp();
    let begun = replay.sum("/flows/begun") - icmp_flows;
    assert_eq!(counts["flows"], begun, "{capture}: flows");
    let mut found = replay.summary["verdicts"].as_object().expect("an object").clone();
    let mut expected = counts["verdicts"].as_object().expect("an object").clone();
    let take = |names: &[&str], from: &mut serde_json::Map<String, Value>| -> u64 {
        let count =
            |name: &&str| from.remove(*name).and_then(|count| count.as_u64()).expect("a verdict");
        names.iter().map(count).sum()
    };
    let of_flows = take(&["labelled", "unlabelled", "table_full"], &mut found);
    let of_reference = take(&["tcp", "udp"], &mut expected);
    assert_eq!(of_flows, of_reference + icmp_packets, "{capture}: packets of flows");
    let others = take(&["other_l4"], &mut found) + icmp_packets;
    assert_eq!(others, take(&["other_l4"], &mut expected), "{capture}: packets of other protocols");
    // A capture has one port, and no kernel that counts; and there are no rules.
    assert_eq!(take(&["seen_elsewhere", "counted", "dropped"], &mut found), 0, "{capture}");
    assert_eq!(found, expected, "{capture}: verdicts");
}

#[test]
fn flows_series_and_verdicts_are_those_of_the_reference() {
    let test = "flows_series_and_verdicts_are_those_of_the_reference";
    let Some(data) = data(test) else {
        return;
    };
    let different = Mutex::new(Vec::new());
    let mut flows = 0;
    for reference in Reference::all(&data) {
        flows += reference.flows.values().map(Vec::len).sum::<usize>();
        let counted = count_with_capinfos(&reference);
        if counted.is_none() {
            common::skip(test, "capinfos, to count packets with (Debian's wireshark-common)");
        }
        for_each(&reference.counts, |counts| {
            let capture = counts["capture"].as_str().expect("a name");
            let path = reference.folder.join(capture);
            let replay = Replay::run(&path, REFERENCE_LIFETIMES);
            replay.assert_conserves(&path);
            assert_counts(capture, &replay, counts);
            if let Some(packets) = counted.as_ref().and_then(|counted| counted.get(capture)) {
                assert_eq!(replay.summary["packets"], *packets, "{capture}: capinfos's count");
            }
            let expected = reference.flows.get(capture).map_or(&[][..], Vec::as_slice);
            different.lock().expect("no panic").extend(differences(capture, &replay, expected));
        });
    }
    let mut different = different.into_inner().expect("no panic");
    different.sort();
    let share = different.len() as f64 / flows as f64;
    assert!(share <= 0.001, "{} of {flows} flows differ: {different:?}", different.len());
    let explained: Vec<&str> = EXPLAINED.iter().map(|(flow, _)| *flow).collect();
    assert_eq!(different, explained, "flows that differ, and those that may");
}

/// With the default lifetimes for some captures, and for all with short ones and
/// records in between, on the device that starts quickly.
#[test]
fn sums_balance_whatever_ends_the_flows() {
    let Some(data) = data("sums_balance_whatever_ends_the_flows") else {
        return;
    };
    let short = [
        "flow.idle_timeout_s=1",
        "flow.active_timeout_s=1",
        "ring.slots=16",
        "io.burst=1",
        common::SIMULATED[1],
    ];
    for reference in Reference::all(&data) {
        let numbered: Vec<(usize, &Value)> = reference.counts.iter().enumerate().collect();
        for_each(&numbered, |(number, counts)| {
            let capture = counts["capture"].as_str().expect("a name");
            let path = reference.folder.join(capture);
            Replay::run(&path, &short).assert_conserves(&path);
            if number % 4 == 0 {
                Replay::run(&path, &[]).assert_conserves(&path);
            }
        });
    }
}
