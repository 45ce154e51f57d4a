//! Flow records for a collector.

use std::time::Duration;

use config::kind::{Kind, integer};
use config::{Setting, Settings, stored, task_exists};

use super::Destination;

config::section! {
    /// Flow records for a collector.
    pub struct IpfixKeys = One "ipfix", checked by check;

    /// where `fenxi run` sends records of flows as IPFIX (docs/ipfix.md); --ipfix overrides it
    to: Option<Destination> = restart "to", Kind::Text, "\"\"",
        "udp://HOST:PORT, tcp://HOST:PORT or file:PATH, empty = none" => destination;
    /// the task whose label is the applicationId
    task: Option<String> = restart "task", Kind::Text, "\"\"",
        "name of a task, empty = the first" => Setting::word;
    /// observation domain: by it a collector tells exporters with one address apart
    domain: u32 = restart "domain", integer(0, u32::MAX as i64), "1", "";
    /// how often templates and the names of labels are sent again over UDP
    template_every: Duration = restart "template_s", integer(1, 86_400), "60",
        "seconds" => Setting::seconds;
    /// how many records may wait while the collector is slow or away; more are dropped and counted
    queue: usize = restart "queue", integer(1024, 1 << 22), "65536", "records";
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    stored::<IpfixKeys>(settings, problems);
    task_exists(settings, "ipfix.task", problems);
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
