//! Filter files of ClassBench: a rule a line, `@SOURCE/LENGTH DESTINATION/LENGTH FIRST : LAST
//! FIRST : LAST PROTOCOL/MASK`, then flags, which are not looked at. The first line that has a
//! packet is the packet's rule.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use policy::{Address, Filter, Ports, Rank};

use fenxi::exit::Failure;

/// How a family's addresses are written.
pub trait Written: Address {
    fn parse(text: &str) -> Option<Self>;
    fn show(self) -> String;
}

impl Written for u32 {
    fn parse(text: &str) -> Option<u32> {
        text.parse().ok().map(Ipv4Addr::to_bits)
    }

    fn show(self) -> String {
        Ipv4Addr::from_bits(self).to_string()
    }
}

impl Written for u128 {
    fn parse(text: &str) -> Option<u128> {
        text.parse().ok().map(Ipv6Addr::to_bits)
    }

    fn show(self) -> String {
        Ipv6Addr::from_bits(self).to_string()
    }
}

/// Writes a set.
///
/// # Errors
/// The file cannot be written.
pub fn write<A: Written>(path: &Path, filters: &[Filter<A>]) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
    let mut file = BufWriter::new(file);
    let written = filters.iter().try_for_each(|filter| {
        let (source, destination) = (filter.source_ports, filter.destination_ports);
        let (protocol, mask) = filter.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        writeln!(
            file,
            "@{}/{}\t{}/{}\t{} : {}\t{} : {}\t0x{protocol:02x}/0x{mask:02X}\t0x0000/0x0000",
            filter.source.show(),
            filter.source_length,
            filter.destination.show(),
            filter.destination_length,
            source.first,
            source.last,
            destination.first,
            destination.last,
        )
    });
    let written = written.and_then(|()| file.flush());
    written.map_err(|error| Failure::writing(&path.display().to_string(), &error))
}

/// Reads a set.
///
/// # Errors
/// The file cannot be read, or a line is no rule.
pub fn read<A: Written>(path: &Path) -> Result<Vec<Filter<A>>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::no_input(format!("{}: {error}", path.display())))?;
    let mut filters = Vec::new();
    for (place, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let number = filters.len() as u32;
        filters.push(parse(line, number).ok_or_else(|| {
            let at = format!("{}:{}", path.display(), place + 1);
            Failure::data(format!(
                "{at}: not a rule of ClassBench, which has the form @10.0.0.0/8 0.0.0.0/0 0 : \
                 65535 80 : 80 0x06/0xFF"
            ))
        })?);
    }
    Ok(filters)
}

fn parse<A: Written>(line: &str, number: u32) -> Option<Filter<A>> {
    let mut words = line.strip_prefix('@')?.split_whitespace();
    let (source, source_length) = prefix(words.next()?)?;
    let (destination, destination_length) = prefix(words.next()?)?;
    let mut ports = || {
        let (first, colon, last) = (words.next()?, words.next()?, words.next()?);
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (colon == ":" && first <= last).then_some(Ports { first, last })
    };
    let (source_ports, destination_ports) = (ports()?, ports()?);
    let hex = |text: &str| u8::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (protocol, mask) = words.next()?.split_once('/')?;
    let protocol = match hex(mask)? {
        0 => None,
        0xff => Some(hex(protocol)?),
        _ => return None,
    };
    Some(Filter {
        source,
        destination,
        source_length,
        destination_length,
        protocol,
        in_port: 0,
        source_ports,
        destination_ports,
        rule: number,
        is_conditional: false,
        rank: Rank::new(0, number),
    })
}

/// A prefix; bits beyond its length, which some files have, do not count.
fn prefix<A: Written>(text: &str) -> Option<(A, u8)> {
    let (address, length) = text.split_once('/')?;
    let length: u8 = length.parse().ok()?;
    (length <= A::BITS).then_some((A::parse(address)?.prefix(length), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::rules::{Asked, generate, v6};

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let asked = Asked { seed: "fw4", rules: 500, random: 3 };
        let rules = generate(&asked).unwrap();
        write(&path, &rules).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), rules);
        let rules: Vec<_> = rules.iter().map(v6::filter).collect();
        write(&path, &rules).unwrap();
        assert_eq!(read::<u128>(&path).unwrap(), rules);
        let error = read::<u32>(&path).unwrap_err().to_string();
        assert!(error.contains("rules:1: not a rule"), "{error}");
    }
}
