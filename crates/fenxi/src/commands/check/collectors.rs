//! Collectors of records in the network: whether they answer, and whether the service may reach
//! them.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use config::Config;

use super::finding::Finding;
use super::machine::Machine;
use crate::service_unit;
use crate::sinks::ipfix::{Destination, Endpoint, IpfixKeys, first};
use crate::sinks::records::Kafka;

const CHECK: &str = "collectors";

/// How long a collector may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub fn look(machine: &Machine, config: &Config) -> Vec<Finding> {
    let exporter = match &config.section::<IpfixKeys>().to {
        Some(to @ Destination::Udp(endpoint)) => Some((to.to_string(), endpoint.clone(), false)),
        Some(to @ Destination::Tcp(endpoint)) => Some((to.to_string(), endpoint.clone(), true)),
        Some(Destination::File(_)) | None => None,
    };
    let brokers = config.section::<Kafka>().brokers.into_iter();
    let brokers = brokers.map(|broker| (broker.to_string(), broker, true));
    let all = exporter.into_iter().chain(brokers);
    all.flat_map(|(name, endpoint, is_tcp)| of(machine, &name, &endpoint, is_tcp)).collect()
}

fn of(machine: &Machine, name: &str, endpoint: &Endpoint, is_tcp: bool) -> Vec<Finding> {
    let found = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    let addresses: Vec<SocketAddr> = match found {
        Ok(found) => found.collect(),
        Err(error) => {
            let cause = format!("no address is found for it: {error}; a run goes on trying");
            let line = format!("getent hosts {}", endpoint.host);
            return vec![Finding::warning(CHECK, name, cause).cure(line)];
        }
    };
    let mut findings = vec![answer(name, endpoint, is_tcp)];
    findings.extend(in_reach(machine, name, &addresses));
    findings
}

/// Whether somebody listens there. Nothing is sent.
fn answer(name: &str, endpoint: &Endpoint, is_tcp: bool) -> Finding {
    if !is_tcp {
        let cause = "UDP: whether a collector listens cannot be seen from here";
        return Finding::ok(CHECK, name, cause);
    }
    match first(endpoint, |address| TcpStream::connect_timeout(&address, ANSWER_WITHIN)) {
        Ok(_) => Finding::ok(CHECK, name, "it accepts connections"),
        Err(error) => {
            let cause = format!("it does not accept connections: {error}; a run goes on trying");
            let line = format!("nc -vz {} {}", endpoint.host, endpoint.port);
            Finding::warning(CHECK, name, cause).cure(line)
        }
    }
}

/// Whether the installed service, whose unit allows addresses of this machine only, may reach it.
fn in_reach(machine: &Machine, name: &str, addresses: &[SocketAddr]) -> Option<Finding> {
    let drop_ins = machine.unit()?.drop_ins;
    let is_allowed = drop_ins.lines().any(|line| {
        let line = line.trim();
        line.starts_with("IPAddressAllow=") || line == "IPAddressDeny="
    });
    let away: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    if is_allowed || away.iter().all(IpAddr::is_loopback) {
        return None;
    }
    let away: Vec<String> = away.iter().map(IpAddr::to_string).collect();
    let line = format!("IPAddressAllow={}", away.join(" "));
    let cause = "the service cannot reach it: its unit allows only addresses of this machine; \
        allow the name servers as well, \
                 unless they are local";
    let cure = service_unit::install(&machine.service, "collectors", &[&line]);
    Some(Finding::warning(CHECK, name, cause).cure(cure))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn a_collector_that_listens_and_one_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let here = machine(&[]).1;
        assert_eq!(of(&here, "there", &endpoint, true)[0].level, Level::Ok);
        drop(listener);
        let gone = of(&here, "there", &endpoint, true);
        assert_eq!(gone[0].level, Level::Warning);
        assert_eq!(of(&here, "there", &endpoint, false)[0].level, Level::Ok);
    }

    #[test]
    fn the_unit_lets_the_service_reach_other_machines_with_a_drop_in_only() {
        let service = ("usr/lib/systemd/system/fenxi.service", "[Service]");
        let away = ["192.0.2.9:4739".parse().unwrap()];
        let (_dir, plain) = machine(&[service]);
        let remedy = in_reach(&plain, "there", &away).unwrap().remedy.unwrap();
        assert!(remedy.contains("IPAddressAllow=192.0.2.9\\n"), "{remedy}");
        let local = ["127.0.0.1:4739".parse().unwrap()];
        assert_eq!(in_reach(&plain, "there", &local), None);
        assert_eq!(in_reach(&machine(&[]).1, "there", &away), None);
        let drop_in = (
            "etc/systemd/system/fenxi.service.d/collectors.conf",
            "[Service]\nIPAddressAllow=192.0.2.9",
        );
        assert_eq!(in_reach(&machine(&[service, drop_in]).1, "there", &away), None);
    }
}
