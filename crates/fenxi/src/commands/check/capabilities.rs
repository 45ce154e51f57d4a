//! Capabilities of this process and of the installed service.

use config::Config;
use config::checked::{Capture, IoMode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use rustix::thread::CapabilitySet;

use super::finding::{Finding, Level};
use super::machine::Machine;
use crate::exit::Failure;
use crate::service_unit::{self, DropIn, FIRST, MARK, set_capabilities};
use crate::sinks;

const CHECK: &str = "capabilities";

/// Checks the capabilities that ports and sinks need; [`super::marks`] tries CAP_NET_ADMIN.
pub fn findings(machine: &Machine, config: &Config, is_its_file: bool) -> Vec<Finding> {
    let of_sinks = sinks::rights(config, None).capabilities;
    let needs_admin = of_sinks.contains(CapabilitySet::NET_ADMIN);
    let mut findings = unit(machine, config, is_its_file);
    // Copies are sent by a packet socket.
    if config.io.backend.uses_packet_sockets || config.mirror().is_some() {
        findings.insert(0, packet_socket(needs_admin));
    }
    findings
}

/// Tries to open a packet socket without a protocol, which receives nothing.
fn packet_socket(needs_admin: bool) -> Finding {
    match socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Finding::ok(CHECK, "CAP_NET_RAW", "packet sockets can be opened"),
        Err(Errno::PERM | Errno::ACCESS) => {
            let cause = "missing: this process cannot open packet sockets";
            Finding::problem(CHECK, "CAP_NET_RAW", cause)
                .cure(set_capabilities(needs_admin))
                .for_permission()
        }
        Err(error) => {
            Finding::problem(CHECK, "CAP_NET_RAW", format!("cannot open a packet socket: {error}"))
                .cure("modprobe af_packet")
        }
    }
}

/// Capabilities that the configuration needs and the installed unit does not grant. A missing one
/// is a problem if the service reads this configuration (`is_its_file`).
pub fn unit(machine: &Machine, config: &Config, is_its_file: bool) -> Vec<Finding> {
    let Some(unit) = machine.unit() else {
        return Vec::new();
    };
    let settings = unit.own + "\n" + &unit.drop_ins;
    let of = |drop_in: DropIn| {
        let what = drop_in.what;
        let mut needed = drop_in.capabilities();
        let service = &machine.service;
        let Some(missing) = needed.find(|it| !service_unit::grants(&settings, it)) else {
            return Finding::ok(CHECK, service, format!("its unit grants what {what} need"));
        };
        let cause = format!(
            "its unit lacks {missing}, which {what} need; install the drop-in {}",
            drop_in.file()
        );
        // Without the program for first packets, all packets come up.
        let finding = match is_its_file && drop_in != FIRST {
            true => Finding::problem(CHECK, service, cause).for_permission(),
            false => Finding::warning(CHECK, service, cause),
        };
        finding.cure(drop_in.install(service))
    };
    needed(config).into_iter().map(of).collect()
}

/// The drop-ins that the configuration needs.
fn needed(config: &Config) -> Vec<DropIn> {
    let of_sinks = sinks::rights(config, None).capabilities;
    let is_first = config.io.capture != Capture::All
        && config.io.backend.has_first_packets
        && config.io.mode != IoMode::Inline;
    let all = [
        of_sinks.contains(CapabilitySet::NET_ADMIN).then_some(MARK),
        is_first.then_some(FIRST),
        DropIn::of_backend(config.io.backend),
    ];
    all.into_iter().flatten().collect()
}

/// Checks whether the service can start with its configuration.
///
/// # Errors
/// 77: its unit lacks a capability.
pub fn check_unit(machine: &Machine, config: &Config) -> Result<(), Failure> {
    let mut findings = unit(machine, config, true).into_iter();
    match findings.find(|finding| finding.level == Level::Problem) {
        None => Ok(()),
        Some(found) => Err(Failure::not_allowed(format!(
            "{} would not start: {}: {}",
            found.subject,
            found.cause,
            found.remedy.unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;
    use config::Sources;

    fn levels(files: &[(&str, &str)], sets: &[&str], is_its_file: bool) -> Vec<Level> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Sources::named(None, &sets).load().unwrap().config;
        let findings = unit(&machine(files).1, &config, is_its_file);
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_unit_without_the_drop_in() {
        let mark = ["io.mode=mark"];
        let own = include_str!("../../../../../packaging/systemd/fenxi.service");
        let service = ("usr/lib/systemd/system/fenxi.service", own);
        // First packets, a default of mode mark, need more than marks; but without them, all
        // packets come up.
        let found = |files: &[_], is_its_file| levels(files, &mark, is_its_file);
        assert_eq!(found(&[service], false), [Level::Warning, Level::Warning]);
        assert_eq!(found(&[service], true), [Level::Problem, Level::Warning]);
        assert_eq!(levels(&[service], &["io.mode=tap"], true), []);
        assert_eq!(found(&[], true), [], "no service");
        let drop_in = include_str!("../../../../../packaging/systemd/mark.conf");
        let drop_in = ("etc/systemd/system/fenxi.service.d/mark.conf", drop_in);
        assert_eq!(found(&[service, drop_in], true), [Level::Ok, Level::Warning]);
        let all = ["io.mode=mark", "io.capture=all"];
        assert_eq!(levels(&[service, drop_in], &all, true), [Level::Ok]);
        let xdp = ["io.backend=af_xdp"];
        assert_eq!(levels(&[service, drop_in], &xdp, true), [Level::Problem]);
    }
}
