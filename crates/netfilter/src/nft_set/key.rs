//! Keys of sets: fields of a flow as bytes.

use std::fmt;
use std::net::IpAddr;

use crate::conntrack::Tuple;

/// A part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Address of the flow's originator.
    OriginatorAddress,
    /// Its port.
    OriginatorPort,
    /// Address of the responder.
    ResponderAddress,
    /// Its port.
    ResponderPort,
    /// TCP or UDP.
    Protocol,
}

impl Field {
    /// All fields with their names.
    const ALL: [(&'static str, Field); 5] = [
        ("originator_address", Field::OriginatorAddress),
        ("originator_port", Field::OriginatorPort),
        ("responder_address", Field::ResponderAddress),
        ("responder_port", Field::ResponderPort),
        ("protocol", Field::Protocol),
    ];

    /// The names of all fields.
    pub const NAMES: [&'static str; 5] =
        [Field::ALL[0].0, Field::ALL[1].0, Field::ALL[2].0, Field::ALL[3].0, Field::ALL[4].0];

    /// The field with this name.
    pub fn parse(name: &str) -> Option<Field> {
        let found = Field::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, field)| *field)
    }

    fn of_type(self, is_v6: bool) -> Type {
        match self {
            Field::OriginatorAddress | Field::ResponderAddress if is_v6 => Type::Ipv6Addr,
            Field::OriginatorAddress | Field::ResponderAddress => Type::Ipv4Addr,
            Field::OriginatorPort | Field::ResponderPort => Type::InetService,
            Field::Protocol => Type::InetProto,
        }
    }
}

/// The type of a field, by nft's name. The kernel stores nft's numbers (`enum datatypes` of nft's
/// `datatype.h`) without interpreting them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr`.
    Ipv4Addr,
    /// `ipv6_addr`.
    Ipv6Addr,
    /// `inet_proto`.
    InetProto,
    /// `inet_service`.
    InetService,
}

impl Type {
    /// Name, number and bytes.
    const ALL: [(Type, &'static str, u32, usize); 4] = [
        (Type::Ipv4Addr, "ipv4_addr", 7, 4),
        (Type::Ipv6Addr, "ipv6_addr", 8, 16),
        (Type::InetProto, "inet_proto", 12, 1),
        (Type::InetService, "inet_service", 13, 2),
    ];

    /// Bits per type in a concatenation (`TYPE_BITS`).
    pub(super) const BITS: u32 = 6;

    fn row(self) -> (Type, &'static str, u32, usize) {
        Type::ALL[self as usize]
    }

    pub(super) fn number(self) -> u32 {
        self.row().2
    }

    /// The names of the types in a set's number.
    pub fn names_of(number: u32) -> String {
        let parts =
            (0..u32::BITS / Type::BITS).rev().map(|place| number >> (place * Type::BITS) & 0x3f);
        let names = parts.filter(|part| *part != 0).map(|part| {
            let known = Type::ALL.iter().find(|(_, _, number, _)| *number == part);
            known.map_or(format!("type {part}"), |(_, name, _, _)| (*name).to_owned())
        });
        names.collect::<Vec<_>>().join(" . ")
    }
}

/// The key of a set: fields, and the family of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    fields: Box<[Field]>,
    is_v6: bool,
}

impl Key {
    /// A key of these fields.
    pub fn new(fields: &[Field], is_v6: bool) -> Key {
        Key { fields: fields.into(), is_v6 }
    }

    fn types(&self) -> impl Iterator<Item = Type> {
        self.fields.iter().map(|field| field.of_type(self.is_v6))
    }

    /// The number of its type.
    pub(super) fn type_number(&self) -> u32 {
        self.types().fold(0, |number, part| number << Type::BITS | part.number())
    }

    /// Bytes of a key.
    pub(super) fn length(&self) -> usize {
        let single = self.fields.len() == 1;
        let bytes = self.types().map(|part| part.row().3);
        bytes
            .map(|bytes| match single {
                true => bytes,
                false => bytes.next_multiple_of(4),
            })
            .sum()
    }

    /// The key of a flow; `None` if its addresses are of the other family. In a concatenation,
    /// fields are aligned to four bytes.
    pub fn for_tuple(&self, tuple: &Tuple) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.length());
        for field in &self.fields {
            match field {
                Field::OriginatorAddress => self.push_address(&mut bytes, tuple.source.0)?,
                Field::ResponderAddress => self.push_address(&mut bytes, tuple.destination.0)?,
                Field::OriginatorPort => bytes.extend(tuple.source.1.to_be_bytes()),
                Field::ResponderPort => bytes.extend(tuple.destination.1.to_be_bytes()),
                Field::Protocol => bytes.push(tuple.protocol),
            }
            if self.fields.len() > 1 {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        Some(bytes)
    }

    fn push_address(&self, bytes: &mut Vec<u8>, address: IpAddr) -> Option<()> {
        match (address, self.is_v6) {
            (IpAddr::V4(address), false) => bytes.extend(address.octets()),
            (IpAddr::V6(address), true) => bytes.extend(address.octets()),
            _ => return None,
        }
        Some(())
    }
}

/// As in the declaration of a set.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.types().map(|part| part.row().1).collect();
        f.write_str(&names.join(" . "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_places() {
        for (place, row) in Type::ALL.iter().enumerate() {
            assert_eq!(row.0 as usize, place);
        }
        for name in Field::NAMES {
            assert!(Field::parse(name).is_some());
        }
        assert_eq!(Field::parse("address"), None);
    }

    #[test]
    fn a_key_has_its_fields_at_multiples_of_four_bytes() {
        let tuple = Tuple {
            zone: 0,
            protocol: 6,
            source: ("10.0.0.1".parse().unwrap(), 0x1234),
            destination: ("192.0.2.9".parse().unwrap(), 443),
        };
        let all = ["originator_address", "protocol", "responder_port"];
        let fields = all.map(|name| Field::parse(name).unwrap());
        let key = Key::new(&fields, false);
        assert_eq!(key.for_tuple(&tuple).unwrap(), [10, 0, 0, 1, 6, 0, 0, 0, 1, 187, 0, 0]);
        assert_eq!((key.length(), key.type_number()), (12, 7 << 12 | 12 << 6 | 13));
        assert_eq!(key.to_string(), "ipv4_addr . inet_proto . inet_service");
        assert_eq!(Type::names_of(key.type_number()), key.to_string());
        assert_eq!(Key::new(&fields, true).for_tuple(&tuple), None);
        let port = Key::new(&[Field::OriginatorPort], true);
        assert_eq!((port.for_tuple(&tuple).unwrap(), port.length()), (vec![0x12, 0x34], 2));
    }
}
