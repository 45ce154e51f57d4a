//! Leases of ISC dhcpd, for DHCPv4 (`lease ADDRESS { … }`) and DHCPv6 (`ia-na "IAID DUID" { iaaddr
//! ADDRESS { … } }`); of several for an address the last one counts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::super::host::name;
use super::super::join::Fact;
use super::{LEASES_MAX, has_ended};

pub fn read(text: &str, now_s: i64) -> Vec<Fact> {
    let mut leases: BTreeMap<IpAddr, Option<Fact>> = BTreeMap::new();
    let mut lease: Option<Lease> = None;
    for line in text.lines() {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let value = rest.trim_end_matches([';', '{', ' ']);
        match (word, &mut lease) {
            ("ia-na" | "ia-ta", _) => lease = None,
            ("lease" | "iaaddr", _) => {
                let fact = value.parse().ok().map(Fact::new);
                lease = fact.map(|fact| Lease { fact, is_valid: true });
            }
            ("}", _) => {
                let Some(Lease { fact, is_valid }) = lease.take() else { continue };
                if leases.len() < LEASES_MAX || leases.contains_key(&fact.address) {
                    leases.insert(fact.address, is_valid.then_some(fact));
                }
            }
            (_, Some(lease)) => lease.take(word, value, now_s),
            _ => {}
        }
    }
    leases.into_values().flatten().collect()
}

struct Lease {
    fact: Fact,
    is_valid: bool,
}

impl Lease {
    /// A statement within the braces.
    fn take(&mut self, word: &str, value: &str, now_s: i64) {
        match word {
            "binding" => self.is_valid &= value == "state active",
            "ends" => self.is_valid &= !has_ended(seconds(value), now_s),
            "hardware" => {
                let mac = value.strip_prefix("ethernet ");
                self.fact.mac = mac.and_then(|mac| mac.parse().ok());
            }
            "client-hostname" => {
                let text = bytes(value).unwrap_or_default();
                self.fact.name = name(&String::from_utf8_lossy(&text));
            }
            _ => {}
        }
    }
}

/// Seconds since the epoch of `4 2026/11/26 22:00:00`, which is in UTC, or `epoch 1795730400; #
/// ...`; 0 of `never` and of what is no time.
fn seconds(value: &str) -> i64 {
    if let Some(epoch) = value.strip_prefix("epoch ") {
        let digits = epoch.split(';').next().unwrap_or("");
        return digits.trim().parse().unwrap_or(0);
    }
    let time = value.split_once(' ').and_then(|(_weekday, time)| {
        DateTime::strptime("%Y/%m/%d %H:%M:%S", time).ok()?.to_zoned(TimeZone::UTC).ok()
    });
    time.map_or(0, |time| time.timestamp().as_second())
}

/// The bytes of a text in quotes, where a backslash and three octal digits are a byte, or of bytes
/// in hexadecimal without quotes.
fn bytes(value: &str) -> Option<Vec<u8>> {
    let Some(text) = value.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return super::super::host::hex(value);
    };
    let mut all = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |byte: u8| (b'0'..b'8').contains(&byte).then(|| u32::from(byte - b'0'));
        (rest, _) = match (byte, after) {
            (b'\\', [a, b, c, left @ ..]) if digit(*a).is_some() => {
                let octal = 64 * digit(*a)? + 8 * digit(*b)? + digit(*c)?;
                (left, all.push(u8::try_from(octal).ok()?))
            }
            (b'\\', [quoted, left @ ..]) => (left, all.push(*quoted)),
            _ => (after, all.push(byte)),
        };
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = r#"# The format of this file is documented in the dhcpd.leases(5) manual page.
authoring-byte-order little-endian;

lease 10.0.0.5 {
  starts 4 2026/11/26 10:00:00;
  ends 4 2026/11/26 22:00:00;
  tstp 4 2026/11/26 22:00:00;
  cltt 4 2026/11/26 10:00:00;
  binding state active;
  next binding state free;
  rewind binding state free;
  hardware ethernet b8:27:eb:42:c9:e9;
  uid "\377\353B\311\351\000\002\000\000\253\021w";
  set vendor-class-identifier = "dhcpcd-6.11.5";
  client-hostname "lap\"top\\\033";
}
lease 10.0.0.6 {
  ends never;
  binding state active;
  hardware ethernet b8:27:eb:42:c9:ea;
}
lease 10.0.0.7 {
  ends 4 2026/11/26 22:00:00;
  binding state active;
  client-hostname "gone";
}
lease 10.0.0.7 {
  ends 4 2026/11/26 12:00:00;
  binding state free;
}
"#;

    const V6: &str = r#"server-duid "\000\001\000\001\"%\342f\270'\353\232cU";

ia-na "\001\000\000\177\000\002\000\000\253\021w" {
  cltt 4 2026/11/26 10:00:00;
  iaaddr 2001:db8::5 {
    binding state active;
    preferred-life 27000;
    max-life 43200;
    ends epoch 1795730400; # Thu Nov 26 22:00:00 2026
  }
}
"#;

    #[test]
    fn both_files_are_read_as_dhcpd_writes_them() {
        let now_s = 1_795_730_400;
        let v4 = read(V4, now_s);
        let addresses: Vec<_> = v4.iter().map(|fact| fact.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.5", "10.0.0.6"]);
        assert_eq!(v4[0].mac.unwrap().to_string(), "b8:27:eb:42:c9:e9");
        assert_eq!(v4[0].name.as_deref(), Some("lap\"top\\\u{fffd}"));
        let v6 = read(V6, now_s);
        assert_eq!((v6.len(), v6[0].mac, &v6[0].name), (1, None, &None));
        assert_eq!(read(V4, now_s + 1).len(), 1, "one lease never ends");
        assert_eq!(read(V6, now_s + 1), []);
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_left_out() {
        for at in 0..V4.len() {
            if V4.is_char_boundary(at) {
                assert!(read(&V4[..at], 0).len() <= 3);
            }
        }
        assert_eq!(bytes(r#""\777""#), None);
        assert_eq!(bytes(r#""\189""#), None);
        assert_eq!(bytes(r#""a\""#).as_deref(), Some(&b"a\\"[..]));
        assert_eq!(bytes("1:2:a").as_deref(), Some(&[1, 2, 10][..]));
    }
}
