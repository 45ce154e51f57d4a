//! DSCP names and their code points (RFC 2474, 2597, 3246, 5865, 8622).

use std::fmt;
use std::str::FromStr;

/// A code point, 0 to [`Dscp::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

/// Names and code points. DF precedes CS0, its other name, so that 0 is shown as DF.
const NAMES: [(&str, u8); 24] = [
    ("DF", 0),
    ("CS0", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VA", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

impl Dscp {
    /// Greatest code point: a DSCP has six bits.
    pub const MAX: u8 = 63;

    /// The code point, if it is valid.
    pub fn new(code_point: u8) -> Option<Dscp> {
        (code_point <= Dscp::MAX).then_some(Dscp(code_point))
    }

    /// The code point called `name`.
    pub fn parse(name: &str) -> Option<Dscp> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, code_point)| Dscp(*code_point))
    }

    /// The six bits in a packet.
    pub fn code_point(self) -> u8 {
        self.0
    }

    /// Its name, if it has one.
    pub fn name(self) -> Option<&'static str> {
        let found = NAMES.iter().find(|(_, known)| *known == self.0);
        found.map(|(name, _)| *name)
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }
}

/// By its name, else by its number.
impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// As it is displayed, in upper or lower case; each code point has its number as well.
impl FromStr for Dscp {
    type Err = NotADscp;

    fn from_str(text: &str) -> Result<Dscp, NotADscp> {
        let number = || Dscp::new(text.parse().ok()?);
        Dscp::parse(&text.to_uppercase()).or_else(number).ok_or(NotADscp)
    }
}

/// A text that names no code point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a DSCP name such as EF, or a number from 0 to 63")]
pub struct NotADscp;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Option<u8> {
        Dscp::parse(name).map(Dscp::code_point)
    }

    #[test]
    fn class_selectors_and_assured_forwarding_follow_their_formulas() {
        for class in 0..8 {
            assert_eq!(parse(&format!("CS{class}")), Some(8 * class));
        }
        for class in 1..5 {
            for drop in 1..4 {
                assert_eq!(parse(&format!("AF{class}{drop}")), Some(8 * class + 2 * drop));
            }
        }
        assert_eq!(
            [parse("EF"), parse("VA"), parse("LE"), parse("DF")],
            [Some(46), Some(44), Some(1), Some(0)]
        );
        assert_eq!([parse("AF44"), parse("CS8"), parse("ef"), parse("")], [None; 4]);
    }

    #[test]
    fn a_name_leads_back_to_its_code_point() {
        for code_point in 0..=Dscp::MAX {
            let dscp = Dscp::new(code_point).unwrap();
            assert!(dscp.name().is_none_or(|name| parse(name) == Some(code_point)));
            for text in [dscp.to_string(), code_point.to_string()] {
                assert_eq!(text.parse(), Ok(dscp));
            }
        }
        assert_eq!("ef".parse(), Ok(Dscp(46)));
        for text in ["", "64", "-1", "AF44"] {
            assert_eq!(text.parse::<Dscp>(), Err(NotADscp), "{text}");
        }
        let name = |code_point| Dscp::new(code_point).unwrap().name();
        assert_eq!(name(0), Some("DF"));
        assert_eq!(name(63), None);
        assert_eq!(Dscp::new(64), None);
    }
}
