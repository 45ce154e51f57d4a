//! Capabilities of this process and of the installed service.

use config::Config;
use packetio::Backend;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use rustix::thread::CapabilitySet;

use super::finding::Finding;
use super::machine::Machine;
use crate::sinks;

const CHECK: &str = "capabilities";

/// The folder of the unit's drop-ins.
pub const DROP_INS: &str = "/etc/systemd/system/fenxi.service.d";

/// Checks the capabilities that ports and sinks need; [`super::marks`] and [`super::outcomes`] try CAP_NET_ADMIN.
pub fn look(machine: &Machine, config: &Config) -> Vec<Finding> {
    let of_sinks = sinks::rights(config, None).capabilities;
    let needs_admin = of_sinks.contains(CapabilitySet::NET_ADMIN);
    let mut findings = match config.io.backend {
        Backend::AfPacket | Backend::AfXdp => vec![packet_socket(needs_admin)],
        // Copies leave by a packet socket.
        Backend::Dpdk if config.mirror().is_some() => vec![packet_socket(needs_admin)],
        // Which rights it needs depends on its drivers.
        Backend::Dpdk => Vec::new(),
    };
    findings.extend(unit(machine, needs_admin));
    findings
}

/// The command that lets this program run without root.
pub fn set_capabilities(needs_admin: bool) -> String {
    let program = std::env::current_exe()
        .map_or_else(|_| "fenxi".to_owned(), |path| path.display().to_string());
    let admin = if needs_admin { "cap_net_admin," } else { "" };
    format!("setcap {admin}cap_net_raw+ep {program}")
}

/// Tries to open a packet socket without a protocol, which receives nothing.
fn packet_socket(needs_admin: bool) -> Finding {
    match socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    ) {
        Ok(_) => Finding::ok(CHECK, "CAP_NET_RAW", "packet sockets can be opened"),
        Err(Errno::PERM | Errno::ACCESS) => {
            let cause = "missing: this process cannot open packet sockets";
            Finding::problem(CHECK, "CAP_NET_RAW", cause)
                .cure(set_capabilities(needs_admin))
                .for_permission()
        }
        Err(error) => Finding::problem(
            CHECK,
            "CAP_NET_RAW",
            format!("cannot open a packet socket: {error}"),
        )
        .cure("modprobe af_packet"),
    }
}

/// The command that gives the unit a drop-in with these lines.
pub fn drop_in(name: &str, lines: &[&str]) -> String {
    let lines = lines.join("\\n");
    format!(
        "install -d {DROP_INS} && printf '[Service]\\n{lines}\\n' >{DROP_INS}/{name}.conf && systemctl daemon-reload"
    )
}

/// Checks whether the installed unit grants what the sinks need, regardless of this process.
fn unit(machine: &Machine, needs_admin: bool) -> Option<Finding> {
    let drop_ins = machine.unit()?;
    if !needs_admin {
        return None;
    }
    if drop_ins.contains("CAP_NET_ADMIN") {
        return Some(Finding::ok(
            CHECK,
            "fenxi.service",
            "a drop-in grants CAP_NET_ADMIN",
        ));
    }
    let cause = "marks, labels of connections and sets of nftables need CAP_NET_ADMIN, which the systemd unit grants only with \
                 a drop-in";
    let lines = [
        "AmbientCapabilities=CAP_NET_ADMIN",
        "CapabilityBoundingSet=CAP_NET_ADMIN",
    ];
    Some(Finding::warning(CHECK, "fenxi.service", cause).cure(drop_in("mark", &lines)))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn a_unit_without_the_drop_in() {
        let service = ("etc/systemd/system/fenxi.service", "[Service]");
        let (_dir, plain) = machine(&[service]);
        assert_eq!(unit(&plain, true).unwrap().level, Level::Warning);
        assert_eq!(unit(&plain, false), None);
        let drop_in = (
            "etc/systemd/system/fenxi.service.d/mark.conf",
            "AmbientCapabilities=CAP_NET_ADMIN",
        );
        assert_eq!(
            unit(&machine(&[service, drop_in]).1, true).unwrap().level,
            Level::Ok
        );
        assert_eq!(unit(&machine(&[]).1, true), None);
        assert!(set_capabilities(true).starts_with("setcap cap_net_admin,cap_net_raw+ep /"));
    }
}
