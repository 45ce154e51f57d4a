//! Leases of dnsmasq: a line each, with the end of the lease, MAC address or IAID, address, and
//! name.

use super::super::host::name;
use super::super::join::Fact;
use super::has_ended;

/// The lease of a line; `None`: it has none, or one that has ended.
pub fn read(line: &str, now_s: i64) -> Option<Fact> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let (until, hardware, address, named) = (next()?, next()?, next()?, next()?);
    // The server's own DUID has a line of two words.
    let until_s: i64 = until.parse().ok()?;
    let mut fact = Fact::new(address.parse().ok()?);
    if has_ended(until_s, now_s) {
        return None;
    }
    fact.name = name(named);
    if fact.address.is_ipv4() {
        // Other links than Ethernet have their number before it, as in `06-`.
        fact.mac = hardware.parse().ok();
    }
    Some(fact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_dnsmasq_writes_them() {
        let v4 = "1700000000 00:16:3e:5a:00:05 10.0.0.5 laptop ff:3e:5a:00:05:00:02:00:00:ab:11:77";
        let v4 = read(v4, 1_699_999_999).unwrap();
        assert_eq!(v4.address.to_string(), "10.0.0.5");
        assert_eq!(v4.mac.unwrap().to_string(), "00:16:3e:5a:00:05");
        assert_eq!(v4.name.as_deref(), Some("laptop"));
        let v6 = "1700000000 16777343 fd00::5 laptop 00:02:00:00:ab:11:77";
        let v6 = read(v6, 1_699_999_999).unwrap();
        assert_eq!((v6.mac, v6.name), (None, v4.name));
        let temporary = read("0 T16777343 fd00::77 * 00:02:00:00:ab:11:77", 0).unwrap();
        assert_eq!((temporary.mac, temporary.name), (None, None));
    }

    #[test]
    fn leases_end_unless_they_are_infinite_or_only_a_length_is_known() {
        let lease = |until: &str, now_s| {
            read(&format!("{until} 00:16:3e:5a:00:05 10.0.0.5 * *"), now_s).is_some()
        };
        assert!(lease("1700000000", 1_700_000_000) && !lease("1700000000", 1_700_000_001));
        assert!(lease("0", 1_700_000_000) && lease("43200", 1_700_000_000));
    }

    #[test]
    fn what_is_no_lease_is_left_out() {
        for line in ["", "duid 00:01:00:01:2a", "x y z", "0 00:16:3e:5a:00:05 10.0.0.500 a *"] {
            assert_eq!(read(line, 0), None, "{line}");
        }
        let token_ring = read("0 06-00:16:3e:5a:00:05 10.0.0.5 ring *", 0).unwrap();
        assert_eq!((token_ring.mac, token_ring.name.as_deref()), (None, Some("ring")));
    }
}
