//! For tests with DPDK, also in other crates: a process for each test, since DPDK starts once
//! per process, and captures.

#![allow(clippy::unwrap_used, dead_code, reason = "tests, each of which uses some of it")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Set in the process that does a test's work.
const INSIDE: &str = "FENXI_DPDK_TEST";

/// Runs the test of this name in another process.
pub fn alone(name: &str, test: impl FnOnce()) {
    run(Command::new(std::env::current_exe().unwrap()), name, test);
}

/// The same in a network namespace of its own. Says so and does nothing where that needs rights
/// that the process lacks.
pub fn alone_in_namespace(name: &str, test: impl FnOnce()) {
    let unshared = |command: &mut Command| command.arg("--net").arg("true").status();
    if std::env::var_os(INSIDE).is_none()
        && !unshared(&mut Command::new("unshare")).is_ok_and(|it| it.success())
    {
        assert!(std::env::var_os("FENXI_REQUIRE_ALL").is_none_or(|it| it != "1"));
        // Not `println`, which the harness keeps to itself.
        let line = format!("SKIPPED {name}: needs root\n");
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().unwrap());
    run(command, name, test);
}

fn run(mut command: Command, name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    command.args([name, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("1 passed"), "{out}{err}");
    for line in err.lines() {
        assert!(!line.contains("EAL:"), "DPDK talks: {line}");
    }
}

/// Runs `ip` with these words.
pub fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "ip {words}");
}

/// A capture of these packets (pcap, microseconds).
pub fn capture(path: &Path, packets: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0x4_0000, 1] {
        bytes.extend_from_slice(&u32::to_le_bytes(word));
    }
    for packet in packets {
        let length = packet.len() as u32;
        for word in [1, 0, length, length] {
            bytes.extend_from_slice(&u32::to_le_bytes(word));
        }
        bytes.extend_from_slice(packet);
    }
    fs::write(path, bytes).unwrap();
}

/// The packets of a capture.
pub fn packets_of(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let (mut at, mut packets) = (24, Vec::new());
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        packets.push(bytes[at + 16..at + 16 + length].to_vec());
        at += 16 + length;
    }
    packets
}
