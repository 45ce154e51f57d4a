//! A network namespace of a test's own, with a veth pair in it, and threads inside it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace; removed when dropped.
pub struct Netns {
    name: String,
}

impl Netns {
    /// An empty namespace. `None`, said on the terminal: that needs root and `ip`.
    pub fn new(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pio{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let added = output(Command::new("ip").args(["netns", "add", &name]));
        if !added.is_ok_and(|output| output.status.success()) {
            skip(test, "root and ip");
            return None;
        }
        let netns = Self { name };
        // No frames but the test's.
        netns.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
        netns.run("ip link set lo up");
        Some(netns)
    }

    /// One with the veth pair `a0`, `b0`, both up.
    pub fn with_pair(test: &str) -> Option<Self> {
        let netns = Self::new(test)?;
        netns.add_pair();
        Some(netns)
    }

    pub fn add_pair(&self) {
        self.set_up(
            "ip link add a0 type veth peer name b0 && ip link set a0 up && ip link set b0 up",
        );
    }

    /// Runs a line of shell that sets interfaces up, and waits until frames pass: the kernel sees
    /// some time after both ends are up that they are linked, and drops until then what is sent.
    pub fn set_up(&self, line: &str) {
        self.run(line);
        let until = Instant::now() + Duration::from_secs(10);
        let is_linked = |line: &str| line.contains(" lo: ") || line.contains("state UP");
        while !self.run("ip -o link show up").lines().all(is_linked) {
            assert!(Instant::now() < until, "not linked: {}", self.run("ip link show up"));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a line of shell inside, which must succeed.
    pub fn run(&self, line: &str) -> String {
        let mut shell = Command::new("ip");
        shell.args(["netns", "exec", &self.name, "sh", "-ec", line]);
        let output = output(&mut shell).expect("ip is there");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `work` on a thread inside; what it opens stays inside.
    pub fn inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Frames that an interface has received, as the kernel counts them.
    pub fn received_by(&self, interface: &str) -> u64 {
        let line = format!("cat /sys/class/net/{interface}/statistics/rx_packets");
        self.run(&line).trim().parse().expect("a number")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = output(Command::new("ip").args(["netns", "del", &self.name]));
    }
}

/// Whether `ethtool` is installed.
pub fn has_ethtool() -> bool {
    output(Command::new("ethtool").arg("--version")).is_ok()
}

/// Held while a command starts. Until the end of its `exec`, which comes after `spawn` returns, it
/// has copies of all descriptors of all tests, and what a test closes stays open.
static STARTING: RwLock<()> = RwLock::new(());

/// Holds [`wait_for_closed`] up. All tests of this crate start commands under it, and drop it when
/// the command is seen to run.
pub fn starting() -> impl Drop {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let _starting = starting();
    command.stdin(Stdio::null()).output()
}

/// Waits until what this thread has closed is closed indeed.
pub fn wait_for_closed() {
    drop(STARTING.write().unwrap_or_else(PoisonError::into_inner));
}

/// Says on the terminal that a test was skipped and why; fails where everything must be there.
/// libtest captures `eprintln!`, but not this.
pub fn skip(test: &str, needs: &str) {
    if std::env::var_os("FENXI_REQUIRE_ALL").is_some_and(|value| value == "1") {
        panic!("{test}: needs {needs}, and FENXI_REQUIRE_ALL forbids to skip it");
    }
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs {needs}");
}
