//! Sends the frames of a capture round and round, for `figures/live`: the load of a
//! forwarder, at next to no cost.
//!
//!     blast INTERFACE CAPTURE PPS SECONDS ROUNDS
//!
//! PPS 0 is as fast as the interface takes them. After each ROUNDS rounds the flows over IPv4 are
//! other ones: addresses in 10.0.0.0/8, of which a flow of `fenxi-lab generate` has one, go on by
//! 0.1.0.0. Checksums are left as they were.

#![allow(clippy::expect_used, reason = "a program of the bench may end with a message of its own")]

use std::time::{Duration, Instant};

use packetio::{Backend, Burst, CaptureReader, Frame, Received, Rx, Selection, open_tx};

/// Frames sent together.
const BATCH: usize = 64;
/// Ethertype, source and destination address of a frame without tags.
const ETHERTYPE: usize = 12;
const ADDRESSES: [usize; 2] = [26, 30];

fn load(path: &str) -> (Vec<u8>, Vec<Frame>) {
    let mut reader = CaptureReader::open(path.as_ref()).expect("the capture opens");
    let (mut data, mut frames) = (Vec::new(), Vec::new());
    while let Received::Burst(burst) = reader.receive(BATCH).expect("the capture is whole") {
        for (i, frame) in burst.frames().iter().enumerate() {
            let at = data.len();
            data.extend_from_slice(burst.bytes(i));
            frames.push(Frame { at, ..*frame });
        }
    }
    (data, frames)
}

/// Makes other flows of them.
fn change_flows(data: &mut [u8], frames: &[Frame]) {
    for frame in frames {
        let bytes = &mut data[frame.range()];
        if bytes.get(ETHERTYPE..ETHERTYPE + 2) != Some(&[8, 0]) || bytes.len() < 34 {
            continue;
        }
        for at in ADDRESSES {
            if bytes[at] == 10 {
                bytes[at + 1] = bytes[at + 1].wrapping_add(1);
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, capture, pps, seconds, rounds] = &arguments[..] else {
        eprintln!("usage: blast INTERFACE CAPTURE PPS SECONDS ROUNDS");
        std::process::exit(64);
    };
    let pps: f64 = pps.parse().expect("PPS is a number");
    let most = Duration::from_secs_f64(seconds.parse().expect("SECONDS is a number"));
    let rounds: u64 = rounds.parse().expect("ROUNDS is a number");
    let (mut data, frames) = load(capture);
    let mut out = open_tx(<&Backend>::default(), interface).expect("the interface sends");
    let (began, mut sent, mut round) = (Instant::now(), 0_u64, 0);
    while began.elapsed() < most {
        for batch in frames.chunks(BATCH) {
            if pps > 0.0 {
                let due = Duration::from_secs_f64(sent as f64 / pps);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            sent += batch.len() as u64;
            out.send(&Burst::new(&mut data, batch), Selection::All).expect("the interface is up");
            if began.elapsed() >= most {
                break;
            }
        }
        round += 1;
        if round % rounds == 0 {
            change_flows(&mut data, &frames);
        }
    }
    let wall = began.elapsed().as_secs_f64();
    println!("{{\"sent\":{},\"wall_s\":{wall}}}", out.counts().sent);
}
