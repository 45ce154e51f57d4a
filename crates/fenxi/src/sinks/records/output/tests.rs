use std::os::unix::fs::PermissionsExt;

use flowmgr::Counts;
use flowmgr::record::{EndReason, FlowName, FlowRecord, Record};
use tempfile::TempDir;

use super::*;
use crate::sinks::records::Names;

fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    (dir, path)
}

/// Lines of the flows with these numbers.
fn lines(flows: std::ops::Range<u64>) -> Lines {
    let mut lines = Lines::new(Names::default(), None);
    for flow_id in flows {
        let flow = FlowName {
            flow_id,
            protocol: 6,
            source: ("192.0.2.1".parse().unwrap(), 1),
            destination: ("192.0.2.2".parse().unwrap(), 2),
            first_us: 0,
        };
        let record = Record::Flow(FlowRecord {
            flow,
            last_us: 0,
            midstream: false,
            counts: Counts::default(),
            reason: EndReason::Idle,
            is_half_open: false,
            decisions: [None; cring::TASKS_MAX],
            series: None,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            headers: Default::default(),
            measured: None,
        });
        lines.push(&record.into()).unwrap();
    }
    lines
}

fn write(output: &mut Output, flows: std::ops::Range<u64>) {
    let mut lines = lines(flows.clone());
    output.write(&mut lines).unwrap();
    assert_eq!((lines.count, lines.bytes.len()), (0, 0));
    assert_eq!(lines.take_written(), flows.end - flows.start);
}

/// Numbers of the flows in a file, which has whole lines only.
fn flows(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let flow = |line: &str| -> u64 {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["flow_id"].as_u64().unwrap()
    };
    text.lines().map(flow).collect()
}

fn old(path: &Path, number: usize) -> PathBuf {
    PathBuf::from(format!("{}.{number}", path.display()))
}

#[test]
fn a_file_goes_on_where_it_was() {
    let (_dir, path) = folder();
    write(&mut Output::append(&path, None).unwrap(), 0..2);
    write(&mut Output::append(&path, None).unwrap(), 2..3);
    assert_eq!(flows(&path), [0, 1, 2]);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !MODE, 0);
    write(&mut Output::create(&path).unwrap(), 7..8);
    assert_eq!(flows(&path), [7], "a replay begins anew");
}

#[test]
fn what_a_killed_run_could_not_finish_is_removed() {
    let (_dir, path) = folder();
    write(&mut Output::append(&path, None).unwrap(), 0..3);
    let whole = fs::read(&path).unwrap();
    let line = whole.len() / 3;
    for cut in 1..line {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        write(&mut Output::append(&path, None).unwrap(), 9..10);
        assert_eq!(flows(&path), [0, 1, 9], "{cut} bytes cut");
    }
    // Nothing is left of a file with one line.
    fs::write(&path, &whole[..line - 1]).unwrap();
    drop(Output::append(&path, None).unwrap());
    assert!(flows(&path).is_empty());
}

#[test]
fn what_is_not_ours_stays() {
    let (_dir, path) = folder();
    fs::write(&path, "precious").unwrap();
    write(&mut Output::append(&path, None).unwrap(), 0..1);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("precious\n{\"type\""), "{text}");
}

#[test]
fn two_do_not_write_to_one_file() {
    let (_dir, path) = folder();
    let one = Output::append(&path, None).unwrap();
    let error = Output::append(&path, None).err().unwrap();
    assert!(error.to_string().contains("another instance"), "{error}");
    drop(one);
    Output::append(&path, None).unwrap();
}

#[test]
fn a_full_file_makes_room_and_the_oldest_goes() {
    let (_dir, path) = folder();
    let rotate = Rotate { bytes: lines(0..3).bytes.len() as u64, files: 2 };
    let mut output = Output::append(&path, Some(rotate)).unwrap();
    for flow in 0..8 {
        write(&mut output, flow..flow + 1);
    }
    assert_eq!(flows(&path), [6, 7]);
    assert_eq!(flows(&old(&path, 1)), [3, 4, 5]);
    assert_eq!(flows(&old(&path, 2)), [0, 1, 2]);
    // More at a time than a file may hold stays together.
    write(&mut output, 8..14);
    assert_eq!(flows(&path), [8, 9, 10, 11, 12, 13]);
    assert_eq!(flows(&old(&path, 2)), [3, 4, 5]);
    assert!(!old(&path, 3).exists());
}

#[test]
fn where_no_file_can_be_begun_the_old_one_grows() {
    let (_dir, path) = folder();
    let rotate = Rotate { bytes: 1, files: 2 };
    let mut output = Output::append(&path, Some(rotate)).unwrap();
    write(&mut output, 0..1);
    // A folder with something in it is in the way.
    fs::create_dir_all(old(&path, 1).join("in the way")).unwrap();
    fs::create_dir_all(old(&path, 2).join("in the way")).unwrap();
    write(&mut output, 1..3);
    assert_eq!(flows(&path), [0, 1, 2]);
    assert!(output.rotate_from.is_some(), "it is not tried at each write");
}

#[test]
fn moved_away_and_opened_anew() {
    let (dir, path) = folder();
    let mut output = Output::append(&path, None).unwrap();
    write(&mut output, 0..1);
    let moved = dir.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    write(&mut output, 1..2);
    output.reopen().unwrap();
    write(&mut output, 2..3);
    output.reopen().unwrap();
    write(&mut output, 3..4);
    assert_eq!((flows(&moved), flows(&path)), (vec![0, 1], vec![2, 3]));
    // Where the new one cannot be had, the old one goes on.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    output.reopen().unwrap_err();
    write(&mut output, 4..5);
}

#[test]
fn a_file_emptied_by_others_is_not_filled_with_zeros() {
    let (_dir, path) = folder();
    let mut output = Output::append(&path, None).unwrap();
    write(&mut output, 0..2);
    File::create(&path).unwrap();
    write(&mut output, 2..3);
    assert_eq!(flows(&path), [2]);
}

#[test]
fn a_device_that_is_full_keeps_the_lines() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let mut output = Output::append(Path::new("/dev/full"), None).unwrap();
    let mut lines = lines(0..3);
    let error = output.write(&mut lines).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!((lines.count, lines.take_written()), (3, 0));
}
