//! The log of a live run: its lines, their levels and destinations, and what it must never contain.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::live::{WATCH, common, generate};

/// Lines of the log among what stands on stderr.
fn lines(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.starts_with("20")).collect()
}

fn count(lines: &[&str], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}

/// Something like 10.1.2.3, or the beginning of an IPv6 address of the generator.
fn has_address(line: &str) -> bool {
    let words = line.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let is_ipv4 = |word: &str| word.split('.').filter(|part| !part.is_empty()).count() == 4;
    words.into_iter().any(is_ipv4) || line.contains("2001:2:")
}

#[test]
fn what_happens_is_told_once_with_time_level_and_place_and_without_addresses() {
    let Some(lab) = Lab::new("log", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let path = format!("records.path={}", dir.path().join("flows").display());
    let live = Live::start(&lab, "host", &[&WATCH[..], &["--set", &path]].concat());
    generate(&lab, 1000, 300);
    live.ctl(&["flows", "--top", "50"]).expect_code(0);
    live.ctl(&["model", "load", "/nowhere"]).expect_code(78);
    live.ctl(&["reopen"]).expect_code(0);
    lab.run("host", "ip link set dev b down");
    std::thread::sleep(Duration::from_millis(300));
    lab.run("host", "ip link set dev b up");
    let before = live.metric_sum("fenxi_port_packets_total");
    live.wait_for("it is back", |live| {
        generate(&lab, 1000, 20);
        live.metric_sum("fenxi_port_packets_total") > before
    });
    let stderr = live.terminate(0).stderr;
    let lines = lines(&stderr);
    for (said, level, target) in [
        ("fenxi 0", "INFO", "fenxi::run: "),
        ("ready: tap on b", "INFO", "fenxi::supervise::live: "),
        ("b: the interface is down", "WARN", "fenxi::supervise: "),
        ("b: the interface is back", "INFO", "fenxi::supervise: "),
        ("model /nowhere: refused", "WARN", "fenxi::supervise::reload: "),
        ("flows: reopened", "INFO", "fenxi::sinks::records::live: "),
        ("shutting down: received a signal", "INFO", "fenxi::supervise: "),
        ("ended after", "INFO", "fenxi::commands::run: "),
    ] {
        assert_eq!(count(&lines, said), 1, "{said}\n{stderr}");
        let line = lines.iter().find(|line| line.contains(said)).unwrap();
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.len() == 27, "{line}");
        let (found, message) = rest.trim_start().split_once(' ').unwrap();
        assert_eq!(found, level, "{line}");
        assert!(message.starts_with(target), "{line}");
    }
    let with_address: Vec<_> = lines.iter().filter(|line| has_address(line)).collect();
    assert!(with_address.is_empty(), "{with_address:?}");
    assert_eq!(lines.len(), stderr.lines().count(), "{stderr}");
}

/// Ring, features, depths and labels are fixed when the flow workers start.
#[test]
fn a_model_of_another_shape_is_refused_with_the_cure() {
    let Some(lab) = Lab::new("shape", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let models = common::root().join("models");
    let path = format!("model.path={}", models.join("protocol").display());
    let live = Live::start(&lab, "host", &[&WATCH[..], &["--set", &path]].concat());
    for (other, what) in [("app-id-k10", "unit and k"), ("iot-family", "features")] {
        let dir = models.join(other);
        let refused = live.ctl(&["model", "load", dir.to_str().unwrap()]);
        let refused = refused.expect_code(78).stderr;
        let start = format!("fenxi: {}: the {what} are ", dir.display());
        assert!(refused.starts_with(&start), "{refused}");
        assert!(refused.ends_with("; restart to use this model\n"), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    live.terminate(0);
}

#[test]
fn a_device_that_fails_is_told_of() {
    let Some(lab) = Lab::new("device-log", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let mut args = WATCH.to_vec();
    for set in
        ["accel.devices=[\"bad\"]", "device.bad.provider=simulated", "device.bad.faults=vanish=1"]
    {
        args.extend(["--set", set]);
    }
    let live = Live::start(&lab, "host", &args);
    generate(&lab, 1000, 50);
    live.wait_for("it is down", |live| live.said("the device is down") > 0);
    let stderr = live.terminate(0).stderr;
    let lines = lines(&stderr);
    let told = "WARN fenxi::control::watch: bad of analytics-0.0: the device is down: ";
    assert_eq!(count(&lines, told), 1, "{stderr}");
}

#[test]
fn addresses_would_be_found() {
    assert!(has_address("from 10.1.2.3:443 on"));
    assert!(has_address("2001:2:0:1::7"));
    assert!(!has_address("2026-01-01T00:00:00.123456Z fenxi 0.1.0 took 1.5 s"));
}

#[test]
fn levels_change_while_it_runs_and_repeats_are_counted() {
    let Some(lab) = Lab::new("levels", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let args = [&WATCH[..], &["--set", "log.level=error"]].concat();
    let live = Live::start(&lab, "host", &args);
    let refused = || live.ctl(&["model", "load", "/nowhere"]).expect_code(78);
    refused();
    let wrong = live.ctl(&["log", "inof"]).expect_code(64);
    assert!(wrong.stderr.contains("\"inof\": expected off, error"), "{}", wrong.stderr);
    live.ctl(&["log", "off,fenxi::supervise=warn"]).expect_code(0);
    for _ in 0..20 {
        refused();
    }
    live.ctl(&["log", "error"]).expect_code(0);
    refused();
    let stderr = live.terminate(0).stderr;
    let lines = lines(&stderr);
    let said = "model /nowhere: refused, the old model stays in use: ";
    // The first few, and how many more there were.
    assert_eq!(count(&lines, said), 6, "{stderr}");
    assert_eq!(count(&lines, "… repeated 15 times"), 1, "{stderr}");
    assert_eq!(lines.len(), 6, "{stderr}");
}

/// A launcher that puts `journal` in the place of the journal's folder, in a mount namespace of its
/// own.
fn with_journal(journal: &Path) -> [String; 4] {
    let mount = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                 mount --bind \"$0\" /run/systemd/journal && \
                 export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) && exec \"$@\"";
    ["sh", "-c", mount, journal.to_str().unwrap()].map(str::to_owned)
}

#[test]
fn the_journal_gets_levels_and_targets() {
    let Some(lab) = Lab::new("journal", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let dir = tempfile::tempdir().unwrap();
    let launcher = with_journal(dir.path());
    let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
    let run = |to: &str| {
        let mut command = fenxi_on(&lab, "host", &launcher);
        command.arg("run").args(WATCH).args(["--set", to]);
        command.args(["--set", "control.http=", "--set", "control.socket="]);
        common::run(command)
    };
    let missing = run("log.to=journald").expect_code(69);
    assert!(missing.stderr.contains("no journal listens"), "{}", missing.stderr);

    let journal = UnixDatagram::bind(dir.path().join("socket")).unwrap();
    journal.set_nonblocking(true).unwrap();
    for to in ["log.to=auto", "log.to=journald", "log.to=stderr"] {
        let args = [&WATCH[..], &["--set", to]].concat();
        let live = Live::launch(fenxi_on(&lab, "host", &launcher), &args);
        let stderr = live.terminate(0).stderr;
        let mut entries = Vec::new();
        let mut entry = [0; 4096];
        while let Ok(bytes) = journal.recv(&mut entry) {
            entries.push(String::from_utf8_lossy(&entry[..bytes]).into_owned());
        }
        if to == "log.to=stderr" {
            // The journal behind stderr has the time already.
            assert!(
                stderr.contains("\n INFO fenxi::supervise::live: ready: tap on b\n"),
                "{stderr}"
            );
            assert!(entries.is_empty(), "{entries:?}");
            continue;
        }
        assert_eq!(stderr, "");
        let ready = entries.iter().find(|entry| entry.contains("ready: tap on b"));
        let ready = ready.unwrap_or_else(|| panic!("{to}: {entries:?}"));
        for field in ["PRIORITY\n\u{1}\0\0\0\0\0\0\u{0}6\n", "fenxi::supervise::live"] {
            assert!(ready.contains(field), "{field:?} in {ready:?}");
        }
    }
}
