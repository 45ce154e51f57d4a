//! Parses values: prefixes, ports, quantities.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use policy::hours::{Hours, NotHours};
use policy::rule::BEHAVIOURS;
use policy::{Address, Dscp, ICMP, Mark, Ports, TCP, UDP};

use crate::error::Problem;
use crate::nearest::suggest;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prefix {
    V4(u32, u8),
    V6(u128, u8),
}

/// A prefix such as `10.0.0.0/8`, or an address.
pub fn prefix(key: &'static str, text: &str) -> Result<Prefix, Problem> {
    let expected = "an address or a prefix such as 10.0.0.0/8 or 2001:db8::/32";
    let wrong = || Problem::value(key, text, expected);
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => {
            plain_number(length).filter(|length| *length <= most).ok_or_else(wrong)? as u8
        }
        None => most as u8,
    };
    let (prefix, shortened) = match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            (Prefix::V4(bits, length), IpAddr::V4(bits.prefix(length).into()))
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            (Prefix::V6(bits, length), IpAddr::V6(bits.prefix(length).into()))
        }
    };
    match shortened == address {
        true => Ok(prefix),
        false => Err(Problem::HostBits {
            key,
            prefix: text.to_owned(),
            cure: format!("{shortened}/{length} for the prefix, or {address} for the one address"),
        }),
    }
}

impl Prefix {
    /// Its address and length.
    pub fn parts(&self) -> (IpAddr, u8) {
        match *self {
            Prefix::V4(bits, length) => (Ipv4Addr::from_bits(bits).into(), length),
            Prefix::V6(bits, length) => (Ipv6Addr::from_bits(bits).into(), length),
        }
    }
}

/// Whether a text is the name of a host or a MAC address, and not a mistaken prefix.
pub fn is_host(text: &str) -> bool {
    let is_mac = text.split(':').count() == 6
        && text.split(':').all(|it| it.len() == 2 && it.bytes().all(|b| b.is_ascii_hexdigit()));
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name =
        text.len() <= 253 && text.contains(char::is_alphabetic) && text.chars().all(is_of_name);
    is_mac || is_name
}

/// A port, or a range such as `5000-5010`.
pub fn ports(key: &'static str, text: &str) -> Result<Ports, Problem> {
    let expected = "a port from 0 to 65535, or the first and the last as in \"5000-5010\"";
    let wrong = || Problem::value(key, text, expected);
    let port = |text: &str| plain_number(text.trim()).and_then(|port| u16::try_from(port).ok());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = port(first).zip(port(last)).ok_or_else(wrong)?;
    if first <= last { Ok(Ports { first, last }) } else { Err(wrong()) }
}

/// A VLAN, or a range such as `20-29`; 0 for flows without a tag.
pub fn vlans(key: &'static str, text: &str) -> Result<RangeInclusive<u16>, Problem> {
    let expected = "a VLAN from 0 (no tag) to 4094, or the first and the last as in \"20-29\"";
    let wrong = |_| Problem::value(key, text, expected);
    let Ports { first, last } = ports(key, text).map_err(wrong)?;
    if last <= 4094 { Ok(first..=last) } else { Err(Problem::value(key, text, expected)) }
}

/// Hours of the week.
pub fn hours(key: &'static str, text: &str) -> Result<Hours, Problem> {
    text.parse().map_err(|error: NotHours| {
        Problem::value(key, text, error.to_string().trim_start_matches("expected "))
    })
}

/// A behaviour as a set of one: bit n for [`BEHAVIOURS`]`[n]`.
pub fn behaviour(key: &'static str, text: &str) -> Result<u8, Problem> {
    let found = BEHAVIOURS.iter().position(|name| *name == text);
    found.map(|number| 1 << number).ok_or_else(|| {
        let expected = "\"bulk\", \"interactive\", \"realtime\", \"idle\" or \"none\"";
        Problem::value(key, text, expected)
    })
}

pub fn protocol(text: &str) -> Result<u8, Problem> {
    match text {
        "tcp" | "TCP" => Ok(TCP),
        "udp" | "UDP" => Ok(UDP),
        "icmp" | "ICMP" => Ok(ICMP),
        _ => number("protocol", text, "\"tcp\", \"udp\", \"icmp\" or a number up to 255"),
    }
}

/// A code point, by name or number.
pub fn dscp(key: &'static str, text: &str) -> Result<Dscp, Problem> {
    let number = || Dscp::new(u8::try_from(plain_number(text)?).ok()?);
    Dscp::parse(text).or_else(number).ok_or_else(|| {
        let near = suggest(text, Dscp::names());
        let near = if near.starts_with("; did") { &near } else { "" };
        let expected =
            "a DSCP name (CS0 to CS7, AF11 to AF43, EF, VA, LE, DF) or an integer from 0 to 63";
        Problem::value(key, text, format!("{expected}{near}"))
    })
}

/// Bits and mask: `0x10/0xff`; the default mask is all 32 bits.
pub fn mark(text: &str) -> Result<Mark, Problem> {
    let word = |text: &str| match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => plain_number(text).and_then(|number| u32::try_from(number).ok()),
    };
    let (bits, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    let expected = "bits and mask as in \"0x10/0xff\", where bits are not 0 and lie in the mask";
    word(bits.trim())
        .zip(word(mask.trim()))
        .map(|(bits, mask)| Mark { bits, mask })
        .filter(|mark| mark.bits != 0 && mark.bits & !mark.mask == 0)
        .ok_or_else(|| Problem::value("mark", text, expected))
}

/// A share from 0 to 1, as 0 to 65,536.
pub fn sample(text: &str) -> Result<u32, Problem> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    let expected = "a share of the flows from 0 to 1, such as 0.1";
    let share = share.ok_or_else(|| Problem::value("sample", text, expected))?;
    Ok((share * 65_536.0).round() as u32)
}

pub fn truth(key: &'static str, text: &str) -> Result<bool, Problem> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Problem::value(key, text, "true or false")),
    }
}

pub fn number<N: TryFrom<u64>>(
    key: &'static str,
    text: &str,
    expected: &str,
) -> Result<N, Problem> {
    let number = plain_number(text).and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| Problem::value(key, text, expected))
}

/// Digits only; `parse` would accept a sign.
fn plain_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// Units of a quantity, descending; the last has the factor 1.
pub type Units = &'static [(&'static str, u64)];

pub const BYTES: Units = &[
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1000),
    ("B", 1),
];
/// Durations, in ms.
pub const TIMES: Units =
    &[("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];
/// Rates, in bit/s.
pub const RATES: Units =
    &[("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1000), ("bit/s", 1)];

/// A number with a unit, such as `10 MiB` or `1.5 s`.
pub fn quantity(key: &'static str, text: &str, units: Units) -> Result<u64, Problem> {
    let names = units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let wrong = || {
        let example = match units[units.len() - 1].0 {
            "B" => "10 MiB",
            "ms" => "30 s",
            _ => "5 Mbit/s",
        };
        let expected = format!("a number with its unit ({names}), such as \"{example}\"");
        Problem::value(key, text, expected)
    };
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let digits = text.find(|c| !is_digit(c)).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let unit = units.iter().find(|(name, _)| *name == unit.trim());
    let (_, factor) = *unit.ok_or_else(wrong)?;
    if let Some(number) = plain_number(number) {
        return number.checked_mul(factor).ok_or_else(wrong);
    }
    let number = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    // Above 2^53 f64 is not exact.
    match number.fract() == 0.0 && number < (1_u64 << 53) as f64 {
        true => Ok(number as u64),
        false => Err(wrong()),
    }
}

/// A quantity as text, in the greatest unit that divides it.
pub fn quantity_text(value: u64, units: Units) -> String {
    let fits = |(_, factor): &&(&str, u64)| value != 0 && value.is_multiple_of(*factor);
    let fitting = units.iter().find(fits).copied();
    let (name, factor) = fitting.unwrap_or(units[units.len() - 1]);
    format!("{} {name}", value / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_no_host_bits() {
        let prefix = |text| prefix("source", text);
        assert_eq!(prefix("10.0.0.0/8"), Ok(Prefix::V4(0x0a00_0000, 8)));
        assert_eq!(prefix("10.0.0.1"), Ok(Prefix::V4(0x0a00_0001, 32)));
        assert_eq!(prefix("::/0"), Ok(Prefix::V6(0, 0)));
        assert_eq!(prefix("::1"), Ok(Prefix::V6(1, 128)));
        assert_eq!(
            prefix("10.1.2.3/8").unwrap_err().to_string(),
            "source: 10.1.2.3/8 has bits set beyond its length; write 10.0.0.0/8 for the prefix, \
             or 10.1.2.3 for the one address"
        );
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/129",
            "lan",
            "1.2.3.4/8/8",
        ] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_are_one_or_a_range() {
        let ports = |text| ports("source_port", text);
        assert_eq!(ports("53"), Ok(Ports::one(53)));
        assert_eq!(ports("0-65535"), Ok(Ports::ANY));
        for wrong in ["", "65536", "9-5", "-5", "5-", "+5", "http", "1-2-3"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantities_have_units_and_lead_back() {
        let bytes = |text| quantity("over.bytes", text, BYTES);
        assert_eq!(
            (bytes("10 MiB"), bytes("1.5KiB"), bytes("7 B")),
            (Ok(10 << 20), Ok(1536), Ok(7))
        );
        for wrong in [
            "",
            "10",
            "MiB",
            "10 mib",
            "1.3 B",
            "-1 B",
            "99999999999999999999 B",
            "20000000 TiB",
            "1..5 KiB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for value in [0, 1, 999, 1000, 1024, 1536, 10 << 20, 86_400_000, u64::MAX] {
            for units in [BYTES, TIMES, RATES] {
                assert_eq!(quantity("over", &quantity_text(value, units), units), Ok(value));
            }
        }
    }

    #[test]
    fn marks_lie_in_their_mask() {
        assert_eq!(mark("0x10/0xff"), Ok(Mark { bits: 0x10, mask: 0xff }));
        assert_eq!(mark("16"), Ok(Mark { bits: 16, mask: u32::MAX }));
        for wrong in ["0", "0x100/0xff", "0x/0xff", "0x+1", "0x10/", "x"] {
            assert!(mark(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_and_code_points() {
        assert_eq!((sample("0.5"), sample("1"), sample("0")), (Ok(32_768), Ok(65_536), Ok(0)));
        assert!(["1.1", "-0.1", "nan", "half"].iter().all(|text| sample(text).is_err()));
        assert_eq!(
            (dscp("dscp", "EF"), dscp("dscp", "46")),
            (Ok(Dscp::new(46).unwrap()), Ok(Dscp::new(46).unwrap()))
        );
        assert!(dscp("dscp", "ef").unwrap_err().to_string().ends_with("; did you mean EF?"));
    }
}
