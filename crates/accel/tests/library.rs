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

use accel::onnx::{LibraryError, load};
use common::compiled;

/// Loads a file that is not ONNX Runtime. The message must be one line that names the file and the
/// cure.
fn refusal(path: &Path) -> LibraryError {
    let error = load(Some(path)).expect_err("the library is refused");
    let message = error.to_string();
    assert!(message.contains(path.file_name().unwrap().to_str().unwrap()), "{message}");
    assert!(message.contains("make onnxruntime") && !message.contains('\n'), "{message}");
    error
}

#[test]
fn a_file_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    match refusal(&path) {
        LibraryError::Missing { looked_at } => assert_eq!(looked_at, [path.display().to_string()]),
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_that_is_no_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    fs::write(&path, "not ELF").unwrap();
    assert!(matches!(refusal(&path), LibraryError::Unloadable { .. }));
    assert!(matches!(refusal(dir.path()), LibraryError::Unloadable { .. }));
}

#[test]
fn a_fifo_is_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libonnxruntime.so");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    match refusal(&path) {
        LibraryError::Unloadable { cause, .. } => {
            assert!(cause.contains("not a regular file"), "{cause}")
        }
        other => panic!("{other}"),
    }
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
    match refusal(&path) {
        LibraryError::Unloadable { cause, .. } => {
            assert!(cause.contains("OrtGetApiBase"), "{cause}")
        }
        other => panic!("{other}"),
    }
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
    let error = refusal(&path);
    assert!(matches!(&error, LibraryError::TooOld { found, .. } if found == "1.16.3"), "{error}");
    assert!(error.to_string().contains("1.22 or later"), "{error}");
}
