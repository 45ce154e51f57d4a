//! A router between two hosts, each in a network namespace of its own that is removed again.
//!
//! Names carry the process id. The sockets of a test are opened by threads that enter a namespace; a
//! socket stays in the namespace in which it was opened.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// One of the three hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Client,
    Router,
    Server,
}

use Host::{Client, Router, Server};

/// The namespaces, by [`Host`].
pub struct Lab {
    names: [String; 3],
}

/// Bits that the router's own rules give to every new connection and every packet.
pub const FOREIGN: u32 = 0xab00_00cd;

/// Rules that make conntrack look at all, and use bits of the mark that are not fenxi's.
const RULES: &str = "table inet lab {
    chain others {
        type filter hook prerouting priority -190; policy accept;
        ct state new ct mark set 0xab0000cd
        meta mark set 0xab0000cd
    }
}";

/// Source NAT, to other ports too.
const MASQUERADE: &str = "table inet nat {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"out\" meta l4proto { tcp, udp } masquerade to :40000-50000
    }
}";

impl Lab {
    /// The hosts, wired and with routes. `None`, said on the terminal: no root, or no tools.
    pub fn new(test: &str, masquerades: bool) -> Option<Lab> {
        for (tool, version) in [
            ("ip", "-V"),
            ("nft", "-v"),
            ("conntrack", "-V"),
            ("tc", "-V"),
        ] {
            let mut command = Command::new(tool);
            let output = command
                .arg(version)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if !output.status().is_ok_and(|status| status.success()) {
                skip(test, &format!("the program {tool}"));
                return None;
            }
        }
        let name = |host| format!("fenxi-{}-{test}-{host}", std::process::id());
        let lab = Lab {
            names: ["client", "router", "server"].map(name),
        };
        for name in &lab.names {
            let add = Command::new("ip").args(["netns", "add", name]).output();
            if !add.is_ok_and(|output| output.status.success()) {
                skip(test, "root");
                return None;
            }
        }
        lab.wire();
        lab.nft(Router, RULES);
        if masquerades {
            lab.nft(Router, MASQUERADE);
        }
        Some(lab)
    }

    fn wire(&self) {
        for (link, host, subnet) in [("in", Client, 1), ("out", Server, 2)] {
            let far = &self.names[host as usize];
            self.run(
                Router,
                "ip",
                &format!("link add {link} type veth peer name eth netns {far}"),
            );
            for (place, device, last) in [(Router, link, 1), (host, "eth", 2)] {
                self.run(place, "ip", &format!("link set {device} up"));
                self.run(
                    place,
                    "ip",
                    &format!("addr add 10.77.{subnet}.{last}/24 dev {device}"),
                );
                self.run(
                    place,
                    "ip",
                    &format!("addr add fd77:{subnet}::{last}/64 dev {device} nodad"),
                );
            }
            self.run(
                host,
                "ip",
                &format!("route add default via 10.77.{subnet}.1"),
            );
            self.run(
                host,
                "ip",
                &format!("route add default via fd77:{subnet}::1"),
            );
        }
        self.on(Router, || {
            for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{key}"), "1").unwrap();
            }
        });
    }

    /// The server's address.
    pub fn server(&self, is_v6: bool) -> IpAddr {
        let address = if is_v6 { "fd77:2::2" } else { "10.77.2.2" };
        address.parse().unwrap()
    }

    /// Does `work` in a host's namespace.
    pub fn on<T: Send>(&self, host: Host, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.names[host as usize]);
        let in_namespace = || {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(in_namespace).join().unwrap())
    }

    /// What a program with these arguments, apart by blanks, prints on a host.
    pub fn run(&self, host: Host, program: &str, arguments: &str) -> String {
        let name = &self.names[host as usize];
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", name, program])
            .args(arguments.split(' '));
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Loads rules of nftables.
    pub fn nft(&self, host: Host, rules: &str) {
        let name = &self.names[host as usize];
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", name, "nft", "-f", "-"])
            .stdin(Stdio::piped());
        let mut nft = command.spawn().unwrap();
        nft.stdin
            .take()
            .unwrap()
            .write_all(rules.as_bytes())
            .unwrap();
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// The mark of the connection that a client's socket opened, as `conntrack` reads it; `None`:
    /// there is none.
    pub fn mark_of(&self, protocol: u8, from: SocketAddr) -> Option<u32> {
        let family = if from.is_ipv6() { "ipv6" } else { "ipv4" };
        let list = format!(
            "-L -p {protocol} -f {family} --orig-port-src {}",
            from.port()
        );
        let listed = self.run(Router, "conntrack", &list);
        let line = listed.lines().next()?;
        let mark = line
            .split(' ')
            .find_map(|word| word.strip_prefix("mark="))
            .unwrap();
        Some(mark.parse().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip")
                .args(["netns", "del", name])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Says on the terminal that a test was skipped and why; fails where everything must be there.
/// libtest captures `eprintln!`, but not this.
fn skip(test: &str, needs: &str) {
    if std::env::var_os("FENXI_REQUIRE_ALL").is_some_and(|value| value == "1") {
        panic!("mark::tests ({test}): needs {needs}, and FENXI_REQUIRE_ALL forbids to skip it");
    }
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED mark::tests ({test}): needs {needs}"
    );
}
