//! Which packets must carry which DSCP, worked out from bytes and records without the code under
//! test.

use std::net::IpAddr;

use crate::common::packets::checksum;

/// Packets of a series, the built-in default.
const K: u64 = 10;

/// The lower and the higher end of a flow as address and port bytes, and the protocol.
pub type Tuple = ([Vec<u8>; 2], u8);

/// A packet of a flow, found without the code under test: plain IPv4 or IPv6 over Ethernet, at most
/// with a fragment header.
pub fn tuple(frame: &[u8]) -> Option<Tuple> {
    let ip = frame.get(14..)?;
    let (addresses, protocol, ports_at) = match frame[12..14] {
        [0x08, 0x00] if (u16::from(ip[6]) << 8 | u16::from(ip[7])) & 0x1fff == 0 => {
            ([&ip[12..16], &ip[16..20]], ip[9], usize::from(ip[0] & 15) * 4)
        }
        [0x86, 0xdd] if ip[6] == 44 && (ip[42], ip[43] & 0xf8) == (0, 0) => {
            ([&ip[8..24], &ip[24..40]], ip[40], 48)
        }
        [0x86, 0xdd] => ([&ip[8..24], &ip[24..40]], ip[6], 40),
        _ => return None,
    };
    if protocol != 6 && protocol != 17 {
        return None;
    }
    let ports = [&ip[ports_at..][..2], &ip[ports_at + 2..][..2]];
    let mut ends = [0, 1].map(|end| [addresses[end], ports[end]].concat());
    ends.sort();
    Some((ends, protocol))
}

/// A flow as its record tells it, and how far the walk through the packets has come.
pub struct Flow {
    /// All its packets.
    pub packets: u64,
    pub label: Option<String>,
    /// Packets that the walk has met.
    pub seen: u64,
    kth_us: i64,
    counts: bool,
}

impl Flow {
    pub fn from_record(record: &serde_json::Value) -> (Tuple, Flow) {
        let end = |address: &str, port: &str| {
            let address: IpAddr = record[address].as_str().unwrap().parse().unwrap();
            let octets = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let port = record[port].as_u64().unwrap() as u16;
            [octets, port.to_be_bytes().to_vec()].concat()
        };
        let mut ends = [end("src", "src_port"), end("dst", "dst_port")];
        ends.sort();
        let packets = ["packets_fwd", "packets_rev"].map(|count| record[count].as_u64().unwrap());
        let flow = Flow {
            packets: packets.iter().sum(),
            label: record["label"].as_str().map(str::to_owned),
            seen: 0,
            kth_us: 0,
            counts: false,
        };
        ((ends, record["proto"].as_u64().unwrap() as u8), flow)
    }

    /// Whether the label counts for the next packet, which comes at `time_us`.
    pub fn next(&mut self, time_us: i64, delay_us: i64) -> bool {
        self.seen += 1;
        if self.seen == K {
            self.kth_us = time_us;
        }
        self.counts |= self.seen >= K && time_us >= self.kth_us + delay_us;
        self.counts
    }
}

/// The frame with this DSCP, its checksum computed from the whole header.
pub fn with_dscp(frame: &[u8], dscp: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let ip = &mut frame[14..];
    if ip[0] >> 4 == 6 {
        let class = dscp << 2 | ip[1] >> 4 & 3;
        (ip[0], ip[1]) = (0x60 | class >> 4, class << 4 | ip[1] & 15);
        return frame;
    }
    let header = usize::from(ip[0] & 15) * 4;
    assert_eq!(checksum(&ip[..header]), 0, "the input's checksums are right");
    ip[1] = dscp << 2 | ip[1] & 3;
    ip[10..12].fill(0);
    let sum = checksum(&ip[..header]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}
