//! Interfaces: present, up, with a carrier, frames no longer than a block; in mode inline, no other
//! path between the two.

use packetio::{backend::Devices, interface};

use super::finding::Finding;
use super::machine::Machine;
use config::checked::{Io, IoMode};
use config::{Config, suggest};

pub const CHECK: &str = "interface";

/// `IFF_UP` and `IFF_PROMISC` of `linux/if.h`.
const UP: i64 = 0x1;
const PROMISCUOUS: i64 = 0x100;

/// Bytes that a frame needs in a block in addition to its MTU: link header with two tags, and the
/// kernel's header, rounded up.
const FRAME_OVERHEAD: i64 = 22 + 234;

/// The configured interfaces that exist, each once.
pub fn present(config: &Config) -> Vec<&str> {
    let known = interface::names();
    let mut names: Vec<&str> = Vec::new();
    for name in &config.io.interfaces {
        if known.contains(name) && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Checks all interfaces.
pub fn findings(machine: &Machine, config: &Config) -> Vec<Finding> {
    let known = interface::names();
    let io = &config.io;
    if io.interfaces.is_empty() {
        return vec![none(&known)];
    }
    let mut findings = Vec::new();
    for name in &io.interfaces {
        match (&io.backend.devices, known.contains(name)) {
            (Some(devices), is_known) => findings.push(device(devices, name, is_known)),
            (None, true) => findings.extend(one(machine, io, name)),
            (None, false) => findings.push(missing(name, &known)),
        }
    }
    if let (IoMode::Inline, [left, right]) = (io.mode, present(config).as_slice()) {
        findings.extend(between(machine, left, right));
    }
    if io.mode == IoMode::Mark && io.interfaces.len() > 1 {
        let cause = "a flow counts on the interface where it was first seen; if one of them \
            translates addresses (NAT), its flows count on the inside and on the outside, so name \
            the inner interfaces only";
        findings.push(Finding::ok(CHECK, &io.interfaces.join(", "), cause));
    }
    findings
}

fn none(known: &[String]) -> Finding {
    let wired = known.iter().find(|name| *name != "lo");
    let example = wired.map_or("eth0", String::as_str);
    let cause = "io.interfaces is empty: `fenxi run` has no interface to read from";
    let line = format!("fenxi check --deep --set 'io.interfaces=[\"{example}\"]'");
    Finding::problem(CHECK, "", cause).cure(line)
}

pub fn missing(name: &str, known: &[String]) -> Finding {
    let near = suggest(name, known.iter().map(String::as_str));
    let cause = format!("no such interface; there are: {}{near}", known.join(", "));
    Finding::problem(CHECK, name, cause).cure("ip -br link")
}

/// A device that is no interface is not opened: opening takes it, perhaps from a run.
fn device(devices: &Devices, name: &str, is_known: bool) -> Finding {
    let Devices { whose, naming, list } = devices;
    match is_known {
        true => Finding::problem(CHECK, name, format!("an interface of the kernel; {naming}"))
            .cure(*list),
        false => Finding::ok(CHECK, name, format!("none of the kernel's, so one of {whose}")),
    }
}

/// State of an interface.
pub struct Link {
    flags: i64,
    /// Bytes of a frame behind its link header.
    pub mtu: i64,
    /// Whether it is up and has a carrier.
    pub finding: Finding,
}

impl Link {
    /// Reads it; `down` is the consequence if it is down.
    ///
    /// # Errors
    /// It is in another network namespace.
    pub fn read(machine: &Machine, name: &str, down: &str) -> Result<Link, Finding> {
        let of = |file: &str| machine.text(&format!("sys/class/net/{name}/{file}"));
        let flags = of("flags").and_then(|flags| {
            let digits = flags.trim_start_matches("0x");
            i64::from_str_radix(digits, 16).ok()
        });
        let flags = flags.ok_or_else(|| {
            let cause = "not in /sys because it belongs to another network namespace, so it was \
                not checked";
            Finding::warning(CHECK, name, cause)
        })?;
        let mtu = of("mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(0);
        let finding = if flags & UP == 0 {
            let cause = format!("the interface is down: {down}");
            Finding::problem(CHECK, name, cause).cure(format!("ip link set dev {name} up"))
        } else if of("carrier").as_deref() == Some("0") {
            let cause = "no carrier: no cable, or the other end is down";
            Finding::problem(CHECK, name, cause).cure(format!("ip -d link show dev {name}"))
        } else {
            Finding::ok(CHECK, name, format!("up, with a carrier, MTU {mtu}"))
        };
        Ok(Link { flags, mtu, finding })
    }
}

fn one(machine: &Machine, io: &Io, name: &str) -> Vec<Finding> {
    let link = match Link::read(machine, name, "no traffic comes in") {
        Ok(link) => link,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![link.finding];
    if link.mtu + FRAME_OVERHEAD > i64::from(io.block_bytes) {
        let cause = format!(
            "frames of MTU {} do not fit into a block of {} bytes and are truncated; mode \
            inline does not forward them",
            link.mtu, io.block_bytes
        );
        let bytes = u64::from(io.block_bytes) * 2;
        let line = format!("fenxi check --deep --set io.block_bytes={bytes}");
        findings.push(Finding::problem(CHECK, name, cause).cure(line));
    }
    let sees_own_only = !io.promiscuous && link.flags & PROMISCUOUS == 0;
    if io.mode == IoMode::Tap && sees_own_only && name != "lo" {
        let cause = "not promiscuous: frames for other machines, for example from a mirror port, \
            are not received";
        let line = "fenxi check --deep --set io.promiscuous=true";
        findings.push(Finding::warning(CHECK, name, cause).cure(line));
    }
    findings
}

/// Checks for other paths between the two interfaces of mode inline.
fn between(machine: &Machine, left: &str, right: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mtu = |name: &str| machine.number(&format!("sys/class/net/{name}/mtu")).unwrap_or(0);
    let (of_left, of_right) = (mtu(left), mtu(right));
    if of_left != of_right {
        let (small, large) = match of_left < of_right {
            true => (left, of_right),
            false => (right, of_left),
        };
        let cause = format!(
            "MTU {of_left} and {of_right}: frames too long for the other interface are not \
            forwarded"
        );
        let line = format!("ip link set dev {small} mtu {large}");
        findings.push(Finding::problem(CHECK, &format!("{left}, {right}"), cause).cure(line));
    }
    for name in [left, right] {
        findings.extend(master(machine, name));
        findings.extend(addressed(machine, name));
    }
    findings.extend(routed(machine, left, right));
    findings
}

/// A bridge or bond that the interface belongs to.
fn master(machine: &Machine, name: &str) -> Option<Finding> {
    let master = machine.link(&format!("sys/class/net/{name}/master"))?;
    let cause = match machine.has(&format!("sys/class/net/{name}/brport")) {
        true => format!(
            "it is a port of the bridge {master}, which also forwards its frames: they arrive twice"
        ),
        false => {
            format!("it belongs to {master}, which also receives its frames; name {master} instead")
        }
    };
    Some(Finding::problem(CHECK, name, cause).cure(format!("ip link set dev {name} nomaster")))
}

/// Addresses on an interface of mode inline, which should have none.
fn addressed(machine: &Machine, name: &str) -> Option<Finding> {
    let families = [(4, "IPv4"), (6, "IPv6")].into_iter();
    let families: Vec<&str> = families
        .filter(|(version, _)| has_routes(machine, name, *version))
        .map(|(_, name)| name)
        .collect();
    if families.is_empty() {
        return None;
    }
    let cause = format!(
        "it has routes ({}): the kernel answers packets for its addresses, and fenxi also forwards \
        them",
        families.join(", ")
    );
    Some(Finding::warning(CHECK, name, cause).cure(format!("ip addr flush dev {name}")))
}

/// Whether the kernel routes between the two.
fn routed(machine: &Machine, left: &str, right: &str) -> Option<Finding> {
    let routes =
        |version| has_routes(machine, left, version) && has_routes(machine, right, version);
    let forwards = |name: &str, version| {
        machine.number(&format!("proc/sys/net/ipv{version}/conf/{name}/forwarding")) == Some(1)
    };
    let switches: Vec<String> = [4, 6]
        .into_iter()
        .filter(|&version| routes(version))
        .flat_map(|version| [left, right].map(|name| (version, name)))
        .filter(|(version, name)| forwards(name, *version))
        .map(|(version, name)| format!("net.ipv{version}.conf.{name}.forwarding=0"))
        .collect();
    if switches.is_empty() {
        return None;
    }
    let cause =
        "the kernel also routes between them: packets that hosts send to this router arrive twice";
    let line = format!("sysctl -w {}", switches.join(" "));
    Some(Finding::problem(CHECK, &format!("{left}, {right}"), cause).cure(line))
}

/// Ignores the link-local and multicast routes that each interface has in IPv6.
fn has_routes(machine: &Machine, name: &str, version: u8) -> bool {
    let file = match version {
        4 => "proc/net/route",
        _ => "proc/net/ipv6_route",
    };
    let text = machine.text(file).unwrap_or_default();
    text.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [interface, ..] if version == 4 => *interface == name,
            [to, bits, .., interface] if version == 6 => {
                let is_own = to.starts_with("fe80") || to.starts_with("ff") || *bits == "80";
                *interface == name && !is_own
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    fn io(mode: IoMode) -> Io {
        let config = Config::load(None, &[]).unwrap();
        Io { mode, ..config.io }
    }

    fn remedies(findings: &[Finding]) -> Vec<&str> {
        findings.iter().filter_map(|finding| finding.remedy.as_deref()).collect()
    }

    const UP_FILE: (&str, &str) = ("sys/class/net/eth0/flags", "0x1003\n");

    #[test]
    fn down_and_without_a_carrier() {
        let (_dir, down) = machine(&[
            ("sys/class/net/eth0/flags", "0x1002\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
        ]);
        assert_eq!(remedies(&one(&down, &io(IoMode::Mark), "eth0")), ["ip link set dev eth0 up"]);
        let carrier = "sys/class/net/eth0/carrier";
        let (_dir, cut) = machine(&[UP_FILE, (carrier, "0\n")]);
        assert_eq!(one(&cut, &io(IoMode::Mark), "eth0")[0].level, Level::Problem);
        let (_dir, good) =
            machine(&[UP_FILE, (carrier, "1\n"), ("sys/class/net/eth0/mtu", "1500\n")]);
        let findings = one(&good, &io(IoMode::Mark), "eth0");
        assert_eq!((findings.len(), findings[0].level), (1, Level::Ok), "{findings:?}");
        assert!(one(&good, &io(IoMode::Tap), "eth0")[1].cause.contains("promiscuous"));
        assert_eq!(one(&machine(&[]).1, &io(IoMode::Tap), "eth0")[0].level, Level::Warning);
    }

    #[test]
    fn frames_larger_than_a_block() {
        let (_dir, jumbo) = machine(&[UP_FILE, ("sys/class/net/eth0/mtu", "65535\n")]);
        let io = Io { block_bytes: 65536, ..io(IoMode::Mark) };
        assert_eq!(
            remedies(&one(&jumbo, &io, "eth0")),
            ["fenxi check --deep --set io.block_bytes=131072"]
        );
    }

    #[test]
    fn a_name_that_is_nearly_right() {
        let known = ["lo".to_owned(), "eth0".to_owned()];
        assert!(missing("eth1", &known).cause.ends_with("did you mean eth0?"));
        assert!(none(&known).remedy.unwrap().contains("[\"eth0\"]"));
    }

    #[test]
    fn a_bridge_between_the_two() {
        let (_dir, bridged) = machine(&[
            ("sys/class/net/eth0/master", "->../br0"),
            ("sys/class/net/eth0/brport/state", "3"),
            ("sys/class/net/eth1/mtu", "1500"),
            ("sys/class/net/eth0/mtu", "9000"),
        ]);
        let findings = between(&bridged, "eth0", "eth1");
        assert_eq!(
            remedies(&findings),
            ["ip link set dev eth1 mtu 9000", "ip link set dev eth0 nomaster"]
        );
        assert!(findings[1].cause.contains("bridge br0"));
    }

    #[test]
    fn routes_of_the_kernel_between_the_two() {
        let route4 =
            "Iface\tDestination\tGateway\neth0\t0001A8C0\t00000000\neth1\t0002A8C0\t00000000\n";
        let own = "fe800000000000000000000000000000 40 0 00 0 00000100 1 0 00000001     eth0\n";
        let files = [
            ("proc/net/route", route4),
            ("proc/net/ipv6_route", own),
            ("proc/sys/net/ipv4/conf/eth0/forwarding", "1\n"),
            ("proc/sys/net/ipv4/conf/eth1/forwarding", "1\n"),
        ];
        let (_dir, routing) = machine(&files);
        let line = "sysctl -w net.ipv4.conf.eth0.forwarding=0 net.ipv4.conf.eth1.forwarding=0";
        let findings = between(&routing, "eth0", "eth1");
        assert_eq!(remedies(&findings), ["ip addr flush dev eth0", "ip addr flush dev eth1", line]);
        let (_dir, quiet) = machine(&files[1..2]);
        assert_eq!(between(&quiet, "eth0", "eth1"), []);
    }
}
