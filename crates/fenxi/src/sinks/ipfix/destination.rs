//! Where messages for a collector go.

use std::fmt;
use std::path::PathBuf;

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
