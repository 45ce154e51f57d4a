//! The section `[names]`.

use std::path::PathBuf;

use config::kind::{Kind, integer};

/// Hosts with metrics of their own at most.
pub const METRICS_MAX: usize = 1000;

config::section! {
    /// Names of hosts.
    pub struct NamesKeys = One "names";

    /// files of leases, of dnsmasq, Kea, odhcpd or ISC dhcpd (docs/names.md)
    leases: Vec<PathBuf> = restart "leases", Kind::TextList { least: 0 }, "[]",
        "paths, [] = the usual places"
        => |s| s.list(|path| Ok(s.origin.resolve(path)));
    /// take names from answers of DNS and mDNS, too: reads what UDP ports 53 and 5353 send
    dns: bool = restart "dns", Kind::Bool, "false", "";
    /// how many of the busiest hosts have metrics of their own, with the name as a label
    metrics: usize = restart "metrics", integer(0, METRICS_MAX as i64), "0", "hosts, 0 = none";
}
