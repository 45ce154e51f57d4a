//! The exporter of a live run: a collector that comes late, goes, comes back; a full disk.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::lab::Lab;
use crate::common::live::{Live, fenxi_on};
use crate::export::messages::{Messages, tshark};
use crate::export::{WATCH, generate};

/// A wire, and where it is not to be had `None`.
fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, &["host"], &[])?;
    lab.wire_within("host", "a", "b");
    lab.run("host", "ip link set dev lo up");
    Some(lab)
}

fn start(lab: &Lab, launcher: &[&str], to: &str, more: &[&str]) -> Live {
    let mut args = WATCH.to_vec();
    args.extend(["--ipfix", to]);
    args.extend(more);
    Live::launch(fenxi_on(lab, "host", launcher), &args)
}

fn records(live: &Live, outcome: &str) -> f64 {
    let outcome = format!("outcome=\"{outcome}\"");
    let samples = live.samples_with("fenxi_ipfix_records_total", &outcome);
    samples.iter().sum()
}

/// Flow records made so far, all counted by the flow manager that makes them.
fn made(live: &Live) -> f64 {
    live.metric_sum("fenxi_flows_ended_total") + live.metric_sum("fenxi_flow_reports_total")
}

fn flows_are_over(live: &Live) {
    live.wait_for("all flows are over", |live| live.metric_sum("fenxi_flow_table_entries") == 0.0);
}

fn is_connected(live: &Live) -> bool {
    live.metric_sum("fenxi_ipfix_connected") > 0.0
}

/// The collector's end of a connection.
fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Reads messages until they have `flows` flows.
fn read_flows(stream: &mut TcpStream, flows: f64) -> Messages {
    let mut messages = Messages::default();
    let mut buffer = [0; 4096];
    while (messages.flows() as f64) < flows {
        let bytes = stream.read(&mut buffer).unwrap();
        assert!(bytes > 0, "the connection ended");
        messages.extend(&buffer[..bytes]);
    }
    messages
}

#[test]
fn a_collector_comes_late_goes_and_comes_back_and_every_record_is_accounted_for() {
    let Some(lab) = lab("collector") else { return };
    let to = "tcp://127.0.0.1:4739";
    let live = start(&lab, &[], to, &["--set", "ipfix.queue=1024"]);
    assert!(!is_connected(&live));
    // More than can wait.
    generate(&lab, 3000, 3000);
    flows_are_over(&live);
    live.wait_for("the queue is full", |live| records(live, "dropped") > 0.0);
    let waiting = made(&live) - records(&live, "dropped");
    assert!((1.0..=1024.0).contains(&waiting), "{waiting}");
    assert_eq!(records(&live, "sent"), 0.0);

    let listener = lab.on("host", || TcpListener::bind("127.0.0.1:4739").unwrap());
    let mut collector = accept(&listener);
    let first = read_flows(&mut collector, waiting);
    assert_eq!(first.flows() as f64, waiting);
    live.wait_for("all are counted", |live| records(live, "sent") == waiting);
    assert!(is_connected(&live));

    // The collector ends. What was under way then is lost and counted, and later records wait.
    drop((collector, listener));
    generate(&lab, 1000, 200);
    flows_are_over(&live);
    live.wait_for("the loss is noticed", |live| !is_connected(live));
    let listener = lab.on("host", || TcpListener::bind("127.0.0.1:4739").unwrap());
    let mut collector = accept(&listener);
    live.wait_for("it goes on", is_connected);
    generate(&lab, 1000, 100);
    flows_are_over(&live);
    live.wait_for("every record met its fate", |live| {
        made(live) == records(live, "sent") + records(live, "failed") + records(live, "dropped")
    });
    let second = read_flows(&mut collector, records(&live, "sent") - waiting);
    assert_eq!(second.first_sequence(), 0, "a new session");
    assert_eq!(live.metric_sum("fenxi_ipfix_sessions_total"), 2.0);
    let finished = live.terminate(0);
    // Once before the first session, once between the two.
    for said in ["cannot send records: ", "sending records again; "] {
        let times = finished.stderr.matches(said).count();
        assert_eq!(times, 2, "{said}: {}", finished.stderr);
    }
    assert_eq!(finished.stderr.matches("Connection refused").count(), 1);
}

#[test]
fn a_run_ends_in_time_without_its_collector_and_says_what_is_lost() {
    let Some(lab) = lab("alone") else { return };
    let to = "tcp://127.0.0.1:4739";
    let live = start(&lab, &[], to, &["--set", "records.drain_s=1"]);
    generate(&lab, 1000, 200);
    flows_are_over(&live);
    let lost = made(&live);
    let finished = live.terminate(74);
    assert_eq!(finished.json()["ipfix_lost"].as_f64(), Some(lost));
    let said = format!("{to}: {lost} records were not written within 1 s of the shutdown");
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
}

/// The sandbox allows this one connection; a name that has no address is no error of a start.
#[test]
fn a_name_that_does_not_resolve_does_not_stop_a_run() {
    let Some(lab) = lab("unnamed") else { return };
    let live = start(&lab, &[], "udp://collector.invalid:4739", &[]);
    live.wait_for("the failure is logged", |live| {
        live.said("udp://collector.invalid:4739: cannot send records: ") == 1
    });
    assert!(!is_connected(&live));
    live.terminate(0);
}

#[test]
fn a_full_disk_is_counted_and_leaves_whole_messages() {
    let Some(lab) = lab("ipfix-full") else { return };
    let dir = tempfile::tempdir().unwrap();
    // Seen by fenxi alone, in the mount namespace that `ip netns exec` makes.
    let mount = "mount -t tmpfs -o size=1m none \"$0\" && head -c 1000000 /dev/zero > \
        \"$0/ballast\" && exec \"$@\"";
    let disk = dir.path().to_str().unwrap();
    let to = format!("file:{disk}/flows.ipfix");
    let live = start(&lab, &["sh", "-c", mount, disk], &to, &[]);
    let inside = |name: &str| PathBuf::from(format!("/proc/{}/root{disk}/{name}", live.pid()));
    generate(&lab, 2000, 2000);
    live.wait_for("records are lost", |live| records(live, "failed") > 0.0);
    fs::remove_file(inside("ballast")).unwrap();
    flows_are_over(&live);
    live.wait_for("every record met its fate", |live| {
        made(live) == records(live, "sent") + records(live, "failed") + records(live, "dropped")
    });
    assert_eq!(records(&live, "dropped"), 0.0);
    let sent = records(&live, "sent");
    let bytes = fs::read(inside("flows.ipfix")).unwrap();
    let finished = live.terminate(0);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    let mut messages = Messages::default();
    messages.extend(&bytes);
    assert!(messages.is_whole());
    assert_eq!(messages.flows() as f64, sent);
}

#[test]
fn a_file_that_was_moved_away_is_begun_again_with_templates() {
    let test = "a_file_that_was_moved_away_is_begun_again_with_templates";
    let Some(lab) = lab("ipfix-moved") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("flows.ipfix"), dir.path().join("moved"));
    let to = format!("file:{}", path.display());
    let live = start(&lab, &[], &to, &[]);
    generate(&lab, 1000, 50);
    flows_are_over(&live);
    let before = made(&live);
    live.wait_for("all are written", |live| records(live, "sent") == before);
    fs::rename(&path, &moved).unwrap();
    live.ctl(&["reopen"]).expect_code(0);
    generate(&lab, 1000, 30);
    flows_are_over(&live);
    let after = made(&live) - before;
    live.terminate(0);
    for (path, flows) in [(moved, before), (path, after)] {
        // tshark decodes no record whose template it has not seen in the same file.
        let Some(lines) = tshark(test, &path, &["cflow.flow_id"]) else {
            return;
        };
        let ids = lines.iter().flat_map(|line| line[0].split(','));
        let decoded = ids.filter(|id| !id.is_empty()).count();
        assert_eq!(decoded as f64, flows);
    }
}
