//! The file that names labels of connections, which nft, conntrack and iptables read: a bit and a name on each line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the file is: nft's place, and that of iptables and conntrack.
pub const PLACES: [&str; 2] = ["/etc/connlabel.conf", "/etc/xtables/connlabel.conf"];

/// A connection has this many labels.
pub const LABELS: u8 = 128;

/// The first of [`PLACES`] where there is a file.
pub fn default_file() -> Option<PathBuf> {
    let mut places = PLACES.iter().map(PathBuf::from);
    places.find(|place| place.is_file())
}

/// Names with their bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(Vec<(String, u8)>);

impl Names {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(file: &Path) -> io::Result<Names> {
        Ok(Names::parse(&fs::read_to_string(file)?))
    }

    /// As the tools read it: what follows # is a comment, and lines that are no bit and name are passed over.
    pub fn parse(text: &str) -> Names {
        let lines = text.lines().filter_map(|line| {
            let line = line.split('#').next()?;
            let mut words = line.split_whitespace();
            let bit: u8 = words.next()?.parse().ok()?;
            let name = words.next()?.to_owned();
            (bit < LABELS && words.next().is_none()).then_some((name, bit))
        });
        Names(lines.collect())
    }

    /// The bit of a label that is given by name or number.
    pub fn bit(&self, label: &str) -> Option<u8> {
        let named = self.0.iter().find(|(name, _)| name == label);
        match named {
            Some((_, bit)) => Some(*bit),
            None => label.parse().ok().filter(|bit| *bit < LABELS),
        }
    }

    /// All names, for people.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_to_bits() {
        let names = Names::parse(
            "# bit name\n0 first\n\t7\tssh # comment\nx y\n128 beyond\n9 two words\n\n12\n",
        );
        assert_eq!(names.all().collect::<Vec<_>>(), ["first", "ssh"]);
        assert_eq!(names.bit("ssh"), Some(7));
        assert_eq!(names.bit("127"), Some(127));
        for wrong in ["128", "beyond", "two", "-1", ""] {
            assert_eq!(names.bit(wrong), None, "{wrong}");
        }
    }
}
