//! fenxi opens no file that it was not told to open, and contacts nobody. Neither does ONNX
//! Runtime, whose builds have had a telemetry client since 1.29 (docs/operations.md). strace
//! watches; the home and cache folders stay empty.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::lab::Lab;
use common::live::{Live, generate_on};
use common::{ONNXRUNTIME, demo, fenxi, root, shipped_bundle, skip};
use tempfile::TempDir;

/// The telemetry client looks up its collector some ten seconds after its start.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// How long strace may take to write its last line.
const PATIENCE: Duration = Duration::from_secs(60);

/// System calls that change a folder or what belongs to a file.
const CHANGES: [&str; 16] = [
    "creat",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mknod",
    "mknodat",
    "chmod",
    "fchmodat",
    "truncate",
    "chown",
];

/// A home and a cache folder that must stay empty, and the folders that a program may write to.
struct Watch {
    dir: TempDir,
    told: Vec<PathBuf>,
}

impl Watch {
    /// `None`, said on the terminal, without strace or ONNX Runtime.
    fn new(test: &str) -> Option<Watch> {
        if !common::has_onnxruntime() {
            skip(test, "ONNX Runtime (make onnxruntime)");
            return None;
        }
        if Command::new("strace").arg("--version").output().is_err() {
            skip(test, "the program strace");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for folder in ["home", "cache", "out"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let told = vec![dir.path().join("out")];
        Some(Watch { dir, told })
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn trace(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    /// Sets `launcher` to run `program` under strace, in an environment where the telemetry client
    /// would be on: it is off where it finds the variables of a CI.
    fn put(&self, launcher: &mut Command, program: &Command) {
        launcher.args(["-D", "-f", "-y", "-q", "--seccomp-bpf", "-e"]);
        launcher.arg("trace=%file,%network").arg("-o").arg(self.trace());
        launcher.arg(program.get_program()).args(program.get_args());
        launcher.env_clear().current_dir(root());
        for (name, value) in program.get_envs() {
            if let Some(value) = value {
                launcher.env(name, value);
            }
        }
        launcher.env("PATH", std::env::var_os("PATH").unwrap());
        launcher.env("HOME", self.dir.path().join("home"));
        launcher.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        launcher.env("ORT_DISABLE_TELEMETRY", "0");
    }

    /// Runs a program to its end.
    fn run(&self, program: &Command) -> Seen {
        let mut strace = Command::new("strace");
        self.put(&mut strace, program);
        let child = strace.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        self.seen(pid)
    }

    /// What strace has seen of a program that has ended.
    fn seen(&self, pid: u32) -> Seen {
        let (began, pid) = (Instant::now(), pid.to_string());
        // strace pads short process ids.
        let is_end = |line: &str| line.split_whitespace().take(2).eq([&*pid, "+++"]);
        loop {
            let trace = fs::read_to_string(self.trace()).unwrap();
            // The process ends after its threads.
            if trace.lines().any(is_end) {
                return Seen { trace };
            }
            assert!(began.elapsed() < PATIENCE, "strace does not end");
            sleep(Duration::from_millis(20));
        }
    }

    /// That a program has written to nothing but the folders that it was told, and contacted
    /// nobody.
    fn assert_wrote_and_contacted_nothing_else(&self, seen: &Seen) {
        let contacts = seen.contacts().into_iter();
        let contacts: Vec<_> = contacts.filter(|(peer, _)| !self.is_told(peer)).collect();
        assert!(contacts.is_empty(), "contacts {contacts:?}");
        for folder in ["home", "cache"] {
            let found: Vec<_> = fs::read_dir(self.dir.path().join(folder)).unwrap().collect();
            assert!(found.is_empty(), "{folder}: {found:?}");
        }
        // `/proc/self` holds the names of threads.
        let is_nowhere =
            |path: &Path| path == Path::new("/dev/null") || path.starts_with("/proc/self");
        let written = seen.written().into_iter();
        let written: Vec<_> =
            written.filter(|path| !self.is_told(path) && !is_nowhere(path)).collect();
        assert!(written.is_empty(), "writes {written:?}");
    }

    /// The same, and that it has opened nothing but these files and folders.
    fn assert_opened_nothing_else(&self, seen: &Seen, read: &[PathBuf]) {
        self.assert_wrote_and_contacted_nothing_else(seen);
        let read: Vec<_> = read.iter().map(|path| path.canonicalize().unwrap()).collect();
        let is_read = |path: &Path| read.iter().any(|it| path.starts_with(it));
        let opened = seen.opened().into_iter();
        let opened: Vec<_> = opened
            .filter(|path| !self.is_told(path) && !is_read(path) && !is_system(path))
            .collect();
        assert!(opened.is_empty(), "opens {opened:?}");
    }

    fn is_told(&self, path: &Path) -> bool {
        self.told.iter().any(|folder| path.starts_with(folder))
    }
}

/// Whether the system's loader or C library reads it, or it describes the machine.
fn is_system(path: &Path) -> bool {
    let files = ["/etc/hosts", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"];
    let is_library = || path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
    files.iter().any(|it| path == Path::new(it))
        || ["/proc", "/sys", "/usr/share/zoneinfo"].iter().any(|it| path.starts_with(it))
        || ["/lib", "/usr/lib"].iter().any(|it| path.starts_with(it)) && is_library()
}

/// The lines of strace: `PID call(arguments) = result`, or such a line in two parts.
struct Seen {
    trace: String,
}

impl Seen {
    /// Name and arguments of the calls.
    fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.trace.lines().filter_map(|line| line.split_once(' '));
        lines.filter_map(|(_, call)| call.trim_start().split_once('('))
    }

    /// What it wrote, or tried to.
    fn written(&self) -> Vec<PathBuf> {
        let writes = |(name, arguments): &(&str, &str)| {
            let flags = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"];
            CHANGES.contains(name)
                || name.starts_with("open") && flags.iter().any(|it| arguments.contains(it))
        };
        self.calls().filter(writes).flat_map(|(_, arguments)| paths(arguments)).collect()
    }

    /// The files that it opened.
    fn opened(&self) -> Vec<PathBuf> {
        let opens =
            self.trace.lines().filter(|line| line.contains(" open") || line.contains("<... open"));
        let results = opens.filter_map(|line| line.rsplit_once(" = ")?.1.split_once('<'));
        // A call that the end of the process cut off has the result `? <unavailable>`.
        results
            .filter(|(descriptor, _)| descriptor.parse::<u32>().is_ok())
            .map(|(_, path)| path.trim_end_matches('>').into())
            .collect()
    }

    /// The sockets of others that it named, with the line: a path, or nothing for an address of the
    /// internet.
    fn contacts(&self) -> Vec<(PathBuf, &str)> {
        let address = |line: &str| match line.split_once("sun_path=\"") {
            Some((_, rest)) => rest.split('"').next().map(PathBuf::from),
            None => line.contains("sa_family=AF_INET").then(PathBuf::new),
        };
        self.trace.lines().filter_map(|line| Some((address(line)?, line))).collect()
    }
}

/// The quoted paths of a call; each may follow the folder that it is relative to, in `<>`.
fn paths(arguments: &str) -> Vec<PathBuf> {
    let parts: Vec<&str> = arguments.split('"').collect();
    let pairs = parts.chunks_exact(2);
    pairs
        .map(|pair| {
            let folder = pair[0]
                .rsplit_once('<')
                .map_or("", |(_, rest)| rest.trim_end_matches([',', ' ', '>']));
            root().join(folder).join(pair[1])
        })
        .collect()
}

fn libraries(provider: &str) -> PathBuf {
    root().join("target").join(format!("onnxruntime{provider}"))
}

#[test]
fn a_replay_keeps_to_its_files() {
    let test = "a_replay_keeps_to_its_files";
    let Some(watch) = Watch::new(test) else {
        return;
    };
    let mut replay = fenxi(["replay", "--flows"]);
    replay.arg(watch.out().join("flows.jsonl")).arg(demo());
    replay.arg("--model").arg(shipped_bundle());
    // On the engine, which asks for no library.
    let seen = watch.run(&replay);
    watch.assert_opened_nothing_else(&seen, &[shipped_bundle(), demo()]);
    assert!(!seen.trace.contains("onnxruntime"), "looked for the library");
    let seen = watch.run(replay.args(ONNXRUNTIME));
    assert!(watch.out().join("flows.jsonl").exists());
    watch.assert_opened_nothing_else(&seen, &[libraries(""), shipped_bundle(), demo()]);
}

#[test]
fn a_check_of_a_model_keeps_to_its_files() {
    let test = "a_check_of_a_model_keeps_to_its_files";
    let Some(watch) = Watch::new(test) else {
        return;
    };
    let mut check = fenxi(["model", "check"]);
    check.arg(shipped_bundle());
    let seen = watch.run(&check);
    watch.assert_opened_nothing_else(&seen, &[libraries(""), shipped_bundle()]);
}

/// Tries the device `provider` with a library of its own, or a plug-in.
fn device_keeps_to_its_files(test: &str, provider: &str, options: &[String]) {
    if !libraries(&format!("-{provider}")).exists() {
        return skip(test, "other providers (make providers)");
    }
    let Some(watch) = Watch::new(test) else {
        return;
    };
    // The simulator of QNN has no memory for the tables of the shipped model.
    let mut devices = fenxi(["devices", "--json", "--device", &format!("cpu,{provider}")]);
    devices.arg("--model").arg(common::bundle()).args(options);
    let seen = watch.run(&devices);
    let read = [libraries(""), libraries(&format!("-{provider}")), common::bundle()];
    watch.assert_opened_nothing_else(&seen, &read);
    let library = libraries(&format!("-{provider}")).canonicalize().unwrap();
    assert!(seen.opened().iter().any(|path| path.starts_with(&library)));
}

fn library(provider: &str) -> [String; 2] {
    let file = libraries(provider).join("libonnxruntime.so");
    ["--library".to_owned(), file.display().to_string()]
}

#[test]
fn openvino_keeps_to_its_files() {
    device_keeps_to_its_files("openvino_keeps_to_its_files", "openvino", &library("-openvino"));
}

/// Its provider needs Ascend's libraries; the library is loaded all the same.
#[test]
fn cann_keeps_to_its_files() {
    device_keeps_to_its_files("cann_keeps_to_its_files", "cann", &library("-cann"));
}

#[test]
fn qnn_keeps_to_its_files() {
    let file = |name: &str| libraries("-qnn").join(name).display().to_string();
    let sets = [
        "device.qnn.provider=\"qnn\"".to_owned(),
        format!("device.qnn.plugin=\"{}\"", file("libonnxruntime_providers_qnn.so")),
        format!("device.qnn.options={{ backend_path = \"{}\" }}", file("libQnnHtp.so")),
    ];
    let options = sets.map(|set| ["--set".to_owned(), set]).concat();
    device_keeps_to_its_files("qnn_keeps_to_its_files", "qnn", &options);
}

/// The script that tests compare labels with imports Python's `onnxruntime`.
#[test]
fn the_script_that_checks_labels_keeps_to_its_files() {
    let test = "the_script_that_checks_labels_keeps_to_its_files";
    let python = root().join("target/venv/bin/python");
    if !python.exists() {
        return skip(test, "target/venv (make target/venv)");
    }
    let Some(watch) = Watch::new(test) else {
        return;
    };
    let flows = watch.out().join("flows.jsonl");
    // It holds confidences against ONNX Runtime's.
    let mut replay = fenxi(["replay", "--series", "--flows"]);
    replay.arg(&flows).arg(demo()).arg("--model").arg(shipped_bundle()).args(ONNXRUNTIME);
    common::run(replay).expect_code(0);
    let mut check = Command::new(python);
    check.arg("-B").arg(root().join("scripts/test/check_labels.py"));
    check.arg(shipped_bundle()).arg(flows);
    let seen = watch.run(&check);
    watch.assert_wrote_and_contacted_nothing_else(&seen);
}

/// Long enough for the telemetry client to ask for its collector.
#[test]
fn a_run_keeps_to_its_files_and_contacts_nobody() {
    let test = "a_run_keeps_to_its_files_and_contacts_nobody";
    let Some(mut watch) = Watch::new(test) else {
        return;
    };
    let Some(lab) = Lab::new("offline", &["host"], &["strace"]) else {
        return;
    };
    lab.wire_within("host", "a", "b");
    let flows = watch.out().join("flows.jsonl");
    let mut command = lab.command("host", "strace");
    watch.put(&mut command, &fenxi::<&str>([]));
    let args = [
        "--set",
        "io.interfaces=[\"b\"]",
        "--set",
        "flow.idle_timeout_s=1",
        "--set",
        &format!("records.path={}", flows.display()),
        "--set",
        &format!("observe.folder={}", flows.with_file_name("services").display()),
        "--model",
        shipped_bundle().to_str().unwrap(),
    ]
    .map(str::to_owned);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let live = Live::launch(command, &args);
    let mut traffic = generate_on(&lab, "host");
    traffic.args([
        "--interface",
        "a",
        "--json",
        "--flows-per-s",
        "1000",
        "--flows",
        "200",
        "--pps",
        "20000",
    ]);
    common::run(traffic).expect_code(0);
    live.wait_for("flows get labels", |live| {
        live.samples_with("fenxi_series_total", "inferred")[0] > 0.0
    });
    sleep(LONG_ENOUGH);
    let pid = live.pid();
    watch.told.push(live.socket().parent().unwrap().to_owned());
    live.terminate(0);
    let seen = watch.seen(pid);
    // Landlock is told the program, which a new model is tried in.
    let read = [libraries(""), shipped_bundle(), common::programs::fenxi()];
    watch.assert_opened_nothing_else(&seen, &read);
}
