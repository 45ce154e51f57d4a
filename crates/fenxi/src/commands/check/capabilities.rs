//! What this process, and the service as it is installed, may do.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::finding::Finding;
use super::machine::Machine;
use config::checked::IoMode;

const CHECK: &str = "capabilities";

/// Looks at those that the mode needs; CAP_NET_ADMIN for marks is tried by [`super::marks`].
pub fn look(machine: &Machine, mode: IoMode) -> Vec<Finding> {
    let needs_admin = mode == IoMode::Mark;
    let mut findings = vec![packet_socket(needs_admin)];
    findings.extend(unit(machine, needs_admin));
    findings
}

/// The line that lets the program at `path` run without root.
pub fn set_capabilities(needs_admin: bool) -> String {
    let program = std::env::current_exe()
        .map_or_else(|_| "fenxi".to_owned(), |path| path.display().to_string());
    let admin = if needs_admin { "cap_net_admin," } else { "" };
    format!("setcap {admin}cap_net_raw+ep {program}")
}

/// Opens a packet socket for no protocol, which receives nothing.
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

/// Whether the installed unit gives what marks need, whatever this process may.
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
    let cause = "mode mark needs CAP_NET_ADMIN, which the systemd unit grants only with a drop-in";
    let line = "install -D -m 644 packaging/systemd/mark.conf /etc/systemd/system/fenxi.service.d/mark.conf && systemctl \
                daemon-reload";
    Some(Finding::warning(CHECK, "fenxi.service", cause).cure(line))
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
