//! The interface that packets are copied to: present, up, with a carrier, and a large enough MTU.

use packetio::interface;

use super::finding::Finding;
use super::interfaces::{CHECK, Link, missing};
use super::machine::Machine;
use config::Config;
use config::checked::IoMode;

pub fn findings(machine: &Machine, config: &Config) -> Vec<Finding> {
    let name = config.policy.mirror.as_deref();
    name.map_or_else(Vec::new, |name| one(machine, config, name, &interface::names()))
}

fn one(machine: &Machine, config: &Config, name: &str, known: &[String]) -> Vec<Finding> {
    if config.io.mode != IoMode::Inline {
        let mode = config.io.mode.name();
        let cause = format!("policy.mirror: only mode inline copies packets, not mode {mode}");
        return vec![Finding::warning(CHECK, name, cause)];
    }
    if !known.iter().any(|it| it == name) {
        return vec![missing(name, known)];
    }
    let link = match Link::read(machine, name, "copies of packets are lost") {
        Ok(link) => link,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![link.finding];
    let mtu = |name: &String| machine.number(&format!("sys/class/net/{name}/mtu"));
    let longest = config.io.interfaces.iter().filter_map(mtu).max();
    if let Some(longest) = longest.filter(|longest| link.mtu < *longest) {
        let cause = format!(
            "MTU {}, and packets of up to {longest} bytes come in: those too long are not copied",
            link.mtu
        );
        let line = format!("ip link set dev {name} mtu {longest}");
        findings.push(Finding::warning(CHECK, name, cause).cure(line));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn an_interface_for_copies() {
        let mut config = Config::load(None, &[]).unwrap();
        let known = ["eth0".to_owned(), "ids0".to_owned()];
        let findings = |machine: &Machine, config: &Config| one(machine, config, "ids0", &known);
        let files = |flags, mtu| {
            machine(&[
                ("sys/class/net/ids0/flags", flags),
                ("sys/class/net/ids0/carrier", "1"),
                ("sys/class/net/ids0/mtu", mtu),
                ("sys/class/net/eth0/mtu", "9000"),
            ])
        };
        let (_dir, good) = files("0x1003", "9000");
        assert_eq!(findings(&good, &config)[0].level, Level::Warning, "mode tap");
        config.io.mode = IoMode::Inline;
        config.io.interfaces = vec!["eth0".to_owned()];
        let found = findings(&good, &config);
        assert_eq!((found.len(), found[0].level), (1, Level::Ok), "{found:?}");
        let (_dir, small) = files("0x1003", "1500");
        let found = findings(&small, &config);
        assert_eq!((found.len(), found[1].level), (2, Level::Warning));
        let remedy = found[1].remedy.as_deref();
        assert_eq!(remedy, Some("ip link set dev ids0 mtu 9000"));
        let (_dir, down) = files("0x1002", "9000");
        let found = findings(&down, &config);
        assert!(found[0].cause.contains("copies of packets are lost"));
        assert_eq!(found[0].level, Level::Problem);
        let gone = one(&good, &config, "ids1", &known);
        assert!(gone[0].cause.ends_with("did you mean ids0?"), "{gone:?}");
    }
}
