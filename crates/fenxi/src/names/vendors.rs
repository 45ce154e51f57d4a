//! Who made a network card, by a list that some package has put on this machine. None is shipped.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Host, Mac, host};

/// Lists of ieee-data, arp-scan, nmap and Wireshark.
const LISTS: [&str; 4] = [
    "/usr/share/ieee-data/oui.txt",
    "/usr/share/arp-scan/ieee-oui.txt",
    "/usr/share/nmap/nmap-mac-prefixes",
    "/usr/share/wireshark/manuf",
];

/// Bytes of a list at most.
const BYTES_MAX: u64 = 64 << 20;

/// Between two readings of a list, however many new MAC addresses there are.
const READ_EVERY: Duration = Duration::from_secs(60);

pub struct Vendors {
    /// `None`: this machine has no list.
    list: Option<PathBuf>,
    /// By the MAC addresses of the hosts.
    known: HashMap<Mac, Option<Arc<str>>>,
    read_at: Option<Instant>,
}

impl Vendors {
    pub fn new() -> Vendors {
        let list = LISTS.iter().map(PathBuf::from).find(|list| list.is_file());
        Vendors { list, known: HashMap::new(), read_at: None }
    }

    /// Adds the vendors to the hosts. The list is read when a MAC address is new, at most once in
    /// [`READ_EVERY`], and only the vendors of these hosts are kept.
    pub fn add(&mut self, hosts: &mut [Host]) {
        let Some(list) = &self.list else { return };
        let macs = hosts.iter().filter_map(|host| host.mac).filter(|mac| !mac.is_local());
        let mut known: HashMap<Mac, Option<Arc<str>>> =
            macs.map(|mac| (mac, self.known.get(&mac).cloned().flatten())).collect();
        let has_new = known.keys().any(|mac| !self.known.contains_key(mac));
        if has_new && self.read_at.is_none_or(|at| at.elapsed() >= READ_EVERY) {
            self.read_at = Some(Instant::now());
            read(list, &mut known);
        } else {
            // New ones are looked up with the next change after that time.
            known.retain(|mac, _| self.known.contains_key(mac));
        }
        self.known = known;
        for host in hosts {
            host.vendor = host.mac.and_then(|mac| self.known.get(&mac).cloned().flatten());
        }
    }
}

/// Finds the vendors of these MAC addresses; longer prefixes come after shorter ones, and count.
fn read(list: &Path, known: &mut HashMap<Mac, Option<Arc<str>>>) {
    let Ok(file) = File::open(list) else { return };
    let mut by_prefix: HashMap<u64, Vec<Mac>> = HashMap::new();
    for mac in known.keys() {
        by_prefix.entry(number(*mac) >> 24).or_default().push(*mac);
    }
    let mut lines = BufReader::new(file.take(BYTES_MAX));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&line);
        if let Some((prefix, bits, vendor)) = entry(&text) {
            let macs = by_prefix.get(&(prefix >> 24)).into_iter().flatten();
            for mac in macs.filter(|mac| (number(**mac) ^ prefix) >> (48 - bits) == 0) {
                known.insert(*mac, host::name(vendor));
            }
        }
        line.clear();
    }
}

fn number(mac: Mac) -> u64 {
    mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The prefix of a line, as the first bits of 48, how many bits it has, 24 at least, and its
/// vendor.
fn entry(line: &str) -> Option<(u64, u32, &str)> {
    let (prefix, rest) = line.split_once(char::is_whitespace)?;
    let (digits, bits) = match prefix.split_once('/') {
        Some((digits, bits)) => (digits, Some(bits.parse().ok()?)),
        None => (prefix, None),
    };
    let digits: String = digits.chars().filter(|c| !":-.".contains(*c)).collect();
    let length = digits.len() as u32;
    let bits = bits.unwrap_or(4 * length);
    if length > 12 || !(24..=48).contains(&bits) {
        return None;
    }
    let prefix = u64::from_str_radix(&digits, 16).ok()? << (48 - 4 * length);
    // The IEEE's list says (hex), Wireshark's gives a short name first.
    let vendor = rest.trim().trim_start_matches("(hex)");
    Some((prefix, bits, vendor.rsplit('\t').next()?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_four_programs_are_read() {
        for line in [
            "00-16-3E   (hex)\t\tXensource, Inc.",
            "00163E\tXensource, Inc.",
            "00163E Xensource, Inc.",
            "00:16:3E\tXensourc\tXensource, Inc.",
        ] {
            assert_eq!(entry(line), Some((0x0016_3e00_0000, 24, "Xensource, Inc.")), "{line}");
        }
        let long = entry("00:1B:C5:00:10:00/36\tOpenRBco\tOpenRB.com");
        assert_eq!(long, Some((0x001b_c500_1000, 36, "OpenRB.com")));
        assert_eq!(entry("0055DA0 Shinko"), Some((0x0055_da00_0000, 28, "Shinko")));
        for line in ["", "# OUI", "\t\tTaipei  TW", "OUI/MA-L  Organization", "00:16 short", "x y"]
        {
            assert_eq!(entry(line), None, "{line}");
        }
    }

    #[test]
    fn only_the_hosts_vendors_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("oui.txt");
        let lines = "001BC5\tIEEE\n001BC5001\tOpen\u{1b}RB\n00163E\tXen\n";
        std::fs::write(&list, lines).unwrap();
        let mut vendors =
            Vendors { list: Some(list.clone()), known: HashMap::new(), read_at: None };
        let host = |mac: &str| Host { mac: mac.parse().ok(), ..Host::default() };
        let vendor = |host: &Host| host.vendor.as_deref().map(str::to_owned);
        let mut hosts =
            [host("00:1b:c5:00:12:34"), host("00:1b:c5:0f:12:34"), host("02:16:3e:00:00:05")];
        vendors.add(&mut hosts);
        let found: Vec<_> = hosts.iter().map(vendor).collect();
        assert_eq!(found, [Some("Open\u{fffd}RB".to_owned()), Some("IEEE".to_owned()), None]);
        assert_eq!(vendors.known.len(), 2);
        // A new one waits for the next reading.
        std::fs::write(&list, format!("{lines}00005E\tIANA\n")).unwrap();
        let mut later = [host("00:00:5e:00:00:05"), hosts[0].clone(), hosts[1].clone()];
        vendors.add(&mut later);
        assert_eq!((vendor(&later[0]), vendors.known.len()), (None, 2));
        vendors.read_at = None;
        vendors.add(&mut later);
        assert_eq!(vendor(&later[0]).as_deref(), Some("IANA"));
        // Known ones need no list; others are forgotten.
        std::fs::remove_file(&list).unwrap();
        vendors.add(&mut hosts[..1]);
        assert_eq!(hosts[0].vendor.as_deref(), Some("Open\u{fffd}RB"));
        assert_eq!(vendors.known.len(), 1);
    }
}
