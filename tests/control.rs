//! The control plane end to end: a paced replay that is looked at from outside while it runs and
//! when it is done.

use crate::common;

mod bands;
mod ctl;
mod http;
mod metrics;
pub mod seeing;
mod tasks;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A replay that is served and stays, on Unix sockets in a folder of its own.
struct Served {
    dir: TempDir,
    child: Option<Child>,
}

impl Served {
    /// A replay of the shipped capture with these arguments, on the simulated device unless they
    /// say otherwise.
    fn start(args: &[&str]) -> Served {
        let dir = tempfile::tempdir().expect("a folder");
        Served::start_on(&common::demo(), dir, args)
    }

    /// The same of another capture.
    fn start_on(capture: &Path, dir: TempDir, args: &[&str]) -> Served {
        let http = format!("control.http=unix:{}", dir.path().join("http").display());
        Served::start_in(capture, dir, args, &http)
    }

    /// The same with HTTP elsewhere; of the methods here those for HTTP do not work then.
    fn start_at(args: &[&str], http: &str) -> Served {
        let dir = tempfile::tempdir().expect("a folder");
        Served::start_in(&common::demo(), dir, args, http)
    }

    fn start_in(capture: &Path, dir: TempDir, args: &[&str], http: &str) -> Served {
        let mut command = common::fenxi(["replay", "--json", "--control", "--hold"]);
        command.arg(capture).args(common::SIMULATED).args(args);
        let socket = format!("control.socket={}", dir.path().join("ctl").display());
        for set in [http, &socket, "flow.max_flows=16384"] {
            command.args(["--set", set]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("fenxi starts");
        let mut served = Served { dir, child: Some(child) };
        served.wait_for("it serves", |served| served.try_connect());
        served
    }

    fn http_path(&self) -> PathBuf {
        self.dir.path().join("http")
    }

    fn ctl_path(&self) -> PathBuf {
        self.dir.path().join("ctl")
    }

    fn try_connect(&self) -> bool {
        // A socket is there a moment before somebody listens.
        let paths = [self.http_path(), self.ctl_path()];
        let is_there = |path: &PathBuf| path.exists() || *path == self.ctl_path();
        let mut paths = paths.iter().filter(|path| is_there(path));
        paths.all(|path| UnixStream::connect(path).is_ok())
    }

    /// Until it holds; fails where the program ends before.
    fn wait_for(&mut self, what: &str, holds: impl Fn(&Served) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            let child = self.child.as_mut().expect("a child");
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "{what}: it has ended: {ended:?}");
            assert!(began.elapsed() < PATIENCE, "{what}");
            sleep(Duration::from_millis(5));
        }
    }

    /// What comes back for these bytes.
    fn http(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.http_path()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut answer = Vec::new();
        // A client may be refused before it has sent everything.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    /// Status line and body of a GET.
    fn get(&self, path: &str) -> (String, String) {
        let answer = self.http(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().expect("a line").to_owned(), body.to_owned())
    }

    fn scrape(&self) -> Scrape {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        Scrape::parse(&page)
    }

    /// `fenxi ctl` with these arguments.
    fn ctl(&self, args: &[&str]) -> common::Finished {
        let mut command = common::fenxi(["ctl", "--socket"]);
        command.arg(self.ctl_path()).args(args);
        common::run(command)
    }

    /// Until all packets are through and all threads have ended.
    fn wait_for_the_end(&mut self) {
        self.wait_for("it ends", |served| {
            served.scrape().value("fenxi_state{state=\"draining\"}") == 1.0
        });
    }

    /// Ends it, and gives its summary.
    fn drain(mut self) -> Value {
        self.ctl(&["drain"]).expect_code(0);
        let child = self.child.take().expect("a child");
        let output = child.wait_with_output().expect("a child");
        common::Finished::from_output(output).expect_code(0).json()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A page of metrics: samples by name with labels, as they stand there.
struct Scrape {
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn parse(page: &str) -> Scrape {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (name, value) = line.rsplit_once(' ').expect(line);
            (name.to_owned(), value.parse().expect(line))
        });
        Scrape { samples: samples.collect() }
    }

    #[track_caller]
    fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no {sample}"))
    }

    /// All samples of a metric that have this label, or of all its labels where it is empty.
    fn sum(&self, metric: &str, label: &str) -> f64 {
        let of_metric = self.samples.iter().filter(|(name, _)| {
            let (found, labels) = name.split_once('{').unwrap_or((name, ""));
            found == metric && labels.contains(label)
        });
        of_metric.map(|(_, value)| value).sum()
    }
}
