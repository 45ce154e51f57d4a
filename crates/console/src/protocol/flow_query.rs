//! The name of a flow as people paste it: from `fenxi ctl flows`, a record, tcpdump, ss or
//! `conntrack -L`.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowQuery {
    Id(u64),
    /// The flow between two ends, whichever of them began it.
    Ends {
        /// IP protocol number; `None`: any.
        protocol: Option<u8>,
        a: (IpAddr, u16),
        b: (IpAddr, u16),
    },
}

/// The text does not name a flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" names no flow; write its number, or its ends as in `10.0.0.5:4000 > 192.0.2.4:443 \
     tcp`; lines of tcpdump, ss and conntrack -L are understood"
)]
pub struct NotAFlow(String);

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

impl FromStr for FlowQuery {
    type Err = NotAFlow;

    fn from_str(text: &str) -> Result<FlowQuery, NotAFlow> {
        let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
        if let Ok(id) = text.trim().trim_start_matches('#').parse() {
            return Ok(FlowQuery::Id(id));
        }
        let words: Vec<&str> = text
            .split(|c: char| c.is_whitespace() || matches!(c, ',' | '>' | '<' | '→' | '='))
            .map(|word| word.trim_end_matches([':', '-']))
            .filter(|word| !word.is_empty())
            .collect();
        let protocol = words.iter().find_map(|word| protocol(word));
        let ends = match text.contains("src=") {
            true => ends_of_conntrack(&words),
            false if protocol == Some(ICMP) => {
                first_two(words.iter().filter_map(|word| host(word)))
            }
            false => first_two(words.iter().filter_map(|word| end(word))),
        };
        let (a, b) = ends.ok_or(NotAFlow(shown))?;
        let protocol = match protocol {
            Some(ICMP) if a.0.is_ipv6() => Some(ICMPV6),
            protocol => protocol,
        };
        Ok(FlowQuery::Ends { protocol, a, b })
    }
}

impl fmt::Display for FlowQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FlowQuery::Id(id) => write!(f, "number {id}"),
            FlowQuery::Ends { protocol, a, b } => {
                let name = match protocol {
                    Some(TCP) => "TCP ",
                    Some(UDP) => "UDP ",
                    Some(ICMP | ICMPV6) => return write!(f, "ICMP {} > {}", a.0, b.0),
                    _ => "",
                };
                let [a, b] = [a, b].map(SocketAddr::from);
                write!(f, "{name}{a} > {b}")
            }
        }
    }
}

fn protocol(word: &str) -> Option<u8> {
    match word.to_ascii_lowercase().as_str() {
        "tcp" | "tcp6" | "6" => Some(TCP),
        "udp" | "udp6" | "17" => Some(UDP),
        "icmp" | "icmp6" | "icmpv6" => Some(ICMP),
        _ => None,
    }
}

/// Parses `src=A dst=B sport=P dport=Q`, split at `=`; ICMP has no ports. The first of each counts:
/// the direction of the first packet.
fn ends_of_conntrack(words: &[&str]) -> Option<((IpAddr, u16), (IpAddr, u16))> {
    let value = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    };
    let end = |address: &str, port: &str| {
        let port = value(port).map_or(Ok(0), str::parse);
        Some((value(address)?.parse().ok()?, port.ok()?))
    };
    Some((end("src", "sport")?, end("dst", "dport")?))
}

fn first_two<T>(mut ends: impl Iterator<Item = T>) -> Option<(T, T)> {
    Some((ends.next()?, ends.next()?))
}

/// An address, for ICMP; its port, if there is one, says nothing.
fn host(word: &str) -> Option<(IpAddr, u16)> {
    let address = word.parse().ok().or_else(|| Some(end(word)?.0));
    address.map(|address| (address, 0))
}

/// `192.0.2.1:80`, `[2001:db8::1]:80`, or with a dot before the port, as tcpdump has it.
fn end(word: &str) -> Option<(IpAddr, u16)> {
    if let Ok(end) = word.parse::<SocketAddr>() {
        return Some((end.ip().to_canonical(), end.port()));
    }
    let (address, port) = word.rsplit_once('.')?;
    let address: IpAddr = address.parse().ok()?;
    Some((address, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> FlowQuery {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_flow_is_named_as_people_paste_it() {
        let a: (IpAddr, u16) = ([10, 0, 0, 5].into(), 4000);
        let b: (IpAddr, u16) = ([192, 0, 2, 4].into(), 443);
        let ends = |protocol| FlowQuery::Ends { protocol, a, b };
        for text in [
            "10.0.0.5:4000 > 192.0.2.4:443 tcp",
            "tcp 10.0.0.5:4000 192.0.2.4:443",
            "TCP  10.0.0.5:4000  →  192.0.2.4:443   33 74 HTTP",
            "tcp ESTAB 0 0 10.0.0.5:4000 192.0.2.4:443",
            "10.0.0.5:4000->192.0.2.4:443,tcp",
            "tcp 6 118 TIME_WAIT src=10.0.0.5 dst=192.0.2.4 sport=4000 dport=443 src=192.0.2.4 \
             dst=10.0.0.5 sport=443 dport=4000 [ASSURED] mark=256 use=1",
        ] {
            assert_eq!(query(text), ends(Some(TCP)), "{text}");
        }
        let tcpdump =
            "12:01:02.000001 IP 10.0.0.5.4000 > 192.0.2.4.443: Flags [S], seq 1, length 0";
        assert_eq!(query(tcpdump), ends(None));
        for text in [
            "icmp 10.0.0.5 192.0.2.4",
            "ICMP  10.0.0.5:0  →  192.0.2.4:0",
            "12:01:02.000001 IP 10.0.0.5 > 192.0.2.4: ICMP echo request, id 7, seq 1, length 64",
            "icmp 1 29 src=10.0.0.5 dst=192.0.2.4 type=8 code=0 id=7 src=192.0.2.4 dst=10.0.0.5 \
             type=0 code=0 id=7 mark=0 use=1",
        ] {
            let [a, b] = [a.0, b.0].map(|address| (address, 0));
            assert_eq!(query(text), FlowQuery::Ends { protocol: Some(ICMP), a, b }, "{text}");
            assert_eq!(query(text).to_string(), "ICMP 10.0.0.5 > 192.0.2.4");
        }
        let tcpdump = query("IP6 2001:db8::1 > 2001:db8::2: ICMP6, echo reply, id 7, seq 1");
        assert!(matches!(tcpdump, FlowQuery::Ends { protocol: Some(ICMPV6), .. }), "{tcpdump:?}");
        let v6 = query("udp [2001:db8::1]:53 [2001:db8::2]:5353");
        let end = |address: &str, port| (address.parse().unwrap(), port);
        let (a, b) = (end("2001:db8::1", 53), end("2001:db8::2", 5353));
        assert_eq!(v6, FlowQuery::Ends { protocol: Some(UDP), a, b });
        assert_eq!(query("17"), FlowQuery::Id(17));
        assert_eq!(query(" #9 "), FlowQuery::Id(9));
    }

    #[test]
    fn ends_and_protocol_are_read_and_shown() {
        let flow = query("tcp 10.0.0.5:4000 192.0.2.4:443");
        let a: (IpAddr, u16) = ([10, 0, 0, 5].into(), 4000);
        let b: (IpAddr, u16) = ([192, 0, 2, 4].into(), 443);
        assert_eq!(flow, FlowQuery::Ends { protocol: Some(TCP), a, b });
        assert_eq!(flow.to_string(), "TCP 10.0.0.5:4000 > 192.0.2.4:443");
    }

    #[test]
    fn what_names_no_flow_is_refused_in_one_line() {
        for text in ["", "tcp", "10.0.0.5:4000", "\u{1b}[2J 1.2.3.4 5.6.7.8", "-1"] {
            let error = text.parse::<FlowQuery>().unwrap_err().to_string();
            assert!(error.contains("names no flow"), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
