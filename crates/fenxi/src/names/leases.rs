//! Leases of DHCP servers, as they keep them in files. The form is recognised by the content.

mod dhcpd;
mod dnsmasq;
mod kea;
mod odhcpd;

use super::join::Fact;

/// Where the servers keep their leases on Debian, OpenWrt and their kin.
pub const WELL_KNOWN: [&str; 9] = [
    "/var/lib/misc/dnsmasq.leases",
    "/tmp/dhcp.leases",
    "/tmp/hosts/odhcpd",
    "/tmp/odhcpd.leases",
    "/var/lib/kea/kea-leases4.csv",
    "/var/lib/kea/kea-leases6.csv",
    "/var/lib/dhcp/dhcpd.leases",
    "/var/lib/dhcp/dhcpd6.leases",
    "/var/lib/dnsmasq/dnsmasq.leases",
];

/// Leases taken from a file at most.
const LEASES_MAX: usize = 65_536;

/// Times below, in seconds since the epoch, are lengths of leases: dnsmasq without a clock writes
/// these.
const TIME_MIN: i64 = 1_000_000_000;

/// The leases of a file that are valid at `now_s`, seconds since the epoch; `None`: the file is not
/// empty, and of no known form.
pub fn read(text: &str, now_s: i64) -> Option<Vec<Fact>> {
    let starts = |word: &str| text.lines().any(|line| line.starts_with(word));
    let leases = if text.starts_with("address,") {
        kea::read(text, now_s)
    } else if ["lease ", "ia-na ", "ia-ta ", "authoring-byte-order "].into_iter().any(starts) {
        dhcpd::read(text, now_s)
    } else {
        let leases = |line: &str| match line.strip_prefix("# ") {
            Some(line) => odhcpd::read(line, now_s),
            None => dnsmasq::read(line, now_s).into_iter().collect(),
        };
        let is_known = |line: &str| {
            line.trim().is_empty() || line.starts_with(|c: char| "#d".contains(c) || c.is_numeric())
        };
        if !text.lines().all(is_known) {
            return None;
        }
        text.lines().flat_map(leases).take(LEASES_MAX).collect()
    };
    Some(leases)
}

/// Whether a lease until then has ended; 0 and less: it never does.
fn has_ended(until_s: i64, now_s: i64) -> bool {
    until_s >= TIME_MIN && until_s < now_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_tells_the_form() {
        let read = |text| read(text, 0).map(|facts| facts.len());
        assert_eq!((read(""), read("\n\n")), (Some(0), Some(0)));
        assert_eq!(read("0 00:16:3e:00:00:05 10.0.0.5 laptop *\n"), Some(1));
        assert_eq!(read("address,hwaddr\n10.0.0.5,00:16:3e:00:00:05\n"), Some(1));
        assert_eq!(read("# br-lan 00163e000005 ipv4 laptop -1 5 32 10.0.0.5/32\n"), Some(1));
        assert_eq!(read("lease 10.0.0.5 {\n  hardware ethernet 00:16:3e:00:00:05;\n}\n"), Some(1));
        assert_eq!(read("<html>\n"), None);
    }
}
