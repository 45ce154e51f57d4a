//! Builds messages of nf_tables about sets and their elements.
//!
//! Numbers are from `linux/netfilter/nf_tables.h`. Changes are sent as a transaction, between a
//! begin and an end (`nfnetlink_rcv_batch` in `net/netfilter/nfnetlink.c`): the kernel answers per
//! element, and if one fails, none is written.

use std::fmt;
use std::str::FromStr;

use crate::netlink::{
    ACK, Answer, CREATE, Header, REQUEST, attribute, attributes, nest, push_message, text,
};
use crate::socket::{Reply, Socket};

mod key;
mod map;

pub(crate) use map::{SlotChange, change_slots, slots_of};

pub use key::{Field, Key, Type};

/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BATCH_BEGIN_END: [u16; 2] = [0x10, 0x11];
/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10;
const NEW_SET: u16 = NFTABLES << 8 | 9;
const GET_SET: u16 = NFTABLES << 8 | 10;
const NEW_ELEMENT: u16 = NFTABLES << 8 | 12;
const GET_ELEMENT: u16 = NFTABLES << 8 | 13;
const DELETE_ELEMENT: u16 = NFTABLES << 8 | 14;

/// `NFTA_SET_*`.
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
/// `NFTA_SET_ELEM_LIST_*`; table and set have the numbers above.
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
/// `NFTA_SET_ELEM_*`.
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_TIMEOUT: u16 = 4;
const ELEMENT_EXPIRATION: u16 = 5;
/// `NFTA_DATA_VALUE`.
const DATA_VALUE: u16 = 1;

/// Maximum bytes of an nftables name (`NFT_NAME_MAXLEN` less the NUL).
const NAME_MAX: usize = 255;

/// Families of tables and their numbers (`NFPROTO_*`).
const FAMILIES: [(&str, u8); 5] =
    [("inet", 1), ("ip", 2), ("netdev", 5), ("bridge", 7), ("ip6", 10)];

/// A set, as in `nft list set inet fw4 ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetName {
    /// Name and number.
    family: (&'static str, u8),
    table: String,
    set: String,
}

impl SetName {
    /// The command that adds such a set with this type.
    pub fn how_to_add(&self, of_type: &str) -> String {
        let SetName { family: (family, _), table, set } = self;
        format!(
            "nft 'add table {family} {table}; add set {family} {table} {set} \
             {{ type {of_type}; flags timeout; size 65536; }}'"
        )
    }

    /// The command that adds a map with this many slots.
    pub(crate) fn how_to_add_slots(&self, slots: usize, is_v6: bool) -> String {
        let SetName { family: (family, _), table, set } = self;
        let address = if is_v6 { "ip6 daddr" } else { "ip daddr" };
        format!(
            "nft 'add table {family} {table}; add map {family} {table} {set} \
             {{ typeof numgen inc mod {slots} : {address}; }}'"
        )
    }
}

impl FromStr for SetName {
    type Err = String;

    fn from_str(name: &str) -> Result<SetName, String> {
        let words: Vec<&str> = name.split_whitespace().collect();
        if let [family, table, set] = words[..]
            && table.len().max(set.len()) <= NAME_MAX
            && !name.contains('\0')
            && let Some(family) = FAMILIES.into_iter().find(|(known, _)| *known == family)
        {
            return Ok(SetName { family, table: table.to_owned(), set: set.to_owned() });
        }
        Err(format!(
            "expected family, table and set as in \"inet fw4 ssh\"; the family is one of {}",
            FAMILIES.map(|(name, _)| name).join(", ")
        ))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family.0, self.table, self.set)
    }
}

/// A set, as the kernel describes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Set {
    /// `NFT_SET_*`.
    flags: u32,
    /// The types of its key, six bits each, the first in the highest bits.
    key_type: u32,
    key_length: u32,
    /// Types of a map's values, as of the key.
    data_type: u32,
    data_length: u32,
}

impl Set {
    // `NFT_SET_*`.
    const CONSTANT: u32 = 0x2;
    const INTERVAL: u32 = 0x4;
    const MAP: u32 = 0x8;
    const TIMEOUT: u32 = 0x10;

    fn read(bytes: &[u8]) -> Set {
        let mut set = Set::default();
        for (kind, value) in attributes(bytes) {
            let number = value.first_chunk().copied().map_or(0, u32::from_be_bytes);
            match kind {
                SET_FLAGS => set.flags = number,
                SET_KEY_TYPE => set.key_type = number,
                SET_KEY_LENGTH => set.key_length = number,
                SET_DATA_TYPE => set.data_type = number,
                SET_DATA_LENGTH => set.data_length = number,
                _ => {}
            }
        }
        set
    }

    /// The key of elements with these fields in this set.
    ///
    /// # Errors
    /// The set has another type or unsupported flags; the text says how to declare it.
    pub fn fit(&self, fields: &[Field]) -> Result<Key, String> {
        let wants = [
            (Set::MAP, 0, "is a map, which is not supported; name a set"),
            (Set::INTERVAL, 0, "has the flag interval, which is not supported; declare it without"),
            (Set::CONSTANT, 0, "is constant; declare it without the flag"),
            (Set::TIMEOUT, Set::TIMEOUT, "has no timeouts; declare it with \"flags timeout\""),
        ];
        for (flag, wanted, why) in wants {
            if self.flags & flag != wanted {
                return Err(why.to_owned());
            }
        }
        let keys = [false, true].map(|is_v6| Key::new(fields, is_v6));
        let fitting = keys.iter().find(|key| {
            (key.type_number(), key.length() as u32) == (self.key_type, self.key_length)
        });
        fitting.cloned().ok_or_else(|| {
            let [v4, v6] = keys.map(|key| key.to_string());
            let wanted = match v4 == v6 {
                true => v4,
                false => format!("{v4}, or {v6}"),
            };
            let is = Type::names_of(self.key_type);
            format!("has type {is}, and its key in the configuration gives {wanted}")
        })
    }
}

/// Gets a set.
pub fn get(socket: &mut Socket, name: &SetName) -> Reply<Set> {
    let push = |out: &mut Vec<u8>, sequence, name: &&SetName| {
        let header = header(GET_SET, REQUEST, sequence, name);
        push_message(out, &header, |out| push_name(out, name));
    };
    let found =
        |answer: &Answer<'_>| (answer.kind == NEW_SET).then(|| Set::read(answer.attributes));
    let mut outcomes = Vec::new();
    socket.exchange(&[name], &mut outcomes, push, found);
    outcomes.pop().unwrap_or(Reply::Unanswered)
}

/// A change of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Add it, or restart its timeout.
    Add,
    /// Delete it.
    Delete,
}

/// An element's key and its change.
pub type Element = (Vec<u8>, Change);

/// Queries whether the set has these elements.
pub fn query(socket: &mut Socket, name: &SetName, elements: &[Element], outcomes: &mut Vec<Reply>) {
    let push = |out: &mut Vec<u8>, sequence, (key, _): &Element| {
        let header = header(GET_ELEMENT, REQUEST, sequence, name);
        push_element(out, &header, name, key, None);
    };
    let found = |answer: &Answer<'_>| (answer.kind == NEW_ELEMENT).then_some(());
    socket.exchange(elements, outcomes, push, found);
}

/// Applies all of these changes, or none. Added elements time out after `timeout_ms`, or the set's
/// own timeout if that is 0. If any outcome is an error, the others, though [`Reply::Done`], were
/// not applied.
pub fn change(
    socket: &mut Socket,
    name: &SetName,
    elements: &[Element],
    timeout_ms: u64,
    outcomes: &mut Vec<Reply>,
) {
    let push = |out: &mut Vec<u8>, sequence, (key, change): &Element| match change {
        Change::Add => {
            let header = header(NEW_ELEMENT, REQUEST | ACK | CREATE, sequence, name);
            push_element(out, &header, name, key, Some(timeout_ms));
        }
        Change::Delete => {
            let header = header(DELETE_ELEMENT, REQUEST | ACK, sequence, name);
            push_element(out, &header, name, key, None);
        }
    };
    transact(socket, elements, outcomes, push);
}

/// Sends what `push` builds from these changes as one transaction.
fn transact<Request>(
    socket: &mut Socket,
    changes: &[Request],
    outcomes: &mut Vec<Reply>,
    push: impl Fn(&mut Vec<u8>, u32, &Request),
) {
    let [begin, end] = BATCH_BEGIN_END.map(|kind| {
        move |out: &mut Vec<u8>, sequence| {
            let header = Header { kind, flags: REQUEST, sequence, family: 0, resource: NFTABLES };
            push_message(out, &header, |_| {});
        }
    });
    socket.exchange_between([&begin, &end], changes, outcomes, push, |_| None);
}

fn header(kind: u16, flags: u16, sequence: u32, name: &SetName) -> Header {
    Header { kind, flags, sequence, family: name.family.1, resource: 0 }
}

fn push_name(out: &mut Vec<u8>, name: &SetName) {
    text(out, SET_TABLE, &name.table);
    text(out, SET_NAME, &name.set);
}

fn push_element(
    out: &mut Vec<u8>,
    header: &Header,
    name: &SetName,
    key: &[u8],
    timeout_ms: Option<u64>,
) {
    push_message(out, header, |out| {
        push_name(out, name);
        nest(out, LIST_ELEMENTS, |out| {
            nest(out, LIST_ELEMENT, |out| {
                nest(out, ELEMENT_KEY, |out| attribute(out, DATA_VALUE, key));
                // The expiration restarts the timeout of an existing element (from Linux 6.12 on).
                if let Some(ms) = timeout_ms.filter(|ms| *ms > 0) {
                    attribute(out, ELEMENT_TIMEOUT, &ms.to_be_bytes());
                    attribute(out, ELEMENT_EXPIRATION, &ms.to_be_bytes());
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_named_as_nft_names_it() {
        let name: SetName = "inet  fw4 ssh_hosts ".parse().unwrap();
        assert_eq!((name.family.1, &*name.table, &*name.set), (1, "fw4", "ssh_hosts"));
        assert_eq!(name.to_string(), "inet fw4 ssh_hosts");
        assert!(
            name.how_to_add("ipv4_addr").contains("add set inet fw4 ssh_hosts { type ipv4_addr;")
        );
        for wrong in ["fw4 ssh", "inet fw4 ssh more", "arp t s", "inet t a\0b", ""] {
            assert!(wrong.parse::<SetName>().unwrap_err().contains("inet fw4 ssh"), "{wrong}");
        }
        let long = format!("ip t {}", "s".repeat(256));
        assert!(long.parse::<SetName>().is_err());
    }

    /// A name is bytes with a length: nothing in it ends the attribute or begins another.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_hostile_name_is_only_a_name() {
        let name: SetName = "ip t ssh;flush\u{1b}[2J{}\"".parse().unwrap();
        let mut out = Vec::new();
        let header = header(NEW_ELEMENT, REQUEST, 1, &name);
        push_element(&mut out, &header, &name, &[1, 2, 3, 4], Some(1000));
        let read: Vec<_> = attributes(&out[20..]).collect();
        assert_eq!(read[1], (SET_NAME, "ssh;flush\u{1b}[2J{}\"\0".as_bytes()));
        #[rustfmt::skip]
        assert_eq!(read[2].1, [
            40, 0, 1, 0x80,
            12, 0, 1, 0x80,  8, 0, 1, 0,  1, 2, 3, 4,
            12, 0, 4, 0,  0, 0, 0, 0, 0, 0, 3, 232,
            12, 0, 5, 0,  0, 0, 0, 0, 0, 0, 3, 232,
        ]);
        assert_eq!(read.len(), 3);
    }

    #[test]
    fn a_set_fits_or_says_why_not() {
        let set =
            |flags, key_type, key_length| Set { flags, key_type, key_length, ..Set::default() };
        let address = [Field::OriginatorAddress];
        let fit = |set: Set| set.fit(&address).map(|key| key.to_string());
        assert_eq!(fit(set(0x10, 7, 4)).unwrap(), "ipv4_addr");
        assert_eq!(fit(set(0x30, 8, 16)).unwrap(), "ipv6_addr");
        for (flags, why) in [(0, "flags timeout"), (0x14, "interval"), (0x18, "map")] {
            let error = fit(set(flags, 7, 4)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(
            fit(set(0x10, 7 << 6 | 13, 8)).unwrap_err(),
            "has type ipv4_addr . inet_service, and its key in the configuration gives \
             ipv4_addr, or ipv6_addr"
        );
        assert!(fit(set(0x10, 19, 4)).unwrap_err().contains("type 19"));
    }
}
