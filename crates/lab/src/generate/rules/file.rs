//! Filter files of ClassBench: a rule a line, `@SOURCE/LENGTH DESTINATION/LENGTH FIRST : LAST
//! FIRST : LAST PROTOCOL/MASK`, then flags. The first line that has a packet is the packet's rule.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use policy::{Address, Filter};

use fenxi::exit::Failure;

/// Writes a set, with addresses as `Shown` shows them.
///
/// # Errors
/// The file cannot be written.
pub fn write<A: Address, Shown: From<A> + Display>(
    path: &Path,
    filters: &[Filter<A>],
) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| Failure::creating(path, &error))?;
    let mut file = BufWriter::new(file);
    let written = filters.iter().try_for_each(|filter| {
        let (source, destination) = (filter.source_ports, filter.destination_ports);
        let (protocol, mask) = filter.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        writeln!(
            file,
            "@{}/{}\t{}/{}\t{} : {}\t{} : {}\t0x{protocol:02x}/0x{mask:02X}\t0x0000/0x0000",
            Shown::from(filter.source),
            filter.source_length,
            Shown::from(filter.destination),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use policy::RuleSet;
    use rulefiles::{Format, Options};

    use crate::generate::rules::{Asked, generate, v6};

    fn read(path: &Path) -> RuleSet {
        let options = Options { format: Some(Format::ClassBench), ..Options::default() };
        rulefiles::read(path, &options).unwrap().set
    }

    /// What of a filter is in the file.
    fn written<A: Address>(filters: &[Filter<A>]) -> Vec<impl PartialEq + std::fmt::Debug> {
        let parts = |it: &Filter<A>| {
            let prefixes = (it.source, it.source_length, it.destination, it.destination_length);
            (prefixes, it.protocol, it.source_ports, it.destination_ports)
        };
        filters.iter().map(parts).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let rules = generate(&Asked { seed: "fw4", rules: 500, random: 3 }).unwrap();
        write::<_, Ipv4Addr>(&path, &rules).unwrap();
        assert_eq!(written(&read(&path).v4), written(&rules));
        let rules: Vec<_> = rules.iter().map(v6::filter).collect();
        write::<_, Ipv6Addr>(&path, &rules).unwrap();
        assert_eq!(written(&read(&path).v6), written(&rules));
    }
}
