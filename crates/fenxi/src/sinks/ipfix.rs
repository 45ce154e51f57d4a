//! Records of flows for a collector, as IPFIX: `docs/ipfix.md`.
//!
//! [`exporter`] is the thread behind the queue, [`flows`] what it says of a flow, [`connection`] a
//! datagram socket, a connection or a file, [`control`] what the control thread has of it. The
//! crate `ipfix` makes the bytes.

mod connection;
mod control;
mod exporter;
mod flows;

pub use connection::first;
pub use control::Ipfix;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use config::kind::{Kind, integer};
use config::{Setting, Settings, stored, task_exists};

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

/// A collector, or a file for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    Udp(Endpoint),
    Tcp(Endpoint),
    File(PathBuf),
}

/// A host by name or address, and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address, without brackets.
    pub host: String,
    /// Port, not 0.
    pub port: u16,
}

impl Destination {
    /// Reads `udp://HOST:PORT`, `tcp://HOST:PORT` or `file:PATH`; `resolve` says which file a path
    /// means.
    pub fn parse(text: &str, resolve: impl FnOnce(&str) -> PathBuf) -> Option<Destination> {
        if let Some(path) = text.strip_prefix("file:") {
            return (!path.is_empty()).then(|| Destination::File(resolve(path)));
        }
        let (scheme, place) = text.split_once("://")?;
        let endpoint = Endpoint::parse(place)?;
        match scheme {
            "udp" => Some(Destination::Udp(endpoint)),
            "tcp" => Some(Destination::Tcp(endpoint)),
            _ => None,
        }
    }
}

impl Endpoint {
    /// Reads `HOST:PORT`.
    pub fn parse(text: &str) -> Option<Endpoint> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let host = match host.strip_prefix('[') {
            Some(host) => {
                host.strip_suffix(']').filter(|host| host.parse::<std::net::Ipv6Addr>().is_ok())?
            }
            None => host,
        };
        let is_of_host = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        let is_address = text.starts_with('[');
        let is_host =
            !host.is_empty() && host.chars().all(is_of_host) && (is_address || !host.contains(':'));
        is_host.then(|| Endpoint { host: host.to_owned(), port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Udp(endpoint) => write!(f, "udp://{endpoint}"),
            Destination::Tcp(endpoint) => write!(f, "tcp://{endpoint}"),
            Destination::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in [
            "udp://collector.example.net:4739",
            "tcp://192.0.2.1:4739",
            "udp://[2001:db8::1]:2055",
            "file:/var/lib/fenxi/flows.ipfix",
        ] {
            let read = Destination::parse(text, |path| path.into());
            assert_eq!(read.map(|it| it.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "collector:4739",
            "udp://collector",
            "udp://:4739",
            "udp://collector:0",
            "udp://collector:65536",
            "udp://collector:4739/",
            "udp://2001:db8::1:4739",
            "udp://[192.0.2.1]:4739",
            "udp://a b:1",
            "sctp://collector:4739",
            "file:",
        ] {
            assert_eq!(Destination::parse(text, |path| path.into()), None, "{text}");
        }
    }
}
