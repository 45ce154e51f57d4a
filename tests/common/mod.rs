//! What the end-to-end tests share: the real programs, where things lie, and how a
//! test says that it was skipped.
#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

pub mod lab;
pub mod live;
pub mod onnx;
pub mod packets;
pub mod programs;
pub mod store;

pub use lab::skip;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `fenxi`, with nothing in its environment that configures it.
pub fn fenxi<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    program(programs::fenxi(), args)
}

/// `fenxi-lab`, in the same environment.
pub fn fenxi_lab<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    program(programs::fenxi_lab(), args)
}

fn program<I: AsRef<OsStr>>(path: PathBuf, args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(path);
    command.args(args).current_dir(root());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FENXI_") {
            command.env_remove(name);
        }
    }
    // Nor does a service's configuration on this machine.
    command.env("FENXI_CONFIG", "");
    // The binary may be built outside target/, where it would find its library.
    let library = root().join("target/onnxruntime/libonnxruntime.so");
    command.env("FENXI_ONNXRUNTIME", library);
    command
}

/// Runs to the end with empty standard input.
pub fn run(mut command: Command) -> Finished {
    let output = command.stdin(Stdio::null()).output().expect("fenxi starts");
    Finished::from_output(output)
}

/// Receives again where a signal, a stop or a debugger ended the wait: the kernel does not restart
/// a wait that has a timeout by itself (signal(7)).
pub fn uninterrupted<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// What a run left behind.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn from_output(output: Output) -> Finished {
        Finished {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// The JSON object on standard output.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {}\n{}", self.stdout, self.stderr))
    }

    /// Panics with what was said unless the exit code is `code`.
    pub fn expect_code(self, code: i32) -> Finished {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// The lines of a JSON Lines file.
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("records are there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The shipped capture.
pub fn demo() -> PathBuf {
    root().join("demo/office.pcap")
}

/// Packets of the shipped capture.
pub fn demo_packets() -> usize {
    packets::record_offsets(&std::fs::read(demo()).expect("the capture is there")).len()
}

/// A folder of the shared captures, if they are there.
pub fn shared(folder: &str) -> Option<PathBuf> {
    let path = root().join("../shared/data").join(folder);
    path.exists().then_some(path)
}

/// Whether ONNX Runtime was fetched.
pub fn has_onnxruntime() -> bool {
    root().join("target/onnxruntime/libonnxruntime.so").exists()
}

/// For tests of ONNX Runtime: without it, the shipped models run on fenxi's own engine.
pub const ONNXRUNTIME: [&str; 2] = ["--set", "accel.devices=[\"cpu\"]"];

/// For runs where labels matter and the model does not: the device that answers a fixed function of
/// the series, and needs no library.
pub const SIMULATED: [&str; 2] = ["--set", "accel.devices=[\"simulated\"]"];

/// The shipped bundle, which runs without `--model`.
pub fn shipped_bundle() -> PathBuf {
    root().join("models/protocol")
}

/// A bundle that is asked once about a flow, after ten packets; for tests that count series.
pub fn bundle() -> PathBuf {
    root().join("models/app-id-k10")
}

/// `fenxi` with [`bundle`] for its model.
pub fn fenxi_asking_once<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = fenxi(args);
    command.env("FENXI_MODEL_PATH", bundle());
    command
}

/// Its int8 form.
pub fn int8_bundle() -> PathBuf {
    root().join("models/app-id-k10-int8")
}

/// Copies what a bundle needs into a new folder.
pub fn copy_bundle(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("golden")).expect("a folder");
    for file in ["model.toml", "model.onnx", "golden/inputs.csv", "golden/outputs.csv"] {
        std::fs::copy(from.join(file), to.join(file)).expect("a file of the bundle");
    }
    if from.join("ranges.csv").exists() {
        std::fs::copy(from.join("ranges.csv"), to.join("ranges.csv")).expect("a file of ranges");
    }
}

/// A copy of a bundle in `dir` that says it was trained for flows that begin mid-stream.
pub fn trained_midstream(bundle: &Path, dir: &Path) -> PathBuf {
    let copy = dir.join("trained-midstream");
    copy_bundle(bundle, &copy);
    let manifest = std::fs::read_to_string(bundle.join("model.toml")).expect("a manifest");
    let changed = manifest.replacen("\nk = ", "\nmidstream = true\nk = ", 1);
    assert_ne!(changed, manifest);
    std::fs::write(copy.join("model.toml"), changed).expect("a manifest");
    copy
}

/// A copy of [`bundle`] in `dir` that asks for host labels.
pub fn naming_hosts(dir: &Path) -> PathBuf {
    let table = "\n[hosts]\nflows = 20\nmin_flows = 2\nconfidence = 0.5\n";
    let copy = dir.join("naming-hosts");
    copy_bundle(&bundle(), &copy);
    let manifest = std::fs::read_to_string(bundle().join("model.toml")).expect("a manifest");
    std::fs::write(copy.join("model.toml"), manifest + table).expect("a manifest");
    copy
}

/// Labels of a bundle, in the order of its outputs.
pub fn labels(bundle: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(bundle.join("model.toml")).expect("a manifest");
    let manifest: toml::Table = text.parse().expect("TOML");
    let labels = manifest["labels"].as_array().expect("labels");
    labels.iter().map(|label| label["name"].as_str().expect("a name").to_owned()).collect()
}

/// Those that name a flow: all but `unknown`.
pub fn names(bundle: &Path) -> Vec<String> {
    let labels = labels(bundle).into_iter();
    labels.filter(|label| label != "unknown").collect()
}

/// Sum over an object of counts.
pub fn sum(counts: &Value) -> u64 {
    let counts = counts.as_object().expect("an object");
    counts.values().map(|count| count.as_u64().expect("a count")).sum()
}

/// That `promtool check metrics` has nothing to say of a page.
pub fn assert_promtool_is_content(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool starts");
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
