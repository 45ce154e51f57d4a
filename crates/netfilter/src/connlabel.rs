//! The file of connection labels, which nft, conntrack and iptables read: a bit and a name per
//! line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Paths of the file: nft's, and the one of iptables and conntrack.
pub const PLACES: [&str; 2] = ["/etc/connlabel.conf", "/etc/xtables/connlabel.conf"];

/// Labels per connection.
pub const LABELS: u8 = 128;

/// The first existing file of [`PLACES`].
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

    /// Parses the file as the tools do: # starts a comment, and lines other than a bit and a name
    /// are skipped.
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

    /// The bit of a label given by name or number.
    pub fn bit(&self, label: &str) -> Option<u8> {
        let named = self.0.iter().find(|(name, _)| name == label);
        match named {
            Some((_, bit)) => Some(*bit),
            None => label.parse().ok().filter(|bit| *bit < LABELS),
        }
    }

    /// All names.
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
