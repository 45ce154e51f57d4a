//! Makes the frames of copies: the original's headers with other addresses and ports, its length,
//! its flags, and correct checksums.
//!
//! Work that copies have in common is done once: a [`Model`] knows the sums of the original's
//! headers without addresses and ports, so that a frame costs a copy of its bytes and a few
//! additions.
//!
//! * Frames are Ethernet; packets of other link types get a header. VLAN tags, options and
//!   extension headers stay.
//! * Frames have the length in the IP header, without padding, even if less was captured.
//! * A first fragment is made a whole packet, because later fragments belong to no flow and are not
//!   copied.
//! * Lengths that segmentation offload left open (0) stay open.

use flowmgr::wire::{Headers, UDP};

use super::ends::Ends;

/// Link type of Ethernet.
pub const ETHERNET: u16 = 1;
/// Header of frames that had none: locally administered addresses, and a place for the ethertype.
const ETHERNET_HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0, 0];

/// A packet of a capture.
pub struct Original<'a> {
    /// Link type.
    pub link: u16,
    /// The frame.
    pub bytes: &'a [u8],
    /// What was read from it.
    pub headers: &'a Headers,
    /// Where its layer-4 header begins.
    pub transport_at: usize,
    /// Whether the end with the new address and port sent it.
    pub from_client: bool,
}

/// What all copies of a frame have in common, in addition to their bytes.
#[derive(Clone, Debug)]
pub struct Model {
    /// Bytes that are kept; the others are zero.
    pub kept: usize,
    /// Bytes of the frame.
    pub length: usize,
    ip_at: u32,
    transport_at: u32,
    from_client: bool,
    /// IPv6 or IPv4.
    pub is_v6: bool,
    is_udp: bool,
    /// Sum of the IPv4 header without addresses and checksum.
    header_sum: u16,
    /// Sum of the layer-4 segment without ports and checksum, and of the pseudo-header without
    /// addresses.
    segment_sum: u16,
}

impl Model {
    /// The model of an original. Appends the bytes that it keeps to `data`.
    pub fn from_original(original: &Original<'_>, keep_payload: bool, data: &mut Vec<u8>) -> Model {
        let &Original { bytes, headers, transport_at, .. } = original;
        let (ip_at, begin) = (headers.ip_at as usize, data.len());
        let is_v6 = headers.key.ends(true).0.0.is_ipv6();
        let is_udp = headers.key.protocol() == UDP;
        let packet = &bytes[ip_at..];
        let is_open = is_v6 && packet[4..6] == [0, 0];
        let ip_length = match is_open {
            true => packet.len(),
            false => headers.length as usize,
        };
        let transport_at = transport_at - ip_at;
        let header = match is_udp {
            true => 8,
            false => usize::from(packet[transport_at + 12] >> 4) * 4,
        };
        let kept = match keep_payload {
            true => packet.len().min(ip_length),
            false => transport_at + header,
        };
        match original.link {
            ETHERNET => data.extend_from_slice(&bytes[..ip_at]),
            _ => {
                data.extend_from_slice(&ETHERNET_HEADER[..12]);
                data.extend_from_slice(if is_v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
            }
        }
        let ip_at = data.len() - begin;
        data.extend_from_slice(&packet[..kept]);
        let packet = &mut data[begin + ip_at..];
        make_whole(packet, transport_at, is_v6);
        let (header_sum, segment_sum) = sums(packet, transport_at, ip_length, is_v6, is_udp);
        Model {
            kept: ip_at + kept,
            length: ip_at + ip_length,
            ip_at: ip_at as u32,
            transport_at: (ip_at + transport_at) as u32,
            from_client: original.from_client,
            is_v6,
            is_udp,
            header_sum,
            segment_sum,
        }
    }

    /// Writes the frame of the copy between `ends` from the kept `bytes` to `frame`, which has its
    /// length.
    pub fn write(&self, bytes: &[u8], ends: &Ends, frame: &mut [u8]) {
        let (head, payload) = frame.split_at_mut(self.kept);
        head.copy_from_slice(bytes);
        payload.fill(0);

        let (source, destination) = match self.from_client {
            true => (&ends.client, &ends.server),
            false => (&ends.server, &ends.client),
        };
        let (source_address, destination_address) = (source.address(), destination.address());
        let addresses = sum(source_address) + sum(destination_address);
        let ip = &mut head[self.ip_at as usize..];
        let (at, size) = if self.is_v6 { (8, 16) } else { (12, 4) };
        ip[at..at + size].copy_from_slice(source_address);
        ip[at + size..at + 2 * size].copy_from_slice(destination_address);
        if !self.is_v6 {
            let checksum = !folded(u32::from(self.header_sum) + addresses);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }

        let segment = &mut head[self.transport_at as usize..];
        segment[..2].copy_from_slice(&source.port.to_be_bytes());
        segment[2..4].copy_from_slice(&destination.port.to_be_bytes());
        let ports = u32::from(source.port) + u32::from(destination.port);
        let checksum = match !folded(u32::from(self.segment_sum) + addresses + ports) {
            // In UDP, 0 stands for "none"; this is the same number.
            0 => 0xffff,
            checksum => checksum,
        };
        let at = checksum_at(self.is_udp);
        segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Where a layer-4 header has its checksum.
fn checksum_at(is_udp: bool) -> usize {
    if is_udp { 6 } else { 16 }
}

/// Takes from a first fragment that others follow.
fn make_whole(packet: &mut [u8], transport_at: usize, is_v6: bool) {
    const MORE_FRAGMENTS_V4: u8 = 0x20;
    const MORE_FRAGMENTS_V6: u8 = 1;
    const FRAGMENT: u8 = 44;
    if !is_v6 {
        packet[6] &= !MORE_FRAGMENTS_V4;
        return;
    }
    // The flow manager has been through these headers, so they end at layer 4.
    let (mut next, mut at) = (packet[6], 40);
    while at < transport_at {
        let size = match next {
            FRAGMENT => {
                packet[at + 3] &= !MORE_FRAGMENTS_V6;
                8
            }
            AUTHENTICATION => (usize::from(packet[at + 1]) + 2) * 4,
            _ => (usize::from(packet[at + 1]) + 1) * 8,
        };
        next = packet[at];
        at += size;
    }
}

/// Authentication header, whose length has another unit than other extensions' lengths.
const AUTHENTICATION: u8 = 51;

/// The sums that a [`Model`] keeps. Clears the checksums, and cuts a UDP length that says more
/// than is there.
fn sums(
    packet: &mut [u8],
    transport_at: usize,
    ip_length: usize,
    is_v6: bool,
    is_udp: bool,
) -> (u16, u16) {
    let mut length = ip_length - transport_at;
    let mut header_sum = 0;
    if !is_v6 {
        packet[10..12].fill(0);
        header_sum = sum(&packet[..12]) + sum(&packet[20..transport_at]);
    }
    let segment = &mut packet[transport_at..];
    let mut summed = segment.len();
    if is_udp {
        let announced = usize::from(u16::from_be_bytes([segment[4], segment[5]]));
        length = announced.min(length);
        segment[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        // What stands behind the datagram is no part of it.
        summed = summed.min(length);
    }
    let at = checksum_at(is_udp);
    segment[at..at + 2].fill(0);
    let protocol = if is_udp { 17 } else { 6 };
    let length = (length >> 16) as u32 + (length & 0xffff) as u32;
    let segment_sum = u32::from(folded(sum(&segment[4..summed]))) + length + protocol;
    (folded(header_sum), folded(segment_sum))
}

/// Sum of big-endian words (RFC 1071), folded so far that a few may be added.
fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words.iter().map(|&word| u64::from(u16::from_be_bytes(word)));
    let last = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    let sum = words.sum::<u64>() + last;
    ((sum >> 16) + (sum & 0xffff)) as u32
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use flowmgr::wire;
    use proptest::prelude::*;

    use super::*;

    const RAW_IP: u16 = 101;

    fn ipv4(protocol: u8, options: usize, fragment: u8, segment: &[u8]) -> Vec<u8> {
        let length = (20 + options + segment.len()) as u16;
        let mut packet = vec![0x40 | (5 + options as u8 / 4), 0];
        packet.extend(length.to_be_bytes());
        packet.extend([1, 2, fragment, 0, 64, protocol, 9, 9]);
        packet.extend([192, 0, 2, 1, 198, 51, 100, 2]);
        packet.extend(vec![1; options]);
        packet.extend(segment);
        packet
    }

    /// With a fragment header, the first of several.
    fn ipv6(protocol: u8, segment: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(((8 + segment.len()) as u16).to_be_bytes());
        packet.extend([44, 64]);
        packet.extend([0x20; 16]);
        packet.extend([0x30; 16]);
        packet.extend([protocol, 0, 0, 1, 0, 0, 0, 7]);
        packet.extend(segment);
        packet
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0x9c, 0x40, 0, 53];
        segment.extend((8 + payload.len() as u16).to_be_bytes());
        segment.extend([7, 7]);
        segment.extend(payload);
        segment
    }

    fn tcp(flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 6 << 4, flags];
        segment.extend([1, 2, 7, 7, 0, 0, 1, 1, 1, 1]);
        segment.extend(payload);
        segment
    }

    /// The copy of a packet.
    fn copied(packet: &[u8], ends: &Ends, keep_payload: bool) -> Vec<u8> {
        let headers = wire::parse(RAW_IP, packet).unwrap();
        let original = Original {
            link: RAW_IP,
            bytes: packet,
            headers: &headers,
            transport_at: wire::transport_at(RAW_IP, packet).unwrap(),
            from_client: true,
        };
        let mut data = vec![0xee; 3];
        let model = Model::from_original(&original, keep_payload, &mut data);
        let mut frame = vec![0xff; model.length];
        model.write(&data[3..], ends, &mut frame);
        frame
    }

    /// Adds up as RFC 1071 wants it.
    fn is_right(bytes: &[u8], pseudo: u32) -> bool {
        folded(sum(bytes) + pseudo) == 0xffff
    }

    #[track_caller]
    fn assert_right(frame: &[u8], transport_at: usize) {
        let ip = &frame[14..];
        let (is_v6, protocol) = match ip[0] >> 4 {
            4 => (false, ip[9]),
            _ => (true, ip[40]),
        };
        let addresses = if is_v6 { &ip[8..40] } else { &ip[12..20] };
        let segment = &ip[transport_at..];
        let pseudo = sum(addresses) + u32::from(protocol) + u32::from(folded(segment.len() as u32));
        assert!(is_right(segment, pseudo), "layer 4: {frame:02x?}");
        assert!(is_v6 || is_right(&ip[..transport_at], 0), "{frame:02x?}");
    }

    proptest! {
        #[test]
        fn checksums_are_right_and_the_rest_is_the_original(
            payload in prop::collection::vec(any::<u8>(), 0..64),
            copy in 0u64..1 << 38,
            keep_payload: bool,
            is_tcp: bool,
        ) {
            let (protocol, segment) = match is_tcp {
                true => (6, tcp(0x18, &payload)),
                false => (UDP, udp(&payload)),
            };
            for (packet, transport_at) in [
                (ipv4(protocol, 8, 0x20, &segment), 28),
                (ipv6(protocol, &segment), 48),
            ] {
                let is_v6 = packet[0] >> 4 == 6;
                let ends = Ends::new(copy, copy, is_v6, 53);
                let frame = copied(&packet, &ends, keep_payload);
                prop_assert_eq!(frame.len(), 14 + packet.len());
                assert_right(&frame, transport_at);
                let headers = wire::parse(ETHERNET, &frame).unwrap();
                let original = wire::parse(RAW_IP, &packet).unwrap();
                prop_assert_eq!(headers.length, original.length);
                prop_assert_eq!(headers.tcp_flags, original.tcp_flags);
                let copied = &frame[14 + packet.len() - payload.len()..];
                let expected = if keep_payload { payload.clone() } else { vec![0; payload.len()] };
                prop_assert_eq!(copied, &expected[..]);
            }
        }
    }

    #[test]
    fn first_fragments_become_whole() {
        let mut segment = udp(b"first");
        segment[4] = 9; // of 2300 bytes in all
        let ends = Ends::new(1, 2, false, 53);
        let frame = copied(&ipv4(UDP, 0, 0x20, &segment), &ends, true);
        assert_eq!((frame[14 + 6], &frame[34 + 4..34 + 6]), (0, &[0, 13][..]));
        assert_right(&frame, 20);
        let ends = Ends::new(1, 2, true, 53);
        let frame = copied(&ipv6(UDP, &udp(b"first")), &ends, true);
        assert_eq!(frame[14 + 40 + 3], 0);
    }

    #[test]
    fn segmentation_offload_leaves_lengths_open() {
        let mut packet = ipv6(6, &tcp(0x10, &[0xff; 200_000]));
        packet[4..6].fill(0);
        let ends = Ends::new(1, 2, true, 53);
        let frame = copied(&packet, &ends, true);
        assert_eq!(frame.len(), 14 + packet.len());
        assert_eq!(frame[14 + 4..14 + 6], [0, 0]);
        assert_right(&frame, 48);
    }

    #[test]
    fn a_cut_packet_is_as_long_as_it_was() {
        let packet = ipv4(6, 0, 0, &tcp(0x10, &[5; 100]));
        let ends = Ends::new(1, 2, false, 53);
        let frame = copied(&packet[..60], &ends, true);
        assert_eq!(frame.len(), 14 + packet.len());
        assert_eq!(&frame[14 + 44..14 + 60], &[5; 16]);
        assert_eq!(&frame[14 + 60..], &[0; 84]);
        assert_right(&frame, 20);
    }
}
