//! Maps from slots, numbers from 0 on, to servers.

use std::net::SocketAddr;

use super::{
    DATA_VALUE, DELETE_ELEMENT, ELEMENT_DATA, ELEMENT_KEY, GET_ELEMENT, LIST_ELEMENT,
    LIST_ELEMENTS, NEW_ELEMENT, Set, SetName, Type, header, push_name, transact,
};
use crate::netlink::{ACK, Answer, CREATE, REQUEST, attribute, attributes, nest, push_message};
use crate::socket::{BATCH, Reply, Socket};

/// Number of nft's type `integer` (`TYPE_INTEGER`).
const INTEGER: u32 = 4;
/// Bytes of a slot, in native byte order as `jhash` and `numgen` have them.
const SLOT_BYTES: u32 = 4;

/// Elements per message, so that the kernel's refusal, which repeats the message, fits the buffer.
const ELEMENTS_MAX: usize = 64;

impl Set {
    /// The map's values for these servers, if it maps slots to such.
    ///
    /// # Errors
    /// It does not; the text says how to declare it.
    pub(crate) fn servers(&self, servers: &[SocketAddr]) -> Result<Vec<Vec<u8>>, String> {
        let wants = [
            (Set::MAP, Set::MAP, "is a set; name a map"),
            (Set::INTERVAL, 0, "has the flag interval; declare it without"),
            (Set::CONSTANT, 0, "is constant; declare it without the flag"),
            (Set::TIMEOUT, 0, "has the flag timeout, but slots stay; declare it without"),
        ];
        for (flag, wanted, why) in wants {
            if self.flags & flag != wanted {
                return Err(why.to_owned());
            }
        }
        if (self.key_type, self.key_length) != (INTEGER, SLOT_BYTES) {
            return Err(format!(
                "has keys of {}; declare it with \"typeof numgen inc mod N : ip daddr\"",
                Type::names_of(self.key_type)
            ));
        }
        let values: Option<Vec<_>> = servers.iter().map(|server| self.value(*server)).collect();
        values.ok_or_else(|| {
            let is = Type::names_of(self.data_type);
            format!("has values of {is}, which is not the family of its servers")
        })
    }

    /// A server's address, and its port if values have one; `None`: not of this family.
    fn value(&self, server: SocketAddr) -> Option<Vec<u8>> {
        let (address, mut value) = match server {
            SocketAddr::V4(server) => (Type::Ipv4Addr, server.ip().octets().to_vec()),
            SocketAddr::V6(server) => (Type::Ipv6Addr, server.ip().octets().to_vec()),
        };
        let with_port = address.number() << Type::BITS | Type::InetService.number();
        if self.data_type == with_port {
            value.extend(server.port().to_be_bytes());
            value.resize(value.len().next_multiple_of(4), 0);
        }
        let is_fit = [address.number(), with_port].contains(&self.data_type);
        (is_fit && value.len() == self.data_length as usize).then_some(value)
    }
}

/// The values of this many slots.
pub(crate) fn slots_of(socket: &mut Socket, name: &SetName, slots: usize) -> Vec<Reply<Vec<u8>>> {
    let push = |out: &mut Vec<u8>, sequence, slot: &u32| {
        push_elements(out, &header(GET_ELEMENT, REQUEST, sequence, name), name, &[(*slot, None)]);
    };
    let (mut values, mut outcomes) = (Vec::with_capacity(slots), Vec::new());
    let slots: Vec<u32> = (0..slots as u32).collect();
    for batch in slots.chunks(BATCH) {
        socket.exchange(batch, &mut outcomes, push, value_in);
        values.append(&mut outcomes);
    }
    values
}

fn value_in(answer: &Answer<'_>) -> Option<Vec<u8>> {
    if answer.kind != NEW_ELEMENT {
        return None;
    }
    let inside = |bytes, wanted| {
        attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
    };
    let element = inside(inside(answer.attributes, LIST_ELEMENTS)?, LIST_ELEMENT)?;
    Some(inside(inside(element, ELEMENT_DATA)?, DATA_VALUE)?.to_vec())
}

/// A slot with the value to delete or to add.
pub(crate) type SlotChange<'a> = (u32, Option<&'a [u8]>);

/// Deletes slots and adds others, all or nothing: packets meet the map as it was before, or after.
pub(crate) fn change_slots(
    socket: &mut Socket,
    name: &SetName,
    deleted: &[SlotChange<'_>],
    added: &[SlotChange<'_>],
) -> Vec<Reply> {
    let deleted = deleted.chunks(ELEMENTS_MAX).map(|part| (DELETE_ELEMENT, 0, part));
    let added = added.chunks(ELEMENTS_MAX).map(|part| (NEW_ELEMENT, CREATE, part));
    let messages: Vec<_> = deleted.chain(added).collect();
    let push = |out: &mut Vec<u8>, sequence, (kind, flags, elements): &(u16, u16, &[_])| {
        push_elements(out, &header(*kind, REQUEST | ACK | flags, sequence, name), name, elements);
    };
    let mut outcomes = Vec::new();
    transact(socket, &messages, &mut outcomes, push);
    outcomes
}

fn push_elements(
    out: &mut Vec<u8>,
    header: &crate::netlink::Header,
    name: &SetName,
    elements: &[SlotChange<'_>],
) {
    push_message(out, header, |out| {
        push_name(out, name);
        nest(out, LIST_ELEMENTS, |out| {
            for (slot, value) in elements {
                nest(out, LIST_ELEMENT, |out| {
                    let key = slot.to_ne_bytes();
                    nest(out, ELEMENT_KEY, |out| attribute(out, DATA_VALUE, &key));
                    if let Some(value) = value {
                        nest(out, ELEMENT_DATA, |out| attribute(out, DATA_VALUE, value));
                    }
                });
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_fits_its_servers_or_says_why_not() {
        let servers = ["10.0.0.1:80".parse().unwrap(), "10.0.0.2:8080".parse().unwrap()];
        let map = Set { flags: 8, key_type: 4, key_length: 4, data_type: 7, data_length: 4 };
        assert_eq!(map.servers(&servers).unwrap(), [[10, 0, 0, 1], [10, 0, 0, 2]]);
        let ports = Set { data_type: 7 << 6 | 13, data_length: 8, ..map };
        assert_eq!(
            ports.servers(&servers).unwrap(),
            [[10, 0, 0, 1, 0, 80, 0, 0], [10, 0, 0, 2, 0x1f, 0x90, 0, 0]]
        );
        let six = Set { data_type: 8, data_length: 16, ..map };
        assert_eq!(six.servers(&["[fd00::1]:80".parse().unwrap()]).unwrap()[0].len(), 16);
        let wrong = [
            (Set { flags: 0, ..map }, "is a set"),
            (Set { flags: 0xc, ..map }, "interval"),
            (Set { flags: 0xa, ..map }, "constant"),
            (Set { flags: 0x18, ..map }, "timeout"),
            (Set { key_type: 19, ..map }, "has keys of type 19; declare it with \"typeof numgen"),
            (Set { key_type: 7, ..map }, "has keys of ipv4_addr"),
            (six, "has values of ipv6_addr"),
        ];
        for (set, why) in wrong {
            let error = set.servers(&servers).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
