//! What a running fenxi may still do: each of its threads, and that what it has to do works with
//! it.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use crate::common::lab::{Lab, skip};
use crate::common::live::{Live, fenxi_on};
use crate::live::{WATCH, common, generate};

/// Bits of capabilities in a set.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;

/// Fields of `status` of each thread: name, CapPrm, CapEff, CapBnd, CapInh and CapAmb, NoNewPrivs.
fn threads(live: &Live) -> Vec<(String, [u64; 3], u64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", live.pid())).unwrap();
    let texts =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let of = |text: String| {
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        let set = |name| u64::from_str_radix(&value(name), 16).unwrap();
        (
            value("Name:"),
            ["CapPrm", "CapEff", "CapBnd"].map(set),
            set("CapInh") | set("CapAmb"),
            value("NoNewPrivs").parse().unwrap(),
        )
    };
    texts.map(of).collect()
}

#[test]
fn every_thread_has_only_the_rights_that_its_mode_needs() {
    for (mode, expected) in [("tap", NET_RAW), ("mark", NET_RAW | NET_ADMIN)] {
        let Some(lab) = Lab::new("rights", &["host"], &[]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        let dir = tempfile::tempdir().unwrap();
        let path = format!("records.path={}", dir.path().join("flows.jsonl").display());
        let mode = format!("io.mode={mode}");
        let live =
            Live::start(&lab, "host", &[&WATCH[..], &["--set", &mode, "--set", &path]].concat());
        // A thread gives itself its name.
        let expected_names = ["fenxi", "flow-0.0", "analytics-0.0", "records", "reload"];
        live.wait_for("all threads have their names", |live| {
            let threads = threads(live);
            let mut names = expected_names.iter();
            names.all(|name| threads.iter().any(|it| it.0 == *name))
        });
        let threads = threads(&live);
        for (name, sets, others, no_new) in threads {
            assert_eq!(sets, [expected; 3], "{name}");
            assert_eq!((others, no_new), (0, 1), "{name}");
        }
        let finished = live.terminate(0);
        let said = &finished.stderr;
        let names =
            if expected == NET_RAW { "CAP_NET_RAW," } else { "CAP_NET_ADMIN, CAP_NET_RAW," };
        assert!(said.contains(&format!("sandbox: capabilities {names}")), "{said}");
        assert!(!said.contains("sandbox: not in effect"), "{said}");
    }
}

#[test]
fn rights_are_kept_where_the_configuration_says_so() {
    let Some(lab) = Lab::new("kept", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let off = ["--set", "process.sandbox=false"];
    let live = Live::start(&lab, "host", &[&WATCH[..], &off].concat());
    let mine = fs::read_to_string("/proc/self/status").unwrap();
    let mine = mine.lines().find(|line| line.starts_with("CapEff")).unwrap();
    let mine = u64::from_str_radix(mine.split_whitespace().nth(1).unwrap(), 16).unwrap();
    for (name, sets, _, no_new) in threads(&live) {
        assert_eq!((sets[1], no_new), (mine, 0), "{name}");
    }
    let finished = live.terminate(0);
    assert!(finished.stderr.contains("sandbox: off"), "{}", finished.stderr);
}

/// Answers system calls, from the first to the last number, with an error, and starts a program.
const REFUSING: &str = "
import ctypes, os, struct, sys
first, last, errno = map(int, sys.argv[1:4])
program = b''.join(struct.pack('<HBBI', *line) for line in [
    (0x20, 0, 0, 0),                    # load the number of the call
    (0x35, 0, 2, first),                # below the first: allow
    (0x25, 1, 0, last),                 # above the last: allow
    (0x06, 0, 0, 0x00050000 | errno),   # the error
    (0x06, 0, 0, 0x7fff0000),           # allow
])
code = ctypes.create_string_buffer(program)
filter = struct.pack('HL', len(program) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[4], sys.argv[4:])
";

/// Why files and TCP are not restricted: a filter of system calls, for instance a unit's, or the
/// kernel.
#[test]
fn what_keeps_landlock_away_is_named() {
    let Some(lab) = Lab::new("refused", &["host"], &["python3"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let forbidden = "WARN fenxi::run::sandbox: sandbox: capabilities CAP_NET_RAW, no new \
        privileges; files and TCP are not restricted: a filter of \
                     system calls forbids Landlock; add landlock_create_ruleset, landlock_add_rule \
                     and landlock_restrict_self \
                     to SystemCallFilter= of the unit";
    // landlock_create_ruleset, landlock_add_rule and landlock_restrict_self are 444 to 446
    // everywhere.
    for (first, last, errno, expected) in [
        (444, 446, Errno::PERM, forbidden),
        (446, 446, Errno::PERM, forbidden),
        (444, 446, Errno::NOSYS, "this kernel has no Landlock"),
        (444, 446, Errno::OPNOTSUPP, "add landlock to lsm="),
    ] {
        let [first, last, errno] =
            [first, last, errno.raw_os_error()].map(|number| number.to_string());
        let launcher = ["python3", "-c", REFUSING, &first, &last, &errno];
        let live = Live::launch(fenxi_on(&lab, "host", &launcher), &WATCH);
        let said = live.terminate(0).stderr;
        assert!(said.contains(expected), "{first} {errno}: {said}");
    }
}

/// Behind the fence: reload, another model, the file of records moved and reopened, an interface
/// that goes and comes back. Marks, devices and rotation are what the other tests have, which run
/// behind it as well.
#[test]
fn what_a_run_has_to_do_works_behind_the_fence() {
    if !common::has_onnxruntime() {
        return skip("what_a_run_has_to_do_works_behind_the_fence", "ONNX Runtime");
    }
    let Some(lab) = Lab::new("behind", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flows.jsonl");
    let model = dir.path().join("model");
    copy(&common::int8_bundle(), &model);
    let file = dir.path().join("fenxi.toml");
    let config = |idle: u32| {
        let text = format!(
            "[io]\ninterfaces = [\"b\"]\n[flow]\nidle_timeout_s = {idle}\n[records]\npath = \
             \"{}\"\n[accel]\ndevices = [\"cpu\"]\n[model]\npath = \"{}\"\n",
            path.display(),
            common::bundle().display()
        );
        fs::write(&file, text).unwrap();
    };
    config(2);
    let live = Live::start(&lab, "host", &["--config", file.to_str().unwrap()]);
    assert_eq!(live.said("writes only to"), 1);
    config(1);
    live.ctl(&["reload"]).expect_code(0);
    live.ctl(&["model", "load", model.to_str().unwrap()]).expect_code(0);
    for moved in ["flows.jsonl-1", "flows.jsonl-2"] {
        generate(&lab, 1000, 200);
        fs::rename(&path, dir.path().join(moved)).unwrap();
        live.ctl(&["reopen"]).expect_code(0);
        assert!(path.exists());
    }
    lab.run("host", "ip link del dev a");
    live.wait_for("it is gone", |live| live.said("b: the interface is gone") == 1);
    lab.wire_within("host", "a", "b");
    live.wait_for("it is back", |live| {
        generate(&lab, 1000, 10);
        live.said("b: the interface is back") == 1
    });
    generate(&lab, 1000, 200);
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
    let summary = live.terminate(0).json();
    assert_eq!(summary["records_dropped"], 0);
    assert!(!fs::read_to_string(&path).unwrap().is_empty());
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}
