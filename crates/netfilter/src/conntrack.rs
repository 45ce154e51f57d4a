//! Messages of ctnetlink, built and read as bytes; no socket here.
//!
//! An update names a connection by one of its two tuples and gives a mark and a mask. It carries no
//! `NLM_F_CREATE`, so that it changes a connection or finds none, and never makes one. The kernel
//! computes `new = (old & !mask) ^ mark` (`ctnetlink_change_mark` in
//! `net/netfilter/nf_conntrack_netlink.c`): it does not cut the mark to the mask, so this is done
//! here, and bits outside of the mask stay what they were. Labels are changed in the same way (`nf_connlabels_replace` in
//! `net/netfilter/nf_conntrack_labels.c`), 32 bits at a time; what an update leaves out of their 128 bits is cleared, so all
//! are sent.
//!
//! A query names a connection in the same way. The kernel answers with the connection, of which mark, labels and number are
//! read (`ctnetlink_fill_info`; a mark of 0 may be left out), or with an error.
//!
//! Netlink's headers are in the machine's byte order, attributes of netfilter in network order.
//! Numbers are those of `linux/netlink.h`, `linux/netfilter/nfnetlink.h` and
//! `linux/netfilter/nfnetlink_conntrack.h`.

use std::net::IpAddr;

/// `NLM_F_REQUEST`, to which a connection is the answer.
const QUERY_FLAGS: u16 = 0x1;
/// `NLM_F_REQUEST | NLM_F_ACK`.
const UPDATE_FLAGS: u16 = 0x1 | 0x4;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`: an update, and the answer to a query.
const CT_NEW: u16 = 1 << 8;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const CT_GET: u16 = 1 << 8 | 1;
/// The answer to a request, good or bad.
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
/// `nfgenmsg`: family, version, resource.
const FAMILY_BYTES: usize = 4;

/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_MARK_MASK: u16 = 21;
const CTA_LABELS: u16 = 22;
const CTA_LABELS_MASK: u16 = 23;
/// Within a tuple.
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Within an address part: source and destination of IPv4, then of IPv6.
const CTA_IP_V4: [u16; 2] = [1, 2];
const CTA_IP_V6: [u16; 2] = [3, 4];
/// Within a protocol part.
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_PORTS: [u16; 2] = [2, 3];

/// Two ends and a protocol, as they stand in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// Sender.
    pub source: (IpAddr, u16),
    /// Receiver; of the same family.
    pub destination: (IpAddr, u16),
}

impl Tuple {
    /// The tuple of packets that go the other way.
    pub fn reversed(self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            ..self
        }
    }
}

/// New bits of a connection, and which of its bits they replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Of its mark.
    Mark {
        /// The new bits.
        bits: u32,
        /// Those that change.
        mask: u32,
    },
    /// Of its labels: label n is bit n.
    Labels {
        /// The new bits.
        bits: u128,
        /// Those that change.
        mask: u128,
    },
}

/// Appends a request to change the connection of `tuple`.
///
/// The tuple stands as `CTA_TUPLE_ORIG`, which the kernel looks up among the original and the reply
/// tuples of all connections alike; `CTA_TUPLE_REPLY` alone is the same look-up.
pub fn push_update(out: &mut Vec<u8>, sequence: u32, tuple: &Tuple, change: &Change) {
    push_request(
        out,
        (CT_NEW, UPDATE_FLAGS),
        sequence,
        tuple,
        |out| match *change {
            Change::Mark { bits, mask } => {
                attribute(out, CTA_MARK, &(bits & mask).to_be_bytes());
                attribute(out, CTA_MARK_MASK, &mask.to_be_bytes());
            }
            Change::Labels { bits, mask } => {
                attribute(out, CTA_LABELS, &label_bytes(bits & mask));
                attribute(out, CTA_LABELS_MASK, &label_bytes(mask));
            }
        },
    );
}

/// Labels as the kernel has them: words of 32 bits in the machine's byte order, the lowest first.
fn label_bytes(bits: u128) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&((bits >> (32 * index)) as u32).to_ne_bytes());
    }
    bytes
}

/// The reverse of [`label_bytes`].
fn labels_of(bytes: [u8; 16]) -> u128 {
    let words = bytes.chunks_exact(4).rev();
    let words = words.filter_map(|word| word.first_chunk().copied());
    words.fold(0, |bits, word| {
        bits << 32 | u128::from(u32::from_ne_bytes(word))
    })
}

/// Appends a query for the connection of `tuple`, which the kernel looks up as for an update.
pub fn push_query(out: &mut Vec<u8>, sequence: u32, tuple: &Tuple) {
    push_request(out, (CT_GET, QUERY_FLAGS), sequence, tuple, |_| {});
}

fn push_request(
    out: &mut Vec<u8>,
    (kind, flags): (u16, u16),
    sequence: u32,
    tuple: &Tuple,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    let family = match tuple.source.0 {
        IpAddr::V4(_) => 2, // AF_INET
        IpAddr::V6(_) => 10,
    };
    out.extend([0; 4]); // the length, once it is known
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    out.extend([0; 4]); // from no port in particular: the kernel knows the sender
    out.extend([family, 0, 0, 0]); // nfgenmsg: family, version, resource
    nest(out, CTA_TUPLE_ORIG, |out| {
        nest(out, CTA_TUPLE_IP, |out| push_addresses(out, tuple));
        nest(out, CTA_TUPLE_PROTO, |out| {
            attribute(out, CTA_PROTO_NUM, &[tuple.protocol]);
            for (kind, (_, port)) in CTA_PROTO_PORTS
                .into_iter()
                .zip([tuple.source, tuple.destination])
            {
                attribute(out, kind, &port.to_be_bytes());
            }
        });
    });
    fill(out);
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

fn push_addresses(out: &mut Vec<u8>, tuple: &Tuple) {
    for (side, (address, _)) in [tuple.source, tuple.destination].into_iter().enumerate() {
        match address {
            IpAddr::V4(address) => attribute(out, CTA_IP_V4[side], &address.octets()),
            IpAddr::V6(address) => attribute(out, CTA_IP_V6[side], &address.octets()),
        }
    }
}

/// Length and kind, the value, and padding to four bytes, which the length leaves out.
fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    attribute(out, NESTED | kind, &[]);
    fill(out);
    let length = (out.len() - start) as u16;
    out[start..start + 2].copy_from_slice(&length.to_ne_bytes());
}

/// What the kernel said of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The request's number.
    pub sequence: u32,
    /// 0: done. Otherwise an error number, positive as in errno(3).
    pub errno: i32,
    /// Of a query that found one: the connection.
    pub connection: Option<Connection>,
}

/// What is read of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// The kernel's number, its own among the connections that there are.
    pub id: u32,
    /// All bits of its mark.
    pub mark: u32,
    /// Its labels: label n is bit n.
    pub labels: u128,
}

impl Connection {
    /// Whether some of the bits that a change would replace are set.
    pub fn is_changed_by(&self, change: &Change) -> bool {
        match *change {
            Change::Mark { mask, .. } => self.mark & mask != 0,
            Change::Labels { mask, .. } => self.labels & mask != 0,
        }
    }

    fn read(mut attributes: &[u8]) -> Connection {
        let mut connection = Connection::default();
        while let Some(&[l0, l1, k0, k1]) = attributes.first_chunk() {
            let length = usize::from(u16::from_ne_bytes([l0, l1]));
            // The two highest bits say how the value is to be read.
            let kind = u16::from_ne_bytes([k0, k1]) & 0x3fff;
            let value = attributes.get(4..length).unwrap_or_default();
            let number = value.first_chunk().copied().map(u32::from_be_bytes);
            match (kind, number) {
                (CTA_MARK, Some(mark)) => connection.mark = mark,
                (CTA_ID, Some(id)) => connection.id = id,
                (CTA_LABELS, _) => {
                    connection.labels = value.first_chunk().copied().map_or(0, labels_of);
                }
                _ => {}
            }
            let next = length.next_multiple_of(4).max(4);
            attributes = attributes.get(next..).unwrap_or_default();
        }
        connection
    }
}

/// The answers in what one receive brought. What is no answer is passed over; reading ends at the
/// first header whose length cannot be.
pub fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Answer> {
    std::iter::from_fn(move || {
        loop {
            let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
            let length = u32_at(header, 0)? as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let sequence = u32_at(header, 8)?;
            let payload = bytes.get(..length)?.get(HEADER_BYTES..)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            // Behind the error number stands the request again, of which nothing is needed.
            let (errno, connection) = match (kind, u32_at(payload, 0)) {
                (NLMSG_ERROR, Some(errno)) => ((errno as i32).wrapping_neg(), None),
                (CT_NEW, Some(_)) => (0, Some(Connection::read(&payload[FAMILY_BYTES..]))),
                _ => continue,
            };
            return Some(Answer {
                sequence,
                errno,
                connection,
            });
        }
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuple(source: &str, destination: &str) -> Tuple {
        Tuple {
            protocol: 6,
            source: (source.parse().unwrap(), 0x1234),
            destination: (destination.parse().unwrap(), 443),
        }
    }

    fn update(tuple: &Tuple) -> Vec<u8> {
        let mut out = Vec::new();
        let (bits, mask) = (0xffff_0300, 0xff00);
        push_update(&mut out, 7, tuple, &Change::Mark { bits, mask });
        out
    }

    /// Written out by hand from the headers named above.
    #[test]
    #[cfg(target_endian = "little")]
    fn an_update_of_ipv4_is_these_bytes() {
        #[rustfmt::skip]
        let expected = [
            88, 0, 0, 0,  0, 1,  5, 0,  7, 0, 0, 0,  0, 0, 0, 0, // length, type, flags, sequence, port
            2, 0, 0, 0,                                          // AF_INET
            52, 0, 1, 0x80,                                      // CTA_TUPLE_ORIG
            20, 0, 1, 0x80,                                      // CTA_TUPLE_IP
            8, 0, 1, 0,  10, 0, 0, 1,
            8, 0, 2, 0,  192, 0, 2, 9,
            28, 0, 2, 0x80,                                      // CTA_TUPLE_PROTO
            5, 0, 1, 0,  6, 0, 0, 0,
            6, 0, 2, 0,  0x12, 0x34, 0, 0,
            6, 0, 3, 0,  1, 0xbb, 0, 0,
            8, 0, 8, 0,  0, 0, 3, 0,                             // CTA_MARK, cut to the mask
            8, 0, 21, 0,  0, 0, 0xff, 0,                         // CTA_MARK_MASK
        ];
        assert_eq!(update(&tuple("10.0.0.1", "192.0.2.9")), expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_update_of_ipv6_has_addresses_of_sixteen_bytes() {
        let bytes = update(&tuple("2001:db8::1", "2001:db8::2"));
        assert_eq!(bytes.len(), 112);
        assert_eq!((bytes[0], bytes[16]), (112, 10));
        assert_eq!(bytes[20..24], [76, 0, 1, 0x80]);
        assert_eq!(bytes[24..28], [44, 0, 1, 0x80]);
        assert_eq!(bytes[28..36], [20, 0, 3, 0, 0x20, 1, 0x0d, 0xb8]);
        assert_eq!(bytes[47..52], [1, 20, 0, 4, 0]);
        assert_eq!(bytes[67], 2);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_update_of_labels_sends_all_of_them_and_cuts_them_to_the_mask() {
        let (bits, mask) = (1 << 127 | 1 << 9 | 1, 1 << 127 | 0b11 << 8);
        let mut out = Vec::new();
        let tuple = tuple("10.0.0.1", "192.0.2.9");
        push_update(&mut out, 7, &tuple, &Change::Labels { bits, mask });
        let [mut cut, mut all] = [[0; 16]; 2];
        (cut[1], cut[15]) = (2, 0x80);
        (all[1], all[15]) = (3, 0x80);
        let expected = [&[20, 0, 22, 0], &cut[..], &[20, 0, 23, 0], &all[..]].concat();
        assert_eq!(out[out.len() - 40..], expected);
        assert_eq!(labels_of(label_bytes(bits)), bits);
    }

    #[test]
    fn messages_stand_behind_each_other_and_the_other_way_swaps_the_ends() {
        let forward = tuple("10.0.0.1", "192.0.2.9");
        let change = Change::Mark { bits: 0, mask: 1 };
        let mut both = Vec::new();
        push_update(&mut both, 1, &forward, &change);
        let first = both.len();
        push_update(&mut both, 2, &forward.reversed(), &change);
        assert_eq!(both.len(), 2 * first);
        assert_eq!(both[first + 32..first + 36], [192, 0, 2, 9]);
        assert_eq!(forward.reversed().reversed(), forward);
    }

    fn ack(sequence: u32, errno: i32, tail: &[u8]) -> Vec<u8> {
        let length = (20 + tail.len()) as u32;
        let mut out = length.to_ne_bytes().to_vec();
        out.extend(NLMSG_ERROR.to_ne_bytes());
        out.extend([0; 2]);
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend((-errno).to_ne_bytes());
        out.extend(tail);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    #[test]
    fn answers_are_read_one_after_the_other() {
        let mut bytes = ack(5, 0, &[]);
        bytes.extend(ack(6, 2, b"the request"));
        let mut noise = ack(9, 1, &[]);
        noise[4] = 3; // NLMSG_DONE
        bytes.extend(noise);
        bytes.extend(ack(7, 1, &[]));
        let read: Vec<_> = answers(&bytes)
            .map(|answer| (answer.sequence, answer.errno))
            .collect();
        assert_eq!(read, [(5, 0), (6, 2), (7, 1)]);
        // An error number that is cut off is none.
        let mut short = ack(1, 0, &[]);
        short[0] = 18;
        assert_eq!(answers(&short).count(), 0);
    }

    /// Mark and number among other attributes, nested ones and some that are cut off.
    #[test]
    fn a_connection_is_the_answer_to_a_query() {
        let mut bytes = Vec::new();
        push_query(&mut bytes, 9, &tuple("10.0.0.1", "192.0.2.9"));
        assert_eq!(
            bytes[4..8],
            [CT_GET.to_ne_bytes(), 1u16.to_ne_bytes()].concat()
        );
        let answer = |fill: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            let tuple = tuple("10.0.0.1", "192.0.2.9");
            push_request(&mut bytes, (CT_NEW, 0), 9, &tuple, fill);
            let found: Vec<_> = answers(&bytes).collect();
            assert_eq!((found.len(), found[0].sequence, found[0].errno), (1, 9, 0));
            found[0].connection.unwrap()
        };
        let whole = answer(&|out| {
            attribute(out, CTA_MARK, &0x1234_0300u32.to_be_bytes());
            attribute(out, 7, b"odd");
            attribute(out, CTA_ID, &77u32.to_be_bytes());
            attribute(out, CTA_LABELS, &label_bytes(1 << 99));
        });
        let (mark, labels) = (0x1234_0300, 1 << 99);
        assert_eq!(
            whole,
            Connection {
                id: 77,
                mark,
                labels
            }
        );
        let (bits, mask) = (0, 3 << 98);
        assert!(whole.is_changed_by(&Change::Labels { bits, mask }));
        let (bits, mask) = (0, 1 << 98);
        assert!(!whole.is_changed_by(&Change::Labels { bits, mask }));
        assert_eq!(
            answer(&|_| {}),
            Connection::default(),
            "a mark of 0 may be left out"
        );
        let cut = answer(&|out| attribute(out, CTA_MARK, &[1, 2]));
        assert_eq!(cut.mark, 0);
        let cut = answer(&|out| attribute(out, CTA_LABELS, &[0xff; 12]));
        assert_eq!(cut.labels, 0);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // Every answer takes a header's worth of bytes at least.
            prop_assert!(answers(&bytes).count() <= bytes.len() / HEADER_BYTES);
        }

        #[test]
        fn a_damaged_answer_does_not_hide_those_before(at in 20..40_usize, value: u8) {
            let mut bytes = ack(1, 0, &[]);
            bytes.extend(ack(2, 2, &[]));
            bytes[at] = value;
            let first = Answer { sequence: 1, errno: 0, connection: None };
            prop_assert_eq!(answers(&bytes).next(), Some(first));
        }
    }
}
