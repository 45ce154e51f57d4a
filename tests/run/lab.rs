//! Hosts in network namespaces, and a fenxi that runs on one of them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::common::{self, Finished};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the service manager wants to hear of progress.
pub const WATCHDOG: Duration = Duration::from_secs(4);

/// Namespaces, which go with this.
pub struct Lab {
    prefix: String,
    hosts: Vec<String>,
}

impl Lab {
    /// Hosts without wires. `None`, said on the terminal: no root, or no tools.
    pub fn new(test: &str, hosts: &[&str], tools: &[&str]) -> Option<Lab> {
        for tool in ["ip"].iter().chain(tools) {
            let found = Command::new("sh")
                .args(["-c", &format!("command -v {tool}")])
                .output();
            if !found.is_ok_and(|output| output.status.success()) {
                common::skip(&format!("run::{test}"), &format!("the program {tool}"));
                return None;
            }
        }
        let mut lab = Lab {
            prefix: format!("fenxi-{}-{test}", std::process::id()),
            hosts: Vec::new(),
        };
        for host in hosts {
            let add = Command::new("ip")
                .args(["netns", "add", &lab.name(host)])
                .output();
            if !add.is_ok_and(|output| output.status.success()) {
                common::skip(&format!("run::{test}"), "root");
                return None;
            }
            lab.hosts.push((*host).to_owned());
            // Hosts that greet their neighbours would be seen in the counts.
            lab.on(host, || {
                for scope in ["all", "default"] {
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1")
                        .unwrap();
                }
            });
        }
        Some(lab)
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// A wire with both ends on one host.
    pub fn wire_within(&self, host: &str, one: &str, other: &str) {
        self.run(
            host,
            &format!("ip link add dev {one} mtu 65535 type veth peer name {other} mtu 65535"),
        );
        for end in [one, other] {
            self.run(host, &format!("ip link set dev {end} up"));
        }
    }

    /// A wire between two hosts.
    pub fn wire(&self, host: &str, device: &str, other: &str, its_device: &str) {
        let far = self.name(other);
        self.run(
            host,
            &format!("ip link add dev {device} type veth peer name {its_device} netns {far}"),
        );
        self.run(host, &format!("ip link set dev {device} up"));
        self.run(other, &format!("ip link set dev {its_device} up"));
    }

    fn command(&self, host: &str, line: &str) -> Command {
        let name = self.name(host);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name]);
        // nft takes its commands as one argument.
        match line.strip_prefix("nft ") {
            Some(rules) => command.args(["nft", rules]),
            None => command.args(line.split(' ')),
        };
        command
    }

    /// What a program prints on a host; its words are apart by blanks.
    pub fn run(&self, host: &str, line: &str) -> String {
        let output = self.command(host, line).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A program that goes on on a host.
    pub fn spawn(&self, host: &str, line: &str) -> Child {
        let mut command = self.command(host, line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// fenxi on a host, by way of `launcher`.
    pub fn fenxi(&self, host: &str, launcher: &[&str]) -> Command {
        let fenxi = common::fenxi::<&str>([]);
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name(host)])
            .args(launcher);
        command.arg(fenxi.get_program()).current_dir(common::root());
        for (name, value) in fenxi.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Does `work` in a host's namespace. Sockets stay in the one in which they were opened.
    pub fn on<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.name(host));
        let in_namespace = || {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(in_namespace).join().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name(host)])
                .output();
        }
    }
}

/// A fenxi that runs, watched by a service manager of ours.
pub struct Live {
    dir: TempDir,
    child: Option<Child>,
    manager: UnixDatagram,
}

impl Live {
    /// `fenxi run` with these arguments, once it is ready.
    pub fn start(lab: &Lab, host: &str, args: &[&str]) -> Live {
        Live::start_by(lab, host, &[], args)
    }

    /// The same, by way of `launcher`.
    pub fn start_by(lab: &Lab, host: &str, launcher: &[&str], args: &[&str]) -> Live {
        let dir = tempfile::tempdir().unwrap();
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = lab.fenxi(host, launcher);
        command
            .args(["run", "--json", "--set", "flow.max_flows=16384"])
            .args(args);
        for (key, value) in [("control.http", "unix:"), ("control.socket", "")] {
            let path = dir.path().join(key);
            command.args(["--set", &format!("{key}={value}{}", path.display())]);
        }
        command
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = Some(command.spawn().unwrap());
        let live = Live {
            dir,
            child,
            manager,
        };
        let told = live.told();
        assert!(told.starts_with("READY=1"), "{told}");
        live
    }

    /// What the service manager is told next.
    pub fn told(&self) -> String {
        let mut text = [0; 256];
        let bytes = self
            .manager
            .recv(&mut text)
            .expect("fenxi says something in time");
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    }

    /// Of its process: whatever launched it became it.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Where the socket of `control.http` or `control.socket` is.
    pub fn socket(&self, key: &str) -> PathBuf {
        self.dir.path().join(key)
    }

    /// `fenxi ctl` with these arguments.
    pub fn ctl(&self, args: &[&str]) -> Finished {
        let mut command = common::fenxi(["ctl", "--socket"]);
        command.arg(self.socket("control.socket")).args(args);
        common::run(command)
    }

    /// Sum over the samples of a metric.
    pub fn metric_sum(&self, name: &str) -> f64 {
        self.metric(name, "")
    }

    /// Sum over the samples of a metric that have this label, as in `reason="idle"`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let mut stream = UnixStream::connect(self.socket("control.http")).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let samples = page
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
        let values: Vec<f64> = samples
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(!values.is_empty(), "no {name} {label} in {page}");
        values.iter().sum()
    }

    /// Waits until it is so.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Live) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as nobody should.
    pub fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends it as a service manager does.
    pub fn terminate(mut self, code: i32) -> Finished {
        let child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        Finished::of(child.wait_with_output().unwrap()).expect_code(code)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
