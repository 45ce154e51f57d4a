//! `--write`: the packets as they would leave.
//!
//! Promised: every packet, in order, with its time and lengths; nothing changed but the DSCP and
//! the IPv4 header checksum; the DSCP set from the moment the label counts, on these packets and no
//! other. Which these are is worked out here anew, from the bytes of the input and the flow
//! records. Most runs take the simulated device, whose labels are many and need no library.

use crate::common;

mod expected;
mod hours;

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::packets::{self, Captured, conversation, read_capture, timed};
use common::{Finished, SIMULATED, demo, fenxi_asking_once, run};
use expected::{Flow, Tuple, tuple, with_dscp};
use packetio::CaptureFormat;

/// DSCP by label: another one for each, 1 for the first.
fn dscp_of(label: &str) -> u8 {
    let place = common::labels(&common::bundle()).iter().position(|known| known == label).unwrap();
    place as u8 + 1
}

/// `--set` for [`dscp_of`].
fn all_labels_mapped() -> [String; 2] {
    let entries: Vec<_> = common::labels(&common::bundle())
        .iter()
        .map(|label| format!("\"{label}\" = {}", dscp_of(label)))
        .collect();
    ["--set".to_owned(), format!("tag.dscp={{ {} }}", entries.join(", "))]
}

struct Tagging {
    dir: tempfile::TempDir,
}

impl Tagging {
    fn new() -> Tagging {
        Tagging { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn made(&self, name: &str, bytes: Vec<u8>) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn replay(&self, input: &Path, output: &str, more: &[&str]) -> Finished {
        let mut args: Vec<OsString> = vec!["replay".into(), input.into(), "--json".into()];
        args.extend(["--write".into(), self.path(output).into()]);
        args.extend(more.iter().map(Into::into));
        run(fenxi_asking_once(args))
    }

    /// Replays with all labels mapped and holds the output against what is worked out here.
    fn check(&self, input: &Path, output: &str, delay_ms: i64, more: &[&str]) -> Finished {
        let (mapped, records) = (all_labels_mapped(), self.path("flows.jsonl"));
        let delay = delay_ms.to_string();
        let mut args = vec!["--flows", records.to_str().unwrap(), "--label-delay-ms", &delay];
        args.extend(mapped.iter().map(String::as_str));
        args.extend(more);
        let finished = self.replay(input, output, &args).expect_code(0);

        let mut flows: HashMap<Tuple, VecDeque<Flow>> = HashMap::new();
        for record in common::json_lines(&records) {
            // ICMP is not tagged, because it gets no label.
            if record["type"] == "flow" && (record["proto"] == 6 || record["proto"] == 17) {
                let (tuple, flow) = Flow::from_record(&record);
                flows.entry(tuple).or_default().push_back(flow);
            }
        }
        let (before, after) = (read_capture(input), read_capture(&self.path(output)));
        assert_eq!(before.len(), after.len());
        let mut tagged = 0;
        for (at, ((frame, bytes), (frame_after, bytes_after))) in
            before.iter().zip(&after).enumerate()
        {
            assert_same_frame(at, frame, frame_after);
            let mut expected = bytes.clone();
            if let Some(flows) = tuple(bytes).and_then(|tuple| flows.get_mut(&tuple)) {
                let flow = flows.front_mut().expect("no packet beyond the records");
                if flow.next(frame.time_us, delay_ms * 1000)
                    && let Some(label) = &flow.label
                {
                    expected = with_dscp(bytes, dscp_of(label));
                    tagged += 1;
                }
                if flow.seen == flow.packets {
                    flows.pop_front();
                }
            }
            assert!(
                expected == *bytes_after,
                "packet {at}: {expected:02x?} not {bytes_after:02x?}"
            );
        }
        assert!(flows.values().all(VecDeque::is_empty), "no record beyond the packets");
        assert!(tagged > 0);
        assert_eq!(finished.json()["verdicts"]["labelled"], tagged);
        finished
    }
}

fn assert_same_frame(at: usize, before: &packetio::Frame, after: &packetio::Frame) {
    let of = |frame: &packetio::Frame| {
        (frame.time_us, frame.time_sub_ns, frame.captured, frame.wire, frame.link)
    };
    assert_eq!(of(before), of(after), "packet {at}");
}

fn assert_same_packets(before: &[Captured], after: &[Captured]) {
    assert_eq!(before.len(), after.len());
    for (at, (before, after)) in before.iter().zip(after).enumerate() {
        assert_same_frame(at, &before.0, &after.0);
        assert!(before.1 == after.1, "packet {at} changed");
    }
}

#[test]
fn labelled_packets_and_no_others_carry_the_dscp() {
    let tagging = Tagging::new();
    let delays = [0, 5].map(|delay_ms| {
        let summary = tagging.check(&demo(), "tagged.pcap", delay_ms, &SIMULATED).json();
        summary["verdicts"]["labelled"].as_u64().unwrap()
    });
    assert!(delays[0] > delays[1], "{delays:?}");
}

#[test]
fn the_model_tags_as_well() {
    let tagging = Tagging::new();
    let summary = tagging.check(&demo(), "tagged.pcap", 0, &[]).json();
    let effective = summary["devices"][0]["effective"].as_str().expect("a text");
    assert!(effective.starts_with("native ("), "{effective}");
    assert_eq!(summary["devices_why"], serde_json::json!(["default: native takes this model"]));
}

#[test]
fn both_ip_versions_keep_congestion_bits_and_nanoseconds() {
    let tagging = Tagging::new();
    let frames = [conversation(false, 4000, 25), conversation(true, 4000, 25)].concat();
    let input = tagging.made("in.pcap", packets::pcap(frames));
    for output in ["out.pcap", "out.pcapng"] {
        let summary = tagging.check(&input, output, 0, &SIMULATED).json();
        assert_eq!(summary["verdicts"]["labelled"], 32);
        let after = read_capture(&tagging.path(output));
        assert_eq!(after[49].0.time_sub_ns, 49);
        // ECN: the lower two bits of TOS, bits 4 and 5 of an IPv6 header's second byte.
        let second_byte = |at: usize| after[at].1[15];
        assert_eq!((second_byte(0), second_byte(24) & 3, second_byte(49) >> 4 & 3), (2, 2, 2));
    }
}

#[test]
fn tshark_finds_no_wrong_checksum() {
    let test = "tshark_finds_no_wrong_checksum";
    let tagging = Tagging::new();
    tagging.check(&demo(), "tagged.pcap", 0, &SIMULATED);
    let fields = ["-T", "fields", "-e", "ip.checksum.status", "-o", "ip.check_checksum:TRUE"];
    let tshark =
        Command::new("tshark").args(fields).arg("-r").arg(tagging.path("tagged.pcap")).output();
    let Ok(tshark) = tshark else {
        return common::skip(test, "tshark");
    };
    let told = String::from_utf8(tshark.stdout).unwrap();
    // 1 is good, 0 bad; a packet inside ICMP has a status of its own.
    let statuses: Vec<&str> =
        told.lines().flat_map(|line| line.split(',')).filter(|s| !s.is_empty()).collect();
    assert!(statuses.len() > 1000, "{}", statuses.len());
    assert!(statuses.iter().all(|&status| status == "1"));
}

#[test]
fn the_file_repeats_whatever_the_batches_are() {
    let tagging = Tagging::new();
    let variants: [&[&str]; 3] = [
        &["--set", "analytics.timeout_ms=0.1", "--set", "ring.slots=16", "--set", "io.burst=1"],
        &["--set", "analytics.policy=timeout", "--set", "analytics.batch_sizes=[3, 100]"],
        &["--set", "accel.simulated_t0_us=20000", "--set", "analytics.max_wait_ms=500"],
    ];
    let mapped = all_labels_mapped();
    let files = variants.map(|more| {
        let args = [&SIMULATED[..], more, &mapped.each_ref().map(String::as_str)].concat();
        tagging.replay(&demo(), "tagged.pcap", &args).expect_code(0);
        std::fs::read(tagging.path("tagged.pcap")).unwrap()
    });
    assert!(files[0] == files[1] && files[1] == files[2]);
}

#[test]
fn without_tagging_nothing_changes() {
    let tagging = Tagging::new();
    let off = [&SIMULATED[..], &["--set", "tag.mode=off"]].concat();
    tagging.replay(&demo(), "out.pcap", &off).expect_code(0);
    assert_same_packets(&read_capture(&demo()), &read_capture(&tagging.path("out.pcap")));
    let Some(captures) = common::shared("captures/train") else {
        return common::skip("without_tagging_nothing_changes", "the shared captures");
    };
    for name in ["http_ipv6.pcap", "stun_signal.pcapng", "iphone.pcap"] {
        let input = captures.join(name);
        tagging.replay(&input, "out.pcapng", &off).expect_code(0);
        assert_same_packets(&read_capture(&input), &read_capture(&tagging.path("out.pcapng")));
    }
}

#[test]
fn link_types_mix_in_pcapng_only() {
    let tagging = Tagging::new();
    let mut frames = timed(packets::ETHERNET, conversation(false, 4000, 15));
    for (frame, bytes) in &mut frames[12..] {
        (frame.link, frame.captured, frame.wire) =
            (packets::RAW_IP, frame.captured - 14, frame.wire - 14);
        bytes.drain(..14);
    }
    let input = tagging.made("in.pcapng", packets::capture(CaptureFormat::Pcapng, &frames));
    let finished = tagging.replay(&input, "out.pcap", &SIMULATED).expect_code(74);
    for part in ["out.pcap: ", "one link type", "write to a .pcapng file instead"] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    let off = [&SIMULATED[..], &["--set", "tag.mode=off"]].concat();
    tagging.replay(&input, "out.pcapng", &off).expect_code(0);
    assert_same_packets(&frames, &read_capture(&tagging.path("out.pcapng")));
}

#[test]
fn a_second_pass_goes_on_in_time() {
    let tagging = Tagging::new();
    let input = tagging.made("in.pcap", packets::pcap(conversation(true, 4000, 15)));
    let args = [&SIMULATED[..], &["--loop", "2"]].concat();
    let summary = tagging.replay(&input, "out.pcap", &args).expect_code(0).json();
    assert_eq!((&summary["packets"], &summary["flows"]["begun"]), (&30.into(), &1.into()));
    let (before, after) = (read_capture(&input), read_capture(&tagging.path("out.pcap")));
    assert_eq!(after.len(), 30);
    // The second pass begins 1 µs after the end of the first.
    for (at, (first, second)) in after[..15].iter().zip(&after[15..]).enumerate() {
        assert_same_frame(at, &before[at].0, &first.0);
        assert_eq!(second.0.time_us - first.0.time_us, 14_001);
        assert_eq!(second.0.time_sub_ns, first.0.time_sub_ns);
    }
}

#[test]
fn a_paced_replay_writes_every_packet_too() {
    let tagging = Tagging::new();
    let args = [&SIMULATED[..], &["--speed", "200x"]].concat();
    tagging.replay(&demo(), "out.pcap", &args).expect_code(0);
    let (before, after) = (read_capture(&demo()), read_capture(&tagging.path("out.pcap")));
    assert_eq!(before.len(), after.len());
    for (at, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_same_frame(at, &before.0, &after.0);
        // Labels come when they come; what they must leave alone is the rest.
        let without = |frame: &[u8]| tuple(frame).map_or(frame.to_vec(), |_| with_dscp(frame, 0));
        assert!(without(&before.1) == without(&after.1), "packet {at}");
    }
}
