//! Mode inline: what a sender left to the kernel to split (UDP_SEGMENT) arrives as the datagrams
//! that it meant.

use crate::common::lab::Lab;
use crate::common::{packets, uninterrupted};
use crate::run::capture::{listen, seen};
use crate::run::inline::{RIGHT, all_was_sent, start, tagged_flows};
use crate::run::traffic::patient_socket;

/// Times that the sender hands the kernel many at once.
const BATCHES: usize = 40;
/// Datagrams in each of them.
const SEGMENTS: usize = 16;
/// Bytes of a datagram, but for the last one of a batch, which is shorter.
const SEGMENT: usize = 1200;
const LAST_SEGMENT: usize = 700;

/// Sends numbered datagrams to an address and port, a batch in one sendmsg, and waits for a byte
/// after each.
const SENDER: &str = r#"
import socket, sys
address, port, batches, segments, segment, last = sys.argv[1], *map(int, sys.argv[2:])
UDP_SEGMENT = 103
sender = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
sender.settimeout(30)
sender.connect((address, port))
sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, segment)
for batch in range(batches):
    numbers = range(batch * segments, (batch + 1) * segments)
    datagrams = [number.to_bytes(4, "big") + bytes([number % 251]) * (segment - 4) for number in numbers]
    datagrams[-1] = datagrams[-1][:last]
    sent = sender.sendmsg([b"".join(datagrams)])
    assert sent == (segments - 1) * segment + last, sent
    sender.recv(1)
"#;

/// Both where the datagrams come to fenxi as one packet, which it sends on as one or has split, and
/// where they come one by one.
#[test]
fn datagrams_that_the_kernel_splits_arrive_in_order() {
    for (is_merged, is_split) in [(true, false), (true, true), (false, true)] {
        let Some(lab) = Lab::bridged("segments", &["python3", "tcpdump", "tshark", "ethtool"])
        else {
            return;
        };
        if is_split {
            let plain = "tx off tso off gso off gro off tx-udp-segmentation off";
            lab.run("box", &format!("ethtool -K r {plain}"));
        }
        if !is_merged {
            lab.run("left", "ethtool -K eth tx-udp-segmentation off");
        }
        let dir = tempfile::tempdir().unwrap();
        let [sender, capture] = ["sender.py", "capture"].map(|name| dir.path().join(name));
        std::fs::write(&sender, SENDER).unwrap();
        let live = start(&lab, &[]);
        let right = listen(&lab, &live, &capture);
        for address in RIGHT {
            let socket = lab.on("right", || patient_socket(address));
            let port = socket.local_addr().unwrap().port();
            let sending = format!(
                "python3 {} {address} {port} {BATCHES} {SEGMENTS} {SEGMENT} {LAST_SEGMENT}",
                sender.display()
            );
            let sending = lab.spawn("left", &sending);
            for batch in 0..BATCHES {
                let mut last_from = None;
                for at in 0..SEGMENTS {
                    let mut bytes = [0; 2 * SEGMENT];
                    let received = uninterrupted(|| socket.recv_from(&mut bytes));
                    let (length, from) = received.unwrap();
                    let number = batch * SEGMENTS + at;
                    let expected = match at + 1 == SEGMENTS {
                        true => LAST_SEGMENT,
                        false => SEGMENT,
                    };
                    assert_eq!(length, expected, "{address}: datagram {number}");
                    assert_eq!(bytes[..4], (number as u32).to_be_bytes(), "{address}");
                    let fill = (number % 251) as u8;
                    assert!(bytes[4..length].iter().all(|byte| *byte == fill));
                    last_from = Some(from);
                }
                socket.send_to(&[0], last_from.unwrap()).unwrap();
            }
            sending.wait();
        }
        right.finish(&live);
        let datagrams = (RIGHT.len() * BATCHES * SEGMENTS) as u64;
        // The far side sees packets as they left fenxi's machine, merged without their checksums.
        let captured = packets::read_capture(&capture).len() as u64;
        assert_eq!(captured >= datagrams, is_split, "{captured} of {datagrams}");
        if is_split {
            let frames = seen(&capture);
            assert_eq!(tagged_flows(&frames), (RIGHT.len(), 0));
        }
        let passed = all_was_sent(live);
        assert_eq!(passed >= datagrams, !is_merged, "{passed} of {datagrams}");
    }
}
