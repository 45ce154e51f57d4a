//! A host, its MAC address, and names that are safe to keep.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of DNS, bytes; longer ones are cut.
const NAME_MAX: usize = 253;

/// A machine, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// `None`: only its MAC address is known.
    pub name: Option<Arc<str>>,
    /// The name is from `/etc/hosts`, so no client chose it.
    pub is_named_by_file: bool,
    pub mac: Option<Mac>,
    /// Who made its network card, where a list of vendors on this machine says so.
    pub vendor: Option<Arc<str>>,
    /// IPv4 first; at least one.
    pub addresses: Vec<IpAddr>,
}

/// A MAC address of Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// An address of one device: not a group, and not all zero.
    pub fn of_device(bytes: [u8; 6]) -> Option<Mac> {
        (bytes[0] & 1 == 0 && bytes != [0; 6]).then_some(Mac(bytes))
    }

    /// Chosen by software, as phones do for each network: it has no vendor.
    pub fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Mac, ()> {
        let bytes = hex(text).and_then(|bytes| bytes.try_into().ok());
        bytes.and_then(Mac::of_device).ok_or(())
    }
}

/// Bytes in hexadecimal, between which colons may stand; a byte behind a colon may have one digit.
pub fn hex(text: &str) -> Option<Vec<u8>> {
    if text.contains(':') {
        let byte = |part| u8::from_str_radix(part, 16).ok();
        return text.split(':').map(byte).collect();
    }
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}

/// The name as it is kept; `None`: it is none. Names come from other machines: what could move a
/// cursor or turn the direction of reading becomes `\u{fffd}`, and each output escapes what else
/// means something there.
pub fn name(text: &str) -> Option<Arc<str>> {
    let text = text.trim_end_matches(['.', '\0']).trim();
    if matches!(text, "" | "*" | "-") {
        return None;
    }
    let safe = |c| if console::text::is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c };
    let mut name: String = text.chars().map(safe).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read_and_written() {
        let mac: Mac = "00:1A:2b:3c:4d:5e".parse().unwrap();
        assert_eq!(mac.to_string(), "00:1a:2b:3c:4d:5e");
        assert_eq!("001a2b3c4d5e".parse(), Ok(mac));
        assert_eq!("0:1a:2b:3c:4d:5e".parse(), Ok(mac));
        assert!(!mac.is_local() && Mac([2, 0, 0, 0, 0, 1]).is_local());
        for wrong in [
            "",
            "00:1a:2b:3c:4d",
            "00:1a:2b:3c:4d:5g",
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "001a2b3c4d5",
        ] {
            assert_eq!(wrong.parse::<Mac>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_name_is_short_and_harmless() {
        let shown = |text: &str| name(text).map(|name| name.to_string());
        assert_eq!(shown("laptop.lan.").as_deref(), Some("laptop.lan"));
        assert_eq!(shown("Anna’s iPhone").as_deref(), Some("Anna’s iPhone"));
        assert_eq!(
            shown("a\u{1b}[2J\nb\u{202e}").as_deref(),
            Some("a\u{fffd}[2J\u{fffd}b\u{fffd}")
        );
        assert_eq!((shown("*"), shown(" "), shown("."), shown("-")), (None, None, None, None));
        assert_eq!(shown(&"ä".repeat(500)).unwrap().len(), 252);
    }
}
