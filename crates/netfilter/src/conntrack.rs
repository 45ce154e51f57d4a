//! Builds and reads messages of ctnetlink.
//!
//! An update names a connection by one of its two tuples and gives bits and a mask. Without
//! `NLM_F_CREATE` it changes a connection or finds none, but never creates one. The kernel computes
//! `new = (old & !mask) ^ mark` (`ctnetlink_change_mark` in
//! `net/netfilter/nf_conntrack_netlink.c`); it does not cut the mark to the mask, so that is done
//! here. Labels change in the same way (`nf_connlabels_replace` in
//! `net/netfilter/nf_conntrack_labels.c`), 32 bits at a time; bits of the 128 that an update omits
//! are cleared, so all are sent.
//!
//! A query names a connection in the same way. The kernel answers with the connection, of which
//! mark, labels, status and number are read (`ctnetlink_fill_info`; a mark of 0 may be omitted), or
//! with an error.
//!
//! Numbers are from `linux/netfilter/nfnetlink_conntrack.h`.

use std::net::IpAddr;

use crate::netlink::{ACK, Answer, Header, REQUEST, attribute, attributes, nest, push_message};
use crate::socket::{Reply, Socket};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`: an update, and the answer to a query.
const CT_NEW: u16 = 1 << 8;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const CT_GET: u16 = 1 << 8 | 1;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_STATUS: u16 = 3;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_MARK_MASK: u16 = 21;
const CTA_LABELS: u16 = 22;
const CTA_LABELS_MASK: u16 = 23;
/// Within a tuple.
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Within an address: source and destination, IPv4 and IPv6.
const CTA_IP_V4: [u16; 2] = [1, 2];
const CTA_IP_V6: [u16; 2] = [3, 4];
/// Within a protocol part.
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_PORTS: [u16; 2] = [2, 3];

/// Bits of a connection's status, of `linux/netfilter/nf_conntrack_common.h`.
const IPS_OFFLOAD: u32 = 1 << 14;
const IPS_HW_OFFLOAD: u32 = 1 << 15;

/// Two ends and a protocol, as in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Conntrack zone, which separates connections with equal ends; 0 is the default.
    pub zone: u16,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// Sender.
    pub source: (IpAddr, u16),
    /// Receiver, of the same family.
    pub destination: (IpAddr, u16),
}

impl Tuple {
    /// The tuple of packets in the other direction.
    pub fn reversed(self) -> Tuple {
        Tuple { source: self.destination, destination: self.source, ..self }
    }
}

/// New bits of a connection, and the bits to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A change of the mark.
    Mark {
        /// The new bits.
        bits: u32,
        /// The bits to change.
        mask: u32,
    },
    /// A change of the labels: label n is bit n.
    Labels {
        /// The new bits.
        bits: u128,
        /// The bits to change.
        mask: u128,
    },
}

impl Change {
    /// A change that clears the same bits.
    #[must_use]
    pub fn cleared(self) -> Change {
        match self {
            Change::Mark { mask, .. } => Change::Mark { bits: 0, mask },
            Change::Labels { mask, .. } => Change::Labels { bits: 0, mask },
        }
    }

    /// The bits to change.
    pub fn mask(&self) -> u128 {
        match *self {
            Change::Mark { mask, .. } => mask.into(),
            Change::Labels { mask, .. } => mask,
        }
    }
}

/// Appends an update. The tuple is sent as `CTA_TUPLE_ORIG`, which the kernel looks up among the
/// original and reply tuples of all connections; `CTA_TUPLE_REPLY` alone would do the same.
fn push_update(out: &mut Vec<u8>, sequence: u32, tuple: &Tuple, change: &Change) {
    push_request(out, (CT_NEW, REQUEST | ACK), sequence, tuple, |out| match *change {
        Change::Mark { bits, mask } => {
            attribute(out, CTA_MARK, &(bits & mask).to_be_bytes());
            attribute(out, CTA_MARK_MASK, &mask.to_be_bytes());
        }
        Change::Labels { bits, mask } => {
            attribute(out, CTA_LABELS, &label_bytes(bits & mask));
            attribute(out, CTA_LABELS_MASK, &label_bytes(mask));
        }
    });
}

/// The kernel's format of labels: words of 32 bits in native byte order, the lowest first.
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
    words.fold(0, |bits, word| bits << 32 | u128::from(u32::from_ne_bytes(word)))
}

/// Appends a query.
fn push_query(out: &mut Vec<u8>, sequence: u32, tuple: &Tuple) {
    push_request(out, (CT_GET, REQUEST), sequence, tuple, |_| {});
}

fn push_request(
    out: &mut Vec<u8>,
    (kind, flags): (u16, u16),
    sequence: u32,
    tuple: &Tuple,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    let family = match tuple.source.0 {
        IpAddr::V4(_) => 2, // AF_INET
        IpAddr::V6(_) => 10,
    };
    let header = Header { kind, flags, sequence, family, resource: 0 };
    push_message(out, &header, |out| {
        nest(out, CTA_TUPLE_ORIG, |out| {
            nest(out, CTA_TUPLE_IP, |out| push_addresses(out, tuple));
            nest(out, CTA_TUPLE_PROTO, |out| {
                attribute(out, CTA_PROTO_NUM, &[tuple.protocol]);
                for (kind, (_, port)) in
                    CTA_PROTO_PORTS.into_iter().zip([tuple.source, tuple.destination])
                {
                    attribute(out, kind, &port.to_be_bytes());
                }
            });
        });
        // Without it the kernel looks in zone 0 only.
        if tuple.zone != 0 {
            attribute(out, CTA_ZONE, &tuple.zone.to_be_bytes());
        }
        fill(out);
    });
}

fn push_addresses(out: &mut Vec<u8>, tuple: &Tuple) {
    for (side, (address, _)) in [tuple.source, tuple.destination].into_iter().enumerate() {
        match address {
            IpAddr::V4(address) => attribute(out, CTA_IP_V4[side], &address.octets()),
            IpAddr::V6(address) => attribute(out, CTA_IP_V6[side], &address.octets()),
        }
    }
}

/// A connection, as read from the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connection {
    /// The kernel's number, unique among existing connections.
    pub id: u32,
    /// All bits of its mark.
    pub mark: u32,
    /// Its labels: label n is bit n.
    pub labels: u128,
    /// `IPS_*` of the kernel.
    status: u32,
}

/// Who forwards the packets of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The kernel, through all its rules.
    Rules,
    /// A flowtable, before most rules.
    Flowtable,
    /// A network card.
    Card,
}

impl Connection {
    /// Who forwards its packets.
    pub fn path(&self) -> Path {
        match self.status {
            status if status & IPS_HW_OFFLOAD != 0 => Path::Card,
            status if status & IPS_OFFLOAD != 0 => Path::Flowtable,
            _ => Path::Rules,
        }
    }

    /// Whether the bits are as after this change.
    pub fn is_as(&self, change: &Change) -> bool {
        match *change {
            Change::Mark { bits, mask } => self.mark & mask == bits & mask,
            Change::Labels { bits, mask } => self.labels & mask == bits & mask,
        }
    }

    /// Whether any bit that the change would replace is set.
    pub fn is_changed_by(&self, change: &Change) -> bool {
        match *change {
            Change::Mark { mask, .. } => self.mark & mask != 0,
            Change::Labels { mask, .. } => self.labels & mask != 0,
        }
    }

    fn read(bytes: &[u8]) -> Connection {
        let mut connection = Connection::default();
        for (kind, value) in attributes(bytes) {
            let number = value.first_chunk().copied().map(u32::from_be_bytes);
            match (kind, number) {
                (CTA_MARK, Some(mark)) => connection.mark = mark,
                (CTA_ID, Some(id)) => connection.id = id,
                (CTA_STATUS, Some(status)) => connection.status = status,
                (CTA_LABELS, _) => {
                    connection.labels = value.first_chunk().copied().map_or(0, labels_of);
                }
                _ => {}
            }
        }
        connection
    }
}

/// A connection's tuple and its change.
pub type Request = (Tuple, Change);

/// Sends at most [`crate::socket::BATCH`] changes; `outcomes` gets the result of each.
pub fn update(socket: &mut Socket, requests: &[Request], outcomes: &mut Vec<Reply<Connection>>) {
    let push = |out: &mut Vec<u8>, sequence, (tuple, change): &Request| {
        push_update(out, sequence, tuple, change);
    };
    socket.exchange(requests, outcomes, push, found);
}

/// Queries connections, as [`update`].
pub fn query(socket: &mut Socket, requests: &[Request], outcomes: &mut Vec<Reply<Connection>>) {
    let push = |out: &mut Vec<u8>, sequence, (tuple, _): &Request| {
        push_query(out, sequence, tuple);
    };
    socket.exchange(requests, outcomes, push, found);
}

fn found(answer: &Answer<'_>) -> Option<Connection> {
    (answer.kind == CT_NEW).then(|| Connection::read(answer.attributes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::answers;

    fn tuple(source: &str, destination: &str) -> Tuple {
        Tuple {
            zone: 0,
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
            // length, type, flags, sequence, port
            88, 0, 0, 0,  0, 1,  5, 0,  7, 0, 0, 0,  0, 0, 0, 0,
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
    fn a_zone_stands_behind_the_tuple() {
        let tuple = tuple("10.0.0.1", "192.0.2.9");
        let zoned = Tuple { zone: 7, ..tuple };
        for push in [push_query, |out: &mut _, sequence, tuple: &_| {
            push_update(out, sequence, tuple, &Change::Mark { bits: 0x300, mask: 0xff00 });
        }] {
            let (mut without, mut with) = (Vec::new(), Vec::new());
            push(&mut without, 7, &tuple);
            push(&mut with, 7, &zoned.reversed().reversed());
            let (head, tail) = with[4..].split_at(68);
            let zone = [[6u16, CTA_ZONE].map(u16::to_ne_bytes).concat(), vec![0, 7, 0, 0]].concat();
            assert_eq!([head, &tail[8..]].concat(), without[4..]);
            assert_eq!(tail[..8], zone);
        }
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

    /// Mark and number among other attributes, nested ones and some that are cut off.
    #[test]
    fn a_connection_is_the_answer_to_a_query() {
        let mut bytes = Vec::new();
        push_query(&mut bytes, 9, &tuple("10.0.0.1", "192.0.2.9"));
        assert_eq!(bytes[4..8], [CT_GET.to_ne_bytes(), 1u16.to_ne_bytes()].concat());
        let answer = |fill: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            let tuple = tuple("10.0.0.1", "192.0.2.9");
            push_request(&mut bytes, (CT_NEW, 0), 9, &tuple, fill);
            let answer = answers(&bytes).next().unwrap();
            assert_eq!((answer.sequence, answer.errno), (9, 0));
            found(&answer).unwrap()
        };
        let whole = answer(&|out| {
            attribute(out, CTA_MARK, &0x1234_0300u32.to_be_bytes());
            attribute(out, 7, b"odd");
            attribute(out, CTA_ID, &77u32.to_be_bytes());
            attribute(out, CTA_LABELS, &label_bytes(1 << 99));
        });
        assert_eq!((whole.id, whole.mark, whole.labels), (77, 0x1234_0300, 1 << 99));
        assert_eq!(whole.path(), Path::Rules);
        for (status, path) in [(1 << 14, Path::Flowtable), (0b11 << 14, Path::Card)] {
            let found = answer(&|out| attribute(out, CTA_STATUS, &(status | 14u32).to_be_bytes()));
            assert_eq!(found.path(), path);
        }
        let (bits, mask) = (0, 3 << 98);
        assert!(whole.is_changed_by(&Change::Labels { bits, mask }));
        let (bits, mask) = (0, 1 << 98);
        assert!(!whole.is_changed_by(&Change::Labels { bits, mask }));
        assert_eq!(answer(&|_| {}), Connection::default(), "a mark of 0 may be left out");
        let cut = answer(&|out| attribute(out, CTA_MARK, &[1, 2]));
        assert_eq!(cut.mark, 0);
        let cut = answer(&|out| attribute(out, CTA_LABELS, &[0xff; 12]));
        assert_eq!(cut.labels, 0);
    }
}
