//! Files that are not the ONNX Runtime library. They have a test process of their own, because a
//! process that has loaded the real library takes no other.

#![cfg(feature = "ort")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

#[path = "onnx/common.rs"]
mod common;

use std::fs;
use std::path::Path;

use accel::onnx::load;
use common::compiled;

/// Loads a file that is not ONNX Runtime. The message must be one line that names the file and the
/// cure.
fn refusal(path: &Path) -> String {
    let message = load(Some(path)).expect_err("the library is refused").to_string();
    assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
    assert!(message.contains("make onnxruntime") && !message.contains('\n'), "{message}");
    message
}

#[test]
fn a_file_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    let message = refusal(&path);
    let looked_at = format!("not found; looked at {};", path.display());
    assert!(message.contains(&looked_at), "{message}");
}

#[test]
fn a_file_that_is_no_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    fs::write(&path, "not ELF").unwrap();
    for path in [path.as_path(), dir.path()] {
        let message = refusal(path);
        assert!(message.contains("cannot be loaded as ONNX Runtime"), "{message}");
    }
}

#[test]
fn a_fifo_is_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let message = refusal(&path);
    assert!(message.contains("ONNX Runtime: it is not a regular file"), "{message}");
}

#[test]
fn a_library_that_is_not_onnx_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int answer(void) { return 42; }";
    let Some(path) = compiled(
        "a_library_that_is_not_onnx_runtime",
        dir.path().join("libonnxruntime.so"),
        source,
    ) else {
        return;
    };
    let message = refusal(&path);
    assert!(message.contains("does not export OrtGetApiBase"), "{message}");
}

#[test]
fn a_library_that_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        static const char *version(void) { return "1.16.3"; }
        static const void *api(unsigned wanted) { (void)wanted; return 0; }
        static const struct { const void *(*api)(unsigned); const char *(*version)(void); } base = { api, version };
        const void *OrtGetApiBase(void) { return &base; }"#;
    let Some(path) =
        compiled("a_library_that_is_too_old", dir.path().join("libonnxruntime.so"), source)
    else {
        return;
    };
    let message = refusal(&path);
    assert!(message.contains("ONNX Runtime 1.16.3 is too old, 1.22 or later"), "{message}");
}
