//! Flow records for a collector.

use std::time::Duration;

use config::Setting;
use config::kind::{Kind, integer};

use super::Destination;

config::section! {
    /// Flow records for a collector.
    pub struct IpfixKeys = One "ipfix";

    /// where `fenxi run` sends records of flows as IPFIX (docs/ipfix.md); --ipfix overrides it
    to: Option<Destination> = restart "to", Kind::Text, "\"\"",
        "udp://HOST:PORT, tcp://HOST:PORT or file:PATH, empty = none" => destination;
    /// observation domain: by it a collector tells exporters with one address apart
    domain: u32 = restart "domain", integer(0, u32::MAX as i64), "1", "";
    /// how often templates and the names of labels are sent again over UDP
    template_every: Duration = restart "template_s", integer(1, 86_400), "60",
        "seconds" => Setting::seconds;
    /// how many records may wait while the collector is slow or away; more are dropped and counted
    queue: usize = restart "queue", integer(1024, 1 << 22), "65536", "records";
}

fn destination(setting: &Setting) -> Result<Option<Destination>, String> {
    let Some(text) = setting.word()? else {
        return Ok(None);
    };
    let destination = Destination::parse(&text, |path| setting.origin.resolve(path));
    destination.map(Some).ok_or_else(|| {
        "expected udp://HOST:PORT, tcp://HOST:PORT or file:PATH; brackets around an IPv6 address"
            .to_owned()
    })
}
