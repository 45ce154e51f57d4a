//! A `fenxi run` on a host of a lab, watched by a service manager of ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::lab::Lab;
use super::store::Store;
use super::{Finished, fenxi, fenxi_lab, root};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ring of the default size holds 0.26 s, and a busy machine may let the one who reads it wait
/// longer. A test of lost packets has a smaller one of its own.
const SIZES: [&str; 4] = ["--set", "flow.max_flows=16384", "--set", "io.blocks=1024"];

/// How often the service manager wants to hear of progress.
pub const WATCHDOG: Duration = Duration::from_secs(4);

/// fenxi on a host, by way of `launcher`.
pub fn fenxi_on(lab: &Lab, host: &str, launcher: &[&str]) -> Command {
    program_on(fenxi::<&str>([]), lab, host, launcher)
}

/// `fenxi-lab generate` on a host.
pub fn generate_on(lab: &Lab, host: &str) -> Command {
    program_on(fenxi_lab(["generate"]), lab, host, &[])
}

fn program_on(program: Command, lab: &Lab, host: &str, launcher: &[&str]) -> Command {
    let mut command = lab.command(host, "env");
    command.args(launcher).arg(program.get_program());
    command.args(program.get_args()).current_dir(root());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// A running fenxi.
pub struct Live {
    dir: TempDir,
    child: Option<Child>,
    manager: UnixDatagram,
    store: Store,
    /// What it has written to standard error so far.
    stderr: Arc<Mutex<String>>,
    /// Whether that tells when it is ready: not at level error, nor where the log may go elsewhere.
    tells_ready: bool,
    reader: Option<JoinHandle<()>>,
}

impl Live {
    /// `fenxi run` with these arguments, once it is ready.
    pub fn start(lab: &Lab, host: &str, args: &[&str]) -> Live {
        Live::launch(fenxi_on(lab, host, &[]), args)
    }

    /// The same, of a command that is fenxi.
    pub fn launch(command: Command, args: &[&str]) -> Live {
        let live = Live::begin(command, args);
        live.wait_until_ready();
        live
    }

    /// The same, without waiting.
    pub fn begin(command: Command, args: &[&str]) -> Live {
        Live::begin_with(command, &[&SIZES[..], args].concat(), Stdio::null(), Store::default())
    }

    /// One with table and ring as by default, once it is ready.
    pub fn of_default_size(command: Command, args: &[&str]) -> Live {
        let live = Live::begin_with(command, args, Stdio::null(), Store::default());
        live.wait_until_ready();
        live
    }

    /// One that gets what the one before has left in the store, once it is ready.
    pub fn succeed(store: Store, lab: &Lab, host: &str, args: &[&str]) -> Live {
        let (launcher, stdin) = store.launcher();
        let launcher: Vec<&str> = launcher.iter().map(String::as_str).collect();
        let stdin = Stdio::from(OwnedFd::from(stdin));
        let args = [&SIZES[..], args].concat();
        let live = Live::begin_with(fenxi_on(lab, host, &launcher), &args, stdin, store);
        live.wait_until_ready();
        live
    }

    fn begin_with(mut command: Command, args: &[&str], stdin: Stdio, store: Store) -> Live {
        let dir = tempfile::tempdir().unwrap();
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        command.args(["run", "--json"]).args(args);
        for (key, value) in [("control.http", "unix:"), ("control.socket", "")] {
            let path = dir.path().join(key);
            command.args(["--set", &format!("{key}={value}{}", path.display())]);
        }
        command
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .env_remove("WATCHDOG_PID")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (lines, text) = (child.stderr.take().unwrap(), stderr.clone());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                *text.lock().unwrap() += &(line + "\n");
            }
        });
        let is_quiet = |arg: &&str| *arg == "log.level=error" || arg.starts_with("log.to=");
        let tells_ready = !args.iter().any(is_quiet);
        Live { dir, child: Some(child), manager, store, stderr, tells_ready, reader: Some(reader) }
    }

    /// Waits until it says so, and what it logged before has been read.
    pub fn wait_until_ready(&self) {
        match self.hear() {
            Ok(told) => assert!(told.starts_with("READY=1"), "{told}"),
            Err(error) => panic!("not ready: {error}: {}", self.stderr.lock().unwrap()),
        }
        // The log comes by a pipe of its own.
        let began = Instant::now();
        while self.tells_ready && self.said("ready: ") == 0 {
            assert!(began.elapsed() < PATIENCE, "{}", self.stderr.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it has said so, and nobody has heard it yet.
    pub fn is_ready(&self) -> bool {
        self.store.take_all(&self.manager)
    }

    /// What the service manager is told next.
    pub fn told(&self) -> String {
        self.hear().expect("fenxi says something in time")
    }

    fn hear(&self) -> io::Result<String> {
        self.store.hear(&self.manager)
    }

    /// Where `fenxi ctl` reaches it.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("control.socket")
    }

    /// Where HTTP is served.
    pub fn http(&self) -> PathBuf {
        self.dir.path().join("control.http")
    }

    /// `fenxi ctl` with these arguments.
    pub fn ctl(&self, args: &[&str]) -> Finished {
        let mut command = fenxi(["ctl", "--socket"]);
        command.arg(self.socket()).args(args);
        super::run(command)
    }

    /// Its process id: the launcher has become it by `exec`.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// The arguments by which another fenxi finds its control plane.
    pub fn control(&self) -> [String; 4] {
        let place = |key: &str, kind: &str| {
            let path = self.dir.path().join(key);
            format!("{key}={kind}{}", path.display())
        };
        let set = || "--set".to_owned();
        let (http, socket) = (place("control.http", "unix:"), place("control.socket", ""));
        [set(), http, set(), socket]
    }

    /// What `/metrics` serves.
    pub fn scrape(&self) -> String {
        self.try_scrape().unwrap()
    }

    /// What is served at this path, with its head.
    pub fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap()
    }

    fn try_scrape(&self) -> io::Result<String> {
        self.try_get("/metrics")
    }

    fn try_get(&self, path: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(self.http())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Prints what it has counted and said, to find the reason of a failure.
    fn tell(&self) {
        let page = self.try_scrape().unwrap_or_else(|error| error.to_string());
        let counted = page.lines().filter(|line| {
            line.starts_with("fenxi_p") && !line.ends_with(" 0") && !line.ends_with(" 0.0")
        });
        for line in counted.chain(self.stderr.lock().iter().flat_map(|said| said.lines())) {
            eprintln!("fenxi: {line}");
        }
    }

    /// The samples of a metric; there must be some.
    pub fn samples(&self, name: &str) -> Vec<f64> {
        self.samples_with(name, "")
    }

    /// Those with a label, as in `reason="idle"`.
    pub fn samples_with(&self, name: &str, label: &str) -> Vec<f64> {
        let page = self.scrape();
        let samples = page
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
        let values: Vec<f64> =
            samples.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(!values.is_empty(), "no {name} in {page}");
        values
    }

    /// Sum over the samples of a metric.
    pub fn metric_sum(&self, name: &str) -> f64 {
        self.samples(name).iter().sum()
    }

    /// Waits until the samples of a metric have this sum. A thread's samples are 0 until it has
    /// answered once, which may be after the run is ready.
    pub fn wait_for_sum(&self, name: &str, sum: f64) {
        self.wait_for(name, |live| live.metric_sum(name) == sum);
    }

    /// Waits until it is so.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Live) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has taken at least `least` packets and no more arrive.
    pub fn wait_for_packets(&self, least: u64) {
        let seen = |live: &Live| live.metric_sum("fenxi_packets_total");
        self.wait_for("all packets are seen", |live| seen(live) >= least as f64);
        self.wait_for("no more come", |live| {
            let before = seen(live);
            std::thread::sleep(Duration::from_millis(50));
            seen(live) == before
        });
    }

    /// Memory of its own that is in use, in KiB: without what it shares, such as receive rings.
    pub fn resident_kib(&self) -> u64 {
        let pid = self.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].parse().unwrap()
    }

    /// How often it has said something on standard error so far.
    pub fn said(&self, text: &str) -> usize {
        self.stderr.lock().unwrap().matches(text).count()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), signal).unwrap();
    }

    /// Ends it as a service manager does.
    pub fn terminate(self, code: i32) -> Finished {
        self.signal(Signal::TERM);
        self.ended(code)
    }

    /// Waits for its end.
    pub fn ended(mut self, code: i32) -> Finished {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let stderr = std::mem::take(&mut *self.stderr.lock().unwrap());
        let finished = Finished { stderr, ..Finished::from_output(output) };
        finished.expect_code(code)
    }

    /// Waits for its end, however it ends, and asks nothing of what it says.
    pub fn exit_status(mut self) -> std::process::ExitStatus {
        self.child.take().unwrap().wait().unwrap()
    }

    /// The names of the descriptors that it has in the store.
    pub fn stored(&self) -> Vec<String> {
        self.store.take_all(&self.manager);
        self.store.names()
    }

    /// Waits for its end after a signal; what is left in the store, and what it has written to
    /// standard error.
    pub fn left(mut self, signal: Signal) -> (Store, String) {
        self.signal(signal);
        self.child.take().unwrap().wait_with_output().unwrap();
        self.reader.take().unwrap().join().unwrap();
        while self.store.take_all(&self.manager) {
            self.store.hear(&self.manager).unwrap();
        }
        let said = std::mem::take(&mut *self.stderr.lock().unwrap());
        (std::mem::take(&mut self.store), said)
    }

    /// `kill -9`.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.child.is_some() && std::thread::panicking() {
            self.tell();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
