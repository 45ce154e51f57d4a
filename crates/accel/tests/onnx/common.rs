//! Shared by the tests of devices: where the libraries are, how a test says that it was skipped,
//! and running one batch on a device.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use accel::onnx::{Library, OnnxDevice, load};
use accel::{Bundle, Classification, Device, DeviceError, DeviceSpec, Provider, Sizes};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file under `target/`. If it does not exist, says so and returns none, or fails where
/// `FENXI_REQUIRE_ALL=1`.
pub fn fetched(test: &str, file: &str, command: &str) -> Option<PathBuf> {
    let path = root().join("target").join(file);
    if path.exists() {
        return Some(path);
    }
    missing(test, &format!("target/{file} ({command})"));
    None
}

/// Compiles `source` to the shared library `file`. Without a C compiler, says so and returns none,
/// or fails where `FENXI_REQUIRE_ALL=1`.
pub fn compiled(test: &str, file: PathBuf, source: &str) -> Option<PathBuf> {
    let from = file.with_extension("c");
    std::fs::write(&from, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&file, &from]).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(file);
    }
    missing(test, "a C compiler (cc)");
    None
}

/// Says that a test is skipped, or fails it where nothing may be skipped.
fn missing(test: &str, what: &str) {
    let all = std::env::var("FENXI_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!all, "{test} needs {what}");
    skipped(test, &format!("needs {what}"));
}

/// Written past the output capture of the test harness, so that a skipped test is noticed.
pub fn skipped(test: &str, why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "SKIPPED {test}: {why}").unwrap();
}

/// The plain library.
pub fn library(test: &str) -> Option<Library> {
    let path = fetched(test, "onnxruntime/libonnxruntime.so", "make onnxruntime")?;
    Some(load(Some(&path)).unwrap())
}

/// The library with a provider.
pub fn library_with(test: &str, provider: &str) -> Option<Library> {
    let path = fetched(
        test,
        &format!("onnxruntime-{provider}/libonnxruntime.so"),
        &format!("scripts/onnxruntime/fetch --provider {provider}"),
    )?;
    Some(load(Some(&path)).unwrap())
}

/// The shipped bundle.
pub fn shipped() -> Bundle {
    Bundle::open(&root().join("models/app-id-k10")).unwrap()
}

/// The folder, in the repository, of a bundle whose model has two inputs and a column for
/// "unknown".
pub const WITH_CONTEXT: &str = "tests/bundles/context-k5";

/// The bundle in [`WITH_CONTEXT`].
pub fn with_context() -> Bundle {
    Bundle::open(&root().join(WITH_CONTEXT)).unwrap()
}

/// Batches of any size up to `cap`.
pub fn any(cap: usize) -> Sizes {
    Sizes::Any { cap }
}

/// A device called "mine" on a provider.
pub fn mine(bundle: &Bundle, provider: &str, sizes: Sizes) -> DeviceSpec {
    DeviceSpec {
        name: "mine".to_owned(),
        provider: Provider::parse(provider).unwrap(),
        ..DeviceSpec::cpu(bundle, sizes)
    }
}

/// The message with which a device is refused, which is one line.
pub fn refused(library: &Library, bundle: &Bundle, spec: DeviceSpec) -> String {
    let error = OnnxDevice::new(library, bundle, spec).err().expect("the device is refused");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message:?} is one line");
    message
}

/// Results and probabilities of `rows` in one batch.
pub fn run(
    device: &mut OnnxDevice,
    rows: &[Vec<f32>],
) -> Result<(Vec<Classification>, Vec<f32>), DeviceError> {
    let flat: Vec<f32> = rows.concat();
    device.input(rows.len()).copy_from_slice(&flat);
    device.submit(rows.len())?;
    assert!(!device.is_idle());
    let results = device.poll().expect("the work was done in submit")?.to_vec();
    assert!(device.is_idle() && device.poll().is_none());
    Ok((results, device.probabilities().to_vec()))
}

#[track_caller]
pub fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message:?}");
    }
}
