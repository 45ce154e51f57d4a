//! Leases of odhcpd, which stand in comments of a file in the form of `/etc/hosts`: interface, DUID
//! or MAC address in hexadecimal, IAID or `ipv4`, name, end of the lease, two numbers, addresses
//! with the lengths of their prefixes.

use super::super::host::name;
use super::super::join::Fact;
use super::has_ended;

/// The leases of a line, without the `# ` that it begins with.
pub fn read(line: &str, now_s: i64) -> Vec<Fact> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let (Some(_interface), Some(id), Some(kind), Some(named), Some(until)) =
        (next(), next(), next(), next(), next())
    else {
        return Vec::new();
    };
    let Ok(until_s) = until.parse::<i64>() else { return Vec::new() };
    if has_ended(until_s, now_s) {
        return Vec::new();
    }
    let is_v4 = kind == "ipv4";
    // odhcpd itself does not use names that are none, and marks them so.
    let name = name(named).filter(|_| !named.starts_with("broken\\x20"));
    let lease = |word: &str| {
        let (address, prefix) = word.split_once('/')?;
        let fact = Fact::new(address.parse().ok()?);
        // A shorter prefix of IPv6 is delegated to a router.
        (is_v4 || prefix == "128").then(|| Fact {
            mac: if is_v4 { id.parse().ok() } else { None },
            name: name.clone(),
            ..fact
        })
    };
    words.filter_map(lease).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_odhcpd_writes_them() {
        let v6 = "br-lan 00030001c04a00163e5a 7f000001 laptop 1700000000 5 128 fd00::5/128 \
            2001:db8::5/128 ";
        let v6 = read(v6, 1_699_999_999);
        assert_eq!(v6.len(), 2);
        assert_eq!(v6[1].address.to_string(), "2001:db8::5");
        assert_eq!((v6[1].mac, v6[1].name.as_deref()), (None, Some("laptop")));
        let v4 = read("br-lan c04a00163e5a ipv4 laptop -1 c0a80105 32 192.168.1.5/32", 0);
        assert_eq!(v4[0].mac.unwrap().to_string(), "c0:4a:00:16:3e:5a");
        assert_eq!(v4[0].address.to_string(), "192.168.1.5");
    }

    #[test]
    fn ended_leases_prefixes_and_names_that_are_none_are_left_out() {
        assert_eq!(read("br-lan 0003 1 laptop 1700000000 5 128 fd00::5/128", 1_700_000_001), []);
        assert_eq!(read("br-lan 0003 1 router -1 5 60 fd00:0:0:10::/60", 0), []);
        let broken = read("br-lan c04a00163e5a ipv4 broken\\x20my_pc! -1 5 32 192.168.1.5/32", 0);
        assert_eq!((broken.len(), &broken[0].name), (1, &None));
        let unnamed = read("br-lan c04a00163e5a ipv4 - -1 5 32 192.168.1.5/32", 0);
        assert_eq!((unnamed.len(), &unnamed[0].name), (1, &None));
        for line in ["", "a comment", "br-lan 0003 1 laptop soon 5 128 fd00::5/128"] {
            assert_eq!(read(line, 0), []);
        }
    }
}
