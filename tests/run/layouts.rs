//! Several flow managers on one interface: both directions of each flow meet at one of them, and
//! all have a share.

use std::process::Command;

use crate::common::lab::Lab;
use crate::common::live::Live;
use crate::common::packets;
use crate::common::{self};
use crate::run::traffic::{assert_same_flows, flows, send};

const LAYOUTS: [(&[&str], usize); 4] = [
    (&["--set", "pipeline.layout=1:1:1"], 1),
    (&["--set", "pipeline.layout=2:1:1"], 2),
    (&["--set", "pipeline.instances=2"], 2),
    (&["--set", "pipeline.layout=2:1:1", "--set", "pipeline.instances=2"], 4),
];

/// Flows of both families, there and back in turn: plain, with one tag of a VLAN and with two, and
/// with a fragment behind each packet.
fn conversations() -> Vec<Vec<u8>> {
    let tag = |kind: u16, frame: &[u8]| {
        [&frame[..12], &kind.to_be_bytes(), &[0x00, 42], &frame[12..]].concat()
    };
    let mut frames = Vec::new();
    for number in 0..64 {
        let is_v6 = number % 2 == 1;
        let port = 20_000 + 7 * number;
        for frame in packets::conversation(is_v6, port, 12) {
            match number % 8 / 2 {
                0 => frames.push(frame),
                1 => frames.push(tag(0x8100, &frame)),
                2 => frames.push(tag(0x88a8, &tag(0x8100, &frame))),
                _ => frames.extend(fragments(&frame, is_v6)),
            }
        }
    }
    frames
}

/// The packet as a first fragment, which has the ports, and a second one, which has not.
fn fragments(frame: &[u8], is_v6: bool) -> [Vec<u8>; 2] {
    let (header, payload) = frame.split_at(if is_v6 { 14 + 40 } else { 14 + 20 });
    if is_v6 {
        let fragment = |offset: u16, payload: &[u8]| {
            let mut header = header.to_vec();
            let length = 8 + payload.len() as u16;
            header[18..20].copy_from_slice(&length.to_be_bytes());
            header[20] = 44;
            let [high, low] = offset.to_be_bytes();
            [&header, &[17, 0, high, low, 0, 0, 0, 9][..], payload].concat()
        };
        // The lowest bit says that more follow.
        return [fragment(1, &payload[..16]), fragment(16, &[1; 8])];
    }
    let fragment = |offset: u16, payload: &[u8]| {
        let mut header = header.to_vec();
        let length = 20 + payload.len() as u16;
        header[16..18].copy_from_slice(&length.to_be_bytes());
        header[20..22].copy_from_slice(&offset.to_be_bytes());
        header[24..26].fill(0);
        let sum = packets::checksum(&header[14..34]);
        header[24..26].copy_from_slice(&sum.to_be_bytes());
        [&header, payload].concat()
    };
    [fragment(0x2000, &payload[..16]), fragment(2, &[1; 8])]
}

#[test]
fn both_directions_of_each_flow_meet_in_every_layout() {
    const WHOLE: [&str; 5] =
        ["--series", "--set", "flow.idle_timeout_s=0", "--set", "flow.end_on_fin_rst=false"];
    let dir = tempfile::tempdir().unwrap();
    let [capture, live_path, replay_path] =
        ["capture", "live", "replay"].map(|name| dir.path().join(name));
    let office = packets::read_capture(&common::demo()).into_iter();
    let office = office.map(|(_, bytes)| bytes);
    let frames: Vec<_> = office.chain(conversations()).collect();
    std::fs::write(&capture, packets::whole(frames.clone())).unwrap();
    let mut replay = common::fenxi(["replay", "--json"]);
    replay.arg(&capture).arg("--flows").arg(&replay_path);
    replay.args(WHOLE).args(common::SIMULATED);
    let replayed = common::run(replay).expect_code(0).json();
    let one_way = |path| {
        let records = common::json_lines(path).into_iter();
        let flows = records.filter(|record| record["type"] == "flow");
        flows.filter(|flow| flow["one_way"] == true).count()
    };

    for (layout, executors) in LAYOUTS {
        let Some(lab) = Lab::new("layouts", &["host"], &[]) else {
            return;
        };
        lab.wire_within("host", "a", "b");
        // A live run writes behind what is there.
        let _ = std::fs::remove_file(&live_path);
        let args = ["--set", "io.interfaces=[\"b\"]", "--flows"];
        let path = [live_path.to_str().unwrap()];
        let args = [&args[..], &path, layout, &WHOLE, &common::SIMULATED].concat();
        let live = Live::start(&lab, "host", &args);
        let sent = lab.on("host", || send(&capture, "a"));
        assert_eq!(sent, frames.len() as u64);
        live.wait_for_packets(sent);
        assert_eq!(live.metric_sum("fenxi_balance"), 0.0);
        let queues = live.samples("fenxi_port_packets_total");
        assert_eq!(queues.len(), executors);
        assert!(queues.iter().all(|packets| *packets > sent as f64 / 20.0), "{queues:?} of {sent}");
        assert_eq!(threads(&live), executors);
        let summary = live.terminate(0).json();

        assert_eq!(summary["packets"], sent);
        assert_eq!(summary["flows"]["begun"], replayed["flows"]["begun"]);
        let ended = common::sum(&summary["flows"]["ended"]);
        assert_eq!(ended, summary["flows"]["begun"].as_u64().unwrap());
        assert!(flows(&live_path).len() > 64);
        assert_eq!(one_way(&live_path), one_way(&replay_path), "{layout:?}");
        assert_same_flows(&live_path, &replay_path);
    }
}

/// Flow managers that `fenxi ctl threads` lists.
fn threads(live: &Live) -> usize {
    let mut ctl: Command = common::fenxi(["ctl", "threads", "--json", "--socket"]);
    ctl.arg(live.socket());
    let reply = common::run(ctl).expect_code(0).json();
    let threads = reply["threads"].as_array().unwrap();
    let names = threads.iter().map(|thread| thread["name"].as_str().unwrap());
    names.filter(|name| name.starts_with("flow-")).count()
}
