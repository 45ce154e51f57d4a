//! Established connections of TCP: a handshake, then a transfer from the server with eight segments
//! on their way, of which the client acknowledges each second one. Timestamps are on, as hosts have
//! them by default.

use flowmgr::{Gso, Packet};

use crate::{FLOWS, PACKETS, flow_of};

/// Rounds of [`PACKETS`] for which there are packets: a transfer cannot be walked twice.
pub const ROUNDS: usize = 4;
/// Ethernet, IPv4, TCP with timestamps.
const FRAME: usize = 14 + 20 + 32;
const PAYLOAD: u32 = 1448;
const IN_FLIGHT: u32 = 8;
/// Between two packets of the wire: a flow has one each 12 ms.
const STEP_US: i64 = 12;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The packets of all rounds.
pub fn packets() -> (Vec<u8>, Vec<Packet>) {
    let mut data = Vec::with_capacity(ROUNDS * PACKETS * FRAME);
    let mut packets = Vec::with_capacity(ROUNDS * PACKETS);
    for number in 0..ROUNDS * PACKETS {
        let time_us = number as i64 * STEP_US;
        packets.push(Packet {
            at: data.len(),
            captured: FRAME as u32,
            wire: u32::MAX,
            link: 1,
            time_us,
            rss: None,
            gso: Gso::NONE,
        });
        data.extend(frame(flow_of(number), (number / FLOWS) as u32, time_us));
    }
    (data, packets)
}

/// Packet `number` of flow `flow`.
fn frame(flow: usize, number: u32, time_us: i64) -> [u8; FRAME] {
    // The transfer: two segments, then an acknowledgement.
    let sent = |number: u32| (number - number / 3) * PAYLOAD;
    let (from_client, flags, seq, ack, payload) = match number {
        0 => (true, SYN, 0, 0, 0),
        1 => (false, SYN | ACK, 0, 1, 0),
        2 => (true, ACK, 1, 1, 0),
        _ => match number - 3 {
            now if now % 3 == 2 => {
                let acknowledged = sent(now).saturating_sub(IN_FLIGHT * PAYLOAD);
                (true, ACK, 1, 1 + acknowledged, 0)
            }
            now => (false, ACK, 1 + sent(now), 1, PAYLOAD),
        },
    };
    // The client's window changes from time to time.
    let window = if from_client { 500 + (number / 12) as u16 } else { 509 };
    let milliseconds = (time_us / 1000) as u32;
    let mut frame = [0; FRAME];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(52 + payload as u16).to_be_bytes());
    frame[23] = 6;
    let ends = [([192, 0, 2, 1], 50_000u16), ([198, 51, 100, 1], 443)];
    let client = (flow as u32).to_be_bytes();
    let ends = [(client, ends[0].1), (ends[1].0, ends[1].1)];
    let (source, destination) = (ends[usize::from(!from_client)], ends[usize::from(from_client)]);
    frame[26..30].copy_from_slice(&source.0);
    frame[30..34].copy_from_slice(&destination.0);
    frame[34..36].copy_from_slice(&source.1.to_be_bytes());
    frame[36..38].copy_from_slice(&destination.1.to_be_bytes());
    // Numbers of a flow begin anywhere.
    let first =
        |from_client: bool| (flow as u32 * 2 + u32::from(from_client)).wrapping_mul(0x9e37_79b9);
    frame[38..42].copy_from_slice(&first(from_client).wrapping_add(seq).to_be_bytes());
    frame[42..46].copy_from_slice(&first(!from_client).wrapping_add(ack).to_be_bytes());
    frame[46] = 0x80;
    frame[47] = flags;
    frame[48..50].copy_from_slice(&window.to_be_bytes());
    frame[54..58].copy_from_slice(&[1, 1, 8, 10]);
    frame[58..62].copy_from_slice(&milliseconds.to_be_bytes());
    frame[62..66].copy_from_slice(&milliseconds.saturating_sub(50).to_be_bytes());
    frame
}
