//! Hosts in network namespaces of their own, wired by veth pairs; gone when the lab is dropped.
//!
//! Names carry the process id. A thread that enters a namespace opens sockets there, and they stay
//! in it.
#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic as the tests do")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Says on the terminal that a test was skipped and why; fails where everything
/// must be there. libtest captures `eprintln!`, but not this.
pub fn skip(test: &str, needs: &str) {
    if std::env::var_os("FENXI_REQUIRE_ALL").is_some_and(|value| value == "1") {
        panic!("{test}: needs {needs}, and FENXI_REQUIRE_ALL forbids to skip it");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs {needs}");
}

/// Namespaces, which go with this.
pub struct Lab {
    prefix: String,
    hosts: Vec<String>,
}

impl Lab {
    /// Hosts without wires, which speak IPv4 only and say nothing by themselves. `None`, said on
    /// the terminal: no root, or no tools.
    pub fn new(test: &str, hosts: &[&str], tools: &[&str]) -> Option<Lab> {
        for tool in ["ip"].iter().chain(tools) {
            let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
            if !found.is_ok_and(|output| output.status.success()) {
                skip(test, &format!("the program {tool}"));
                return None;
            }
        }
        // Two tests of one process may choose the same name.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut lab = Lab {
            prefix: format!("fenxi-{}-{number}-{test}", std::process::id()),
            hosts: Vec::new(),
        };
        for host in hosts {
            let add = Command::new("ip").args(["netns", "add", &lab.name(host)]).output();
            if !add.is_ok_and(|output| output.status.success()) {
                skip(test, "root");
                return None;
            }
            lab.hosts.push((*host).to_owned());
            lab.set(host, "ipv6/conf/all/disable_ipv6", "1");
            lab.set(host, "ipv6/conf/default/disable_ipv6", "1");
        }
        Some(lab)
    }

    /// `client`, `router` and `server`, wired by the router's `in` and `out`; IPv4 and IPv6, with
    /// routes. Conntrack is on, with bits of the mark that belong to others ([`FOREIGN`]).
    pub fn routed(test: &str, masquerades: bool, tools: &[&str]) -> Option<Lab> {
        let tools = [tools, &["nft", "conntrack"]].concat();
        let lab = Lab::new(test, &["client", "router", "server"], &tools)?;
        for host in ["client", "router", "server"] {
            lab.speak_ipv6(host);
        }
        for (link, host, net) in [("in", "client", 1), ("out", "server", 2)] {
            lab.wire(host, "eth", "router", link);
            lab.address("router", link, &format!("77:{net}"), 1);
            lab.address(host, "eth", &format!("77:{net}"), 2);
            lab.run(
                host,
                &format!(
                    "ip route add default via 10.77.{net}.1 && ip route add default via \
                     fd77:{net}::1"
                ),
            );
        }
        lab.set("router", "ipv4/ip_forward", "1");
        lab.set("router", "ipv6/conf/all/forwarding", "1");
        // A connection stays however slow the machine is.
        for key in ["udp_timeout", "udp_timeout_stream"] {
            lab.set("router", &format!("netfilter/nf_conntrack_{key}"), "600");
        }
        lab.nft("router", OTHERS);
        if masquerades {
            lab.nft("router", MASQUERADE);
        }
        Some(lab)
    }

    /// One more host at the router of a routed lab, wired by its `link`.
    pub fn join(&mut self, host: &str, link: &str, net: u8) {
        let add = Command::new("ip").args(["netns", "add", &self.name(host)]).output();
        assert!(add.unwrap().status.success(), "{host}");
        self.hosts.push(host.to_owned());
        self.speak_ipv6(host);
        self.wire(host, "eth", "router", link);
        self.address("router", link, &format!("77:{net}"), 1);
        self.address(host, "eth", &format!("77:{net}"), 2);
        self.run(
            host,
            &format!(
                "ip route add default via 10.77.{net}.1 && ip route add default via fd77:{net}::1"
            ),
        );
    }

    /// `left` and `right`, wired by the `l` and `r` of a `box` that has no addresses; IPv4 and
    /// IPv6.
    pub fn bridged(test: &str, tools: &[&str]) -> Option<Lab> {
        let lab = Lab::new(test, &["left", "box", "right"], tools)?;
        for host in ["left", "right"] {
            lab.speak_ipv6(host);
            lab.bridge(host);
        }
        Some(lab)
    }

    /// Gives `left` or `right` its wire and addresses.
    pub fn bridge(&self, host: &str) {
        let (port, number) = match host {
            "left" => ("l", 1),
            _ => ("r", 2),
        };
        self.wire(host, "eth", "box", port);
        self.address(host, "eth", "78:0", number);
    }

    /// One more host, which has no addresses and says nothing, wired to a `link` of the box.
    pub fn attach(&mut self, host: &str, link: &str) {
        let mut add = Command::new("ip");
        let added = add.args(["netns", "add", &self.name(host)]).output();
        assert!(added.unwrap().status.success(), "{host}");
        self.hosts.push(host.to_owned());
        self.set(host, "ipv6/conf/all/disable_ipv6", "1");
        self.set(host, "ipv6/conf/default/disable_ipv6", "1");
        self.wire(host, "eth", "box", link);
    }

    /// The server's address, in a routed lab.
    pub fn server(is_v6: bool) -> &'static str {
        if is_v6 { "fd77:2::2" } else { "10.77.2.2" }
    }

    /// The name of its namespace.
    pub fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// A host speaks IPv6 on the wires that it gets from now on, with addresses that are given
    /// only, and says what it has to say of them at once.
    fn speak_ipv6(&self, host: &str) {
        self.set(host, "ipv6/conf/all/disable_ipv6", "0");
        self.set(host, "ipv6/conf/default/disable_ipv6", "0");
        for (key, value) in [
            ("accept_ra", "0"),
            ("router_solicitations", "0"),
            ("accept_dad", "0"),
            ("mldv2_unsolicited_report_interval", "1"),
        ] {
            self.set(host, &format!("ipv6/conf/default/{key}"), value);
        }
    }

    /// 10.`net`.`host` and fd`net`::`host`, with a colon in `net` where IPv6 has one.
    fn address(&self, host: &str, device: &str, net: &str, number: usize) {
        let net4 = net.replace(':', ".");
        self.run(
            host,
            &format!(
                "ip addr add 10.{net4}.{number}/24 dev {device} && \
                 ip addr add fd{net}::{number}/64 dev {device} nodad"
            ),
        );
    }

    /// Sets a key under `net`, with slashes.
    pub fn set(&self, host: &str, key: &str, value: &str) {
        self.on(host, || {
            std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
        });
    }

    /// A wire with both ends on one host, for frames of any length.
    pub fn wire_within(&self, host: &str, one: &str, other: &str) {
        self.run(
            host,
            &format!(
                "ip link add dev {one} mtu 65535 type veth peer name {other} mtu 65535 && \
                 ip link set dev {one} up && ip link set dev {other} up"
            ),
        );
        self.wait_for_link(host, one);
        self.wait_for_link(host, other);
    }

    /// A wire between two hosts.
    pub fn wire(&self, host: &str, device: &str, other: &str, its_device: &str) {
        let far = self.name(other);
        self.run(
            host,
            &format!(
                "ip link add dev {device} type veth peer name {its_device} netns {far} && \
                 ip link set dev {device} up"
            ),
        );
        self.run(other, &format!("ip link set dev {its_device} up"));
        self.wait_for_link(host, device);
        self.wait_for_link(other, its_device);
    }

    /// The kernel notices some time after both ends of a wire are up that they are linked. Until
    /// then it drops what is sent.
    pub fn wait_for_link(&self, host: &str, device: &str) {
        self.run(
            host,
            &format!(
                "for i in $(seq 6000); do \
                   [ $(cat /sys/class/net/{device}/operstate) = up ] && exit; sleep 0.01; \
                 done; ip link >&2; exit 1"
            ),
        );
    }

    /// A program on a host, to be started.
    pub fn command(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), program]);
        command
    }

    /// What a line of shell prints on a host; it must succeed.
    pub fn run(&self, host: &str, line: &str) -> String {
        let mut shell = self.command(host, "sh");
        let output = shell.args(["-ec", line]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A program that goes on on a host, until it ends or is dropped.
    pub fn spawn(&self, host: &str, line: &str) -> Program {
        let mut shell = self.command(host, "sh");
        shell.args(["-ec", &format!("exec {line}")]);
        shell.stdin(Stdio::null());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        Program(Some(shell.spawn().unwrap()))
    }

    /// Loads rules of nftables.
    pub fn nft(&self, host: &str, rules: &str) {
        let mut command = self.command(host, "nft");
        let mut nft = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = nft.stdin.take().unwrap();
        stdin.write_all(rules.as_bytes()).unwrap();
        drop(stdin);
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// `work` for a thread of its own, which it takes into a host's namespace.
    pub fn entering<T, W: FnOnce() -> T + Send>(
        &self,
        host: &str,
        work: W,
    ) -> impl FnOnce() -> T + Send + use<T, W> {
        let path = format!("/run/netns/{}", self.name(host));
        move || {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        }
    }

    /// Does `work` in a host's namespace.
    pub fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let in_namespace = self.entering(host, work);
        std::thread::scope(|scope| {
            let thread = scope.spawn(in_namespace);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Takes a host away, with its ends of wires.
    pub fn remove(&self, host: &str) {
        let mut command = Command::new("ip");
        let output = command.args(["netns", "del", &self.name(host)]).output();
        assert!(output.unwrap().status.success(), "{host}");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &self.hosts {
            // Where a frame was lost says how.
            if std::thread::panicking() {
                let links = self.command(host, "ip").args(["-s", "link"]).output();
                let links = links.map(|output| output.stdout).unwrap_or_default();
                eprintln!("{host}:\n{}", String::from_utf8_lossy(&links));
            }
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).output();
        }
    }
}

/// Bits that the router's own rules give to every new connection and every packet.
pub const FOREIGN: u32 = 0x0000_cd40;

/// Rules that make conntrack look at all, and use bits of the mark that are not fenxi's. A
/// connection is new until the first answer comes, and may have fenxi's mark by then.
const OTHERS: &str = "table inet lab {
    chain others {
        type filter hook prerouting priority -190; policy accept;
        ct state new ct mark 0 ct mark set 0x0000cd40
        meta mark set 0x0000cd40
    }
}";

/// Source NAT, to other ports too.
const MASQUERADE: &str = "table inet nat {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname \"out\" meta l4proto { tcp, udp } masquerade to :40000-50000
    }
}";

/// A program that runs; killed when dropped.
pub struct Program(Option<Child>);

impl Program {
    /// Waits for its end; what it printed. It must succeed.
    pub fn wait(mut self) -> String {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Interrupts it, as by Ctrl-C; what it printed to standard error.
    pub fn interrupt(mut self) -> String {
        let child = self.0.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
