//! `fenxi init`: the answers, which may be given as options.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use config::sources::DEFAULT_FILE;

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Configuration file to write
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,
    /// What you want
    #[arg(short, long, value_enum)]
    pub want: Option<Want>,
    /// Interface to watch; to shape a link, the inner one
    #[arg(short, long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Speed of the link, as 100mbit, or down and up, as 50mbit/5mbit
    #[arg(short, long, value_name = "RATE", value_parser = Link::parse)]
    pub link: Option<Link>,
}

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Want {
    /// See what is on the network; nothing is changed
    See,
    /// Calls first, big uploads and downloads last
    Shape,
    /// Records of all flows, for other programs
    Export,
}

/// Rates of a link, kbit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub down: u64,
    pub up: u64,
}

impl Link {
    /// One rate for both directions, or two; each a whole number with the unit that tc reads.
    pub fn parse(text: &str) -> Result<Link, String> {
        let (down, up) = text.split_once('/').unwrap_or((text, text));
        match (kbit(down), kbit(up)) {
            (Some(down), Some(up)) => Ok(Link { down, up }),
            _ => Err("expected a rate such as 100mbit, or down and up as 50mbit/5mbit; units are \
                      kbit, mbit and gbit"
                .to_owned()),
        }
    }
}

/// Up to a terabit per second.
fn kbit(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(|it: char| !it.is_ascii_digit());
    let factor = match text[digits.len()..].trim() {
        "kbit" => 1,
        "mbit" => 1000,
        "gbit" => 1_000_000,
        _ => return None,
    };
    let rate = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    (100..=1_000_000_000).contains(&rate).then_some(rate)
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |kbit: u64| match kbit {
            _ if kbit.is_multiple_of(1_000_000) => format!("{} Gbit/s", kbit / 1_000_000),
            _ if kbit.is_multiple_of(1000) => format!("{} Mbit/s", kbit / 1000),
            _ => format!("{kbit} kbit/s"),
        };
        match self.down == self.up {
            true => f.write_str(&shown(self.down)),
            false => write!(f, "{} down, {} up", shown(self.down), shown(self.up)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let parsed = |text| Link::parse(text).ok().map(|it| (it.down, it.up));
        assert_eq!(parsed("100mbit"), Some((100_000, 100_000)));
        assert_eq!(parsed("1gbit/900kbit"), Some((1_000_000, 900)));
        assert_eq!(parsed(" 50 Mbit / 5 MBIT "), Some((50_000, 5_000)));
        for wrong in ["", "5", "5mb", "mbit", "-5mbit", "1.5mbit", "0mbit", "9mbit/", "2000gbit"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        let shown = |text| Link::parse(text).unwrap().to_string();
        assert_eq!(shown("1000mbit"), "1 Gbit/s");
        assert_eq!(shown("50mbit/900kbit"), "50 Mbit/s down, 900 kbit/s up");
    }
}
