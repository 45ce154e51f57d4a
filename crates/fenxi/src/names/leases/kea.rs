//! Leases of Kea in CSV, for DHCPv4 and DHCPv6: the first line names the columns, and of several
//! lines for an address the last one counts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::host::name;
use super::super::join::Fact;
use super::{LEASES_MAX, has_ended};

/// The leases of the file. Lines of an older file may stand before, with its header.
pub fn read(text: &str, now_s: i64) -> Vec<Fact> {
    let mut leases: BTreeMap<IpAddr, Fact> = BTreeMap::new();
    let mut columns: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.starts_with("address,") {
            columns = line.trim_end().split(',').collect();
            continue;
        }
        let row = Row { columns: &columns, values: line.trim_end().split(',').collect() };
        let Some(fact) = row.fact() else { continue };
        match row.is_valid(now_s) {
            true if leases.len() < LEASES_MAX => drop(leases.insert(fact.address, fact)),
            true => {}
            false => drop(leases.remove(&fact.address)),
        }
    }
    leases.into_values().collect()
}

struct Row<'a> {
    columns: &'a [&'a str],
    values: Vec<&'a str>,
}

impl Row<'_> {
    /// The value of a column; empty where there is none.
    fn value(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|name| *name == column);
        at.and_then(|at| self.values.get(at)).copied().unwrap_or("")
    }

    fn fact(&self) -> Option<Fact> {
        let fact = Fact::new(self.value("address").parse().ok()?);
        // Kea writes a comma as `&#x2c`.
        let named = self.value("hostname").replace("&#x2c", ",");
        // With DHCPv6, Kea may take it from the DUID, which a client can forge.
        let mac = if fact.address.is_ipv4() { self.value("hwaddr").parse().ok() } else { None };
        Some(Fact { mac, name: name(&named), ..fact })
    }

    /// Not released, declined, expired, or a prefix that a router got.
    fn is_valid(&self, now_s: i64) -> bool {
        let until_s = self.value("expire").parse().unwrap_or(0);
        let is_held = matches!(self.value("state"), "" | "0");
        let is_address = self.value("lease_type") != "2";
        is_held && is_address && self.value("valid_lifetime") != "0" && !has_ended(until_s, now_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,\
        hostname,state,user_context,pool_id\n";
    const V6: &str = "address,duid,valid_lifetime,expire,subnet_id,pref_lifetime,lease_type,iaid,\
        prefix_len,fqdn_fwd,fqdn_rev,hostname,hwaddr,state,user_context,hwtype,hwaddr_source\n";

    #[test]
    fn both_files_are_read_as_kea_writes_them() {
        let v4 = "10.0.0.5,00:16:3e:5a:00:05,ff:3e:5a:00:05:00:02:00:00:ab:11:77,4000,1700000000,\
            1,1,1,laptop.lan.,0,,0\n";
        let v4 = read(&format!("{V4}{v4}"), 1_699_999_999);
        assert_eq!(v4[0].mac.unwrap().to_string(), "00:16:3e:5a:00:05");
        assert_eq!(v4[0].name.as_deref(), Some("laptop.lan"));
        let v6 = "2001:db8::5,00:02:00:00:ab:11:77,4000,1700000000,1,3000,0,7,128,1,1,laptop.lan.,\
            00:16:3e:5a:00:05,0,,1,2\n";
        let v6 = read(&format!("{V6}{v6}"), 1_699_999_999);
        assert_eq!((v6[0].mac, &v6[0].name), (None, &v4[0].name));
    }

    #[test]
    fn the_last_line_of_an_address_counts() {
        let line = |address: &str, lifetime: &str, expire: &str, name: &str, state: &str| {
            format!("{address},00:16:3e:5a:00:05,,{lifetime},{expire},1,0,0,{name},{state},,0\n")
        };
        let text = [
            V4,
            &line("10.0.0.5", "4000", "1700000000", "old", "0"),
            &line("10.0.0.6", "4000", "1700000000", "released", "0"),
            &line("10.0.0.7", "4000", "1700000000", "declined", "1"),
            &line("10.0.0.8", "4000", "1600000000", "ended", "0"),
            // A file that cleaning has put aside comes first, with its own header.
            V4,
            &line("10.0.0.6", "0", "1700000000", "released", "0"),
            &line("10.0.0.5", "4000", "1700000000", "new&#x2cer", "0"),
            "10.0.0.9,cut off",
        ];
        let leases = read(&text.concat(), 1_699_999_999);
        let names: Vec<_> = leases.iter().map(|fact| fact.name.as_deref()).collect();
        assert_eq!(names, [Some("new,er"), None], "{leases:?}");
        let prefix = "2001:db8:5::,00:02:00:00:ab:11:77,4000,1700000000,1,3000,2,7,56,0,0,,,0,,,\n";
        assert_eq!(read(&format!("{V6}{prefix}"), 0), []);
    }
}
