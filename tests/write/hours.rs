//! Rules by VLAN, by the DSCP that packets came with, and by the time of the packets.

use std::fs;

use super::Tagging;
use crate::common::packets::{ETHERNET, capture, conversation, read_capture, timed};
use crate::common::{SIMULATED, fenxi_asking_once, run};
use packetio::CaptureFormat;

/// Thursday, 1 January 2026, 18:59 in UTC: 19:59 in Berlin.
const BEFORE_EIGHT_US: i64 = 1_767_293_940_000_000;

const RULES: &str = r#"
[[rule]]
name = "cameras"
vlan = [20, "300-309"]
dscp = "CS1"

[[rule]]
name = "trusted"
dscp_seen = "AF41"
dscp = "AF42"

[[rule]]
name = "evening"
when = ["thu 20:00-20:02", "sat,sun"]
dscp = "LE"

[[rule]]
name = "at work"
profile = "work"
dscp = "EF"
"#;

/// The frame behind a VLAN tag.
fn in_vlan(tag: u16, frame: &[u8]) -> Vec<u8> {
    let tci = 0x6000 | tag;
    [&frame[..12], &[0x81, 0], &tci.to_be_bytes(), &frame[12..]].concat()
}

/// The DSCP of an IPv4 packet over Ethernet, behind tags.
fn dscp(frame: &[u8]) -> u8 {
    let ip = (12..).step_by(4).find(|at| frame[*at..at + 2] == [8, 0]).unwrap() + 2;
    frame[ip + 1] >> 2
}

/// A flow of 8 packets, 30 seconds apart.
fn flow(port: u16) -> Vec<Vec<u8>> {
    conversation(false, port, 8)
}

#[test]
fn rules_count_in_their_hours_vlans_and_profiles_by_packet_time() {
    let tagging = Tagging::new();
    let rules = tagging.path("rules.toml");
    fs::write(&rules, RULES).unwrap();
    let mut marked = flow(5);
    for frame in &mut marked {
        frame[15] = 34 << 2;
    }
    let tagged = |tags: &[u16]| -> Vec<Vec<u8>> {
        let tag = |frame: Vec<u8>, tag: &u16| in_vlan(*tag, &frame);
        flow(1000 + tags[0]).into_iter().map(|frame| tags.iter().fold(frame, tag)).collect()
    };
    // The last tag is the outermost.
    let flows =
        [flow(1), tagged(&[20]), tagged(&[7, 305]), tagged(&[305, 7]), marked, tagged(&[21])];
    let mut frames = Vec::new();
    for packet in 0..8 {
        frames.extend(flows.iter().map(|flow| flow[packet].clone()));
    }
    let mut frames = timed(ETHERNET, frames);
    for (at, (frame, _)) in frames.iter_mut().enumerate() {
        let round = (at / flows.len()) as i64;
        frame.time_us = BEFORE_EIGHT_US + round * 30_000_000 + at as i64 * 1000;
    }
    let format = CaptureFormat::Pcap { nanosecond: true };
    let input = tagging.made("in.pcap", capture(format, &frames));
    let rules = format!("policy.rules={}", rules.display());
    let evening = [0, 0, 1, 1, 1, 1, 0, 0];
    let (cameras, trusted) = ([8; 8], [36; 8]);
    for (profile, burst) in [("[]", "64"), ("[]", "1"), ("[\"work\"]", "7")] {
        let output = tagging.path("out.pcap");
        let profiles = format!("policy.profiles={profile}");
        let burst = format!("io.burst={burst}");
        let mut command = fenxi_asking_once(["replay"]);
        command.arg(&input).arg("--write").arg(&output).args(SIMULATED);
        for set in [&rules, &profiles, &burst] {
            command.args(["--set", set]);
        }
        command
            .args(["--set", "tag.dscp={}", "--set", "flow.idle_timeout_s=600"])
            .env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3");
        run(command).expect_code(0);
        let else_is = if profile == "[]" { 0 } else { 46 };
        let evening = evening.map(|is_in| if is_in == 1 { 1 } else { else_is });
        let after = read_capture(&output);
        for (number, expected) in
            [evening, cameras, cameras, evening, trusted, evening].into_iter().enumerate()
        {
            let of_flow = after.iter().skip(number).step_by(flows.len());
            let dscps: Vec<u8> = of_flow.map(|(_, bytes)| dscp(bytes)).collect();
            assert_eq!(dscps, expected, "flow {number}, profiles {profile}");
        }
    }
}
