//! A thousand connections to each socket of a run under traffic: they are turned away, and leave
//! nothing behind.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::live::{WATCH, generate};

fn open_files(live: &Live) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", live.pid())).unwrap();
    files.count()
}

/// Resident memory, KiB.
fn resident(live: &Live) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", live.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A thousand that connect and ask half a question; how many of them are told that there is no
/// room.
fn crowd(socket: &Path, question: &[u8], no_room: &str) -> usize {
    let connect = || UnixStream::connect(socket).unwrap();
    let mut streams: Vec<UnixStream> = (0..1000).map(|_| connect()).collect();
    for stream in &mut streams {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Those that are turned away may be so already.
        let _ = stream.write_all(question);
    }
    let is_turned_away = |stream: &mut UnixStream| {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.contains(no_room)
    };
    streams.iter_mut().filter_map(|it| is_turned_away(it).then_some(())).count()
}

#[test]
fn a_thousand_connections_to_each_socket_are_not_felt() {
    let Some(lab) = Lab::new("crowd", &["host"], &[]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let live = Live::start(&lab, "host", &WATCH);
    // The first time round what is grown once and for all.
    let mut before = (0, 0);
    for round in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| generate(&lab, 1000, 3000));
            let turned_away = crowd(&live.socket(), b"{\"command\":", "503");
            assert!(turned_away >= 900, "{turned_away}");
            let turned_away = crowd(&live.http(), b"GET /metr", "HTTP/1.1 503");
            assert!(turned_away >= 900, "{turned_away}");
        });
        live.wait_for("there is room again", |live| live.ctl(&["status"]).code == 0);
        live.wait_for("no connection is left", |live| round == 0 || open_files(live) <= before.0);
        if round == 0 {
            before = (open_files(&live), resident(&live));
        }
    }
    let after = resident(&live);
    assert!(after < before.1 + 4096, "{} KiB became {after}", before.1);
    let lost = live.samples_with("fenxi_port_dropped_packets_total", "ring_full");
    assert_eq!(lost.iter().sum::<f64>(), 0.0);
    assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
    live.terminate(0);
}
