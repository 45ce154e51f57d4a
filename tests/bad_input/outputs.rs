//! Outputs that cannot be created, break off, or would destroy something: reported, with an exit
//! code that is not 0, and never a silently short file. A reader that goes away is no error.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{assert_refused, assert_says};
use crate::common::packets::read_capture;
use crate::common::{Finished, SIMULATED, demo, demo_packets, fenxi, json_lines, run};

fn replay(more: &[&str]) -> Command {
    let mut command = fenxi(["replay"]);
    command.arg(demo()).args(SIMULATED).args(more);
    command
}

/// The disk that is always full; `None` where the system has none.
fn full_disk() -> Option<Stdio> {
    Some(Stdio::from(OpenOptions::new().write(true).open("/dev/full").ok()?))
}

#[test]
fn a_folder_that_is_not_there() {
    for option in ["--flows", "--write"] {
        assert_refused(
            run(replay(&[option, "/nowhere/out"])),
            73,
            &["/nowhere/out: cannot be created: No such file"],
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    assert_refused(run(replay(&["--flows", path])), 73, &["cannot be created: Is a directory"]);
}

#[test]
fn a_full_disk_behind_either_file() {
    if full_disk().is_none() {
        return crate::common::skip("a_full_disk_behind_either_file", "/dev/full");
    }
    for option in ["--flows", "--write"] {
        let finished = run(replay(&[option, "/dev/full"])).expect_code(74);
        let complaints: Vec<_> =
            finished.stderr.lines().filter(|line| line.starts_with("fenxi: ")).collect();
        assert_eq!(
            complaints,
            ["fenxi: /dev/full: write failed: No space left on device (os error 28)"]
        );
    }
    // One output broken, the other is not the worse for it: what was begun is recorded, and the
    // packets are all written.
    let dir = tempfile::tempdir().unwrap();
    let [records, tagged] = ["flows.jsonl", "tagged.pcap"].map(|name| dir.path().join(name));
    let finished =
        run(replay(&["--json", "--write", "/dev/full", "--flows", records.to_str().unwrap()]));
    let summary = finished.expect_code(74).json();
    let recorded = json_lines(&records).iter().filter(|record| record["type"] == "flow").count();
    assert_eq!(summary["flows"]["begun"], recorded);
    run(replay(&["--flows", "/dev/full", "--write", tagged.to_str().unwrap()])).expect_code(74);
    assert_eq!(read_capture(&tagged).len(), demo_packets());
}

#[test]
fn a_full_disk_behind_a_standard_stream() {
    let run_into_full_disk = |mut command: Command, is_stderr: bool| {
        let full = full_disk()?;
        command.stdin(Stdio::null());
        let finished = match is_stderr {
            true => command.stderr(full).stdout(Stdio::piped()).output(),
            false => command.stdout(full).stderr(Stdio::piped()).output(),
        };
        Some(Finished::from_output(finished.unwrap()))
    };
    if full_disk().is_none() {
        return crate::common::skip("a_full_disk_behind_a_standard_stream", "/dev/full");
    }
    for command in [
        replay(&["--json"]),
        replay(&["--flows", "-"]),
        fenxi(["config", "show"]),
        fenxi(["check", "--config-only"]),
        fenxi(["model", "info", "models/app-id-k10"]),
        fenxi(["--help"]),
    ] {
        let finished = run_into_full_disk(command, false).unwrap().expect_code(74);
        assert_says(&finished, &["fenxi: stdout: write failed: No space left on device"]);
    }
    // The summary for people is an output too.
    run_into_full_disk(replay(&[]), true).unwrap().expect_code(74);
}

/// Runs with a reader of standard output that takes `bytes` bytes and closes.
fn with_short_reader(mut command: Command, bytes: usize) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut vec![0; bytes]).unwrap();
    drop(stdout);
    Finished::from_output(child.wait_with_output().unwrap())
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for (command, bytes) in [
        (replay(&["--flows", "-"]), 10),
        (replay(&["--flows", "-"]), 0),
        (replay(&["--json"]), 0),
        (fenxi(["config", "show"]), 0),
        (fenxi(["check", "--config-only"]), 0),
    ] {
        let finished = with_short_reader(command, bytes).expect_code(0);
        assert_eq!(finished.stderr, "");
    }
}

#[test]
fn a_closed_pipe_does_not_shorten_the_packets() {
    let dir = tempfile::tempdir().unwrap();
    let tagged = dir.path().join("tagged.pcap");
    // More records than the queue and the pipe hold, so that the reader goes while packets are
    // read.
    let mut command = replay(&["--flows", "-", "--loop", "5", "--set", "records.queue=1024"]);
    command.arg("--write").arg(&tagged);
    assert_eq!(with_short_reader(command, 10).expect_code(0).stderr, "");
    assert_eq!(read_capture(&tagged).len(), 5 * demo_packets());
}

#[test]
fn nothing_is_written_over_an_input_or_another_output() {
    let dir = tempfile::tempdir().unwrap();
    let [input, link] = ["in.pcap", "link.pcap"].map(|name| dir.path().join(name));
    fs::copy(demo(), &input).unwrap();
    fs::hard_link(&input, &link).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let dotted = text(&dir.path().join(".").join("in.pcap"));
    for option in ["--write", "--flows"] {
        for output in [&text(&input), &text(&link), &dotted] {
            let mut command = fenxi(["replay", &text(&input), option, output]);
            command.args(SIMULATED);
            assert_refused(
                run(command),
                64,
                &[option, "this is one of the captures to replay; choose another file"],
            );
        }
        let mut command = fenxi(["replay", "-", option, &text(&input)]);
        command.stdin(Stdio::from(fs::File::open(&input).unwrap()));
        assert_refused(
            Finished::from_output(command.output().unwrap()),
            64,
            &["one of the captures"],
        );
    }
    let (new, dotted) = (text(&dir.path().join("new")), text(&dir.path().join(".").join("new")));
    for other in [&new, &dotted] {
        let finished = run(replay(&["--flows", &new, "--write", other]));
        assert_refused(finished, 64, &["--flows and --write both name", "new"]);
    }
    assert!(!Path::new(&new).exists());
    assert!(fs::read(&input).unwrap() == fs::read(demo()).unwrap(), "the input is as it was");
}
