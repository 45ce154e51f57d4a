//! The ONNX Runtime library missing, too old or no such library: the message says what was looked
//! for, where, and the command that gets it; the exit code is 69.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::assert_refused;
use crate::common::{ONNXRUNTIME, bundle, demo, fenxi, run, skip};

const CURE: &str = "make onnxruntime`";

/// Both commands that need the library, which is `library` by the environment.
#[track_caller]
fn assert_unusable(library: &Path, parts: &[&str]) {
    let parts = [&[CURE, library.to_str().unwrap()], parts].concat();
    let (demo, bundle) = (demo(), bundle());
    let replay = [&["replay", demo.to_str().unwrap()], &ONNXRUNTIME[..]].concat();
    for args in [&replay[..], &["model", "check", bundle.to_str().unwrap()]] {
        let mut command = fenxi(args);
        command.env("FENXI_ONNXRUNTIME", library);
        assert_refused(run(command), 69, &parts);
    }
}

#[test]
fn a_library_that_was_named_and_is_not_there() {
    let missing = Path::new("/nowhere/libonnxruntime.so");
    assert_unusable(
        missing,
        &[
            "ONNX Runtime (libonnxruntime.so) not found; looked at /nowhere",
            "(named by FENXI_ONNXRUNTIME)",
        ],
    );
    let mut command = fenxi(["replay", "--set", "accel.library=/nowhere/x.so"]);
    command.arg(demo()).args(ONNXRUNTIME);
    assert_refused(run(command), 69, &["looked at /nowhere/x.so;", CURE]);
}

#[test]
fn a_library_that_nobody_named() {
    let test = "a_library_that_nobody_named";
    let installed = ["/usr/lib/fenxi", "/usr/local/lib/fenxi"];
    if installed.iter().any(|dir| Path::new(dir).join("libonnxruntime.so").exists()) {
        return skip(test, "a machine without an installed ONNX Runtime");
    }
    // The program alone in a folder has no library beside it.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin/fenxi");
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_fenxi"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["replay".as_ref(), demo().as_os_str(), "--model".as_ref(), bundle().as_os_str()]);
    command.args(ONNXRUNTIME);
    for variable in ["FENXI_ONNXRUNTIME", "ORT_DYLIB_PATH"] {
        command.env_remove(variable);
    }
    let parts = [
        "bin/libonnxruntime.so",
        "onnxruntime/libonnxruntime.so",
        installed[0],
        installed[1],
        CURE,
    ];
    assert_refused(run(command), 69, &parts);
}

/// A shared library made of `source`, where there is a C compiler.
fn compiled(dir: &Path, source: &str) -> Option<PathBuf> {
    let (from, to) = (dir.join("stub.c"), dir.join("libonnxruntime.so"));
    fs::write(&from, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).args([&to, &from]);
    cc.status().is_ok_and(|status| status.success()).then_some(to)
}

#[test]
fn a_file_that_is_no_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    fs::write(&path, "not a library").unwrap();
    assert_unusable(&path, &["cannot be loaded as ONNX Runtime: "]);
}

#[test]
fn a_library_of_something_else_or_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = compiled(dir.path(), "int answer(void) { return 42; }") else {
        return skip("a_library_of_something_else_or_too_old", "a C compiler (cc)");
    };
    assert_unusable(&path, &["does not export OrtGetApiBase"]);
    let old = r#"
        static const char *version(void) { return "1.16.3"; }
        static const void *api(unsigned wanted) { (void)wanted; return 0; }
        static const struct { const void *(*api)(unsigned); const char *(*version)(void); } base = { api, version };
        const void *OrtGetApiBase(void) { return &base; }"#;
    let path = compiled(dir.path(), old).expect("cc compiled before");
    assert_unusable(&path, &["ONNX Runtime 1.16.3 is too old, 1.22 or later is needed"]);
}
