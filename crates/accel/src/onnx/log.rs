//! Why ONNX Runtime failed, in one line.
//!
//! Some providers tell the caller only that they failed, and the log why: OpenVINO, asked for a GPU that is not there,
//! returns "Failed to load provider" and logs "Device GPU is not available". So the runtime's log is not printed; its
//! errors are kept for the call that failed. They are kept by thread, because several devices may be made at the same time
//! and a provider logs on the thread that makes it.

use std::cell::RefCell;
use std::sync::Arc;

use ort::logging::{LogLevel, LoggerFunction};

thread_local! {
    /// The first error logged on this thread since it was last asked; later ones mostly follow from it.
    static LOGGED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What the runtime's environment logs to.
pub(super) fn logger() -> LoggerFunction {
    Arc::new(
        |level: LogLevel, _: &str, _: &str, _: &str, message: &str| {
            if level >= LogLevel::Error {
                LOGGED.with_borrow_mut(|logged| {
                    logged.get_or_insert_with(|| message.to_owned());
                });
            }
        },
    )
}

/// The result of `work`, whose error gets the reason that was logged meanwhile.
pub(super) fn explained<T>(work: impl FnOnce() -> ort::Result<T>) -> Result<T, String> {
    LOGGED.take();
    work().map_err(|error| with_logged(error.message()))
}

/// What the runtime returned, and what it logged where that says more.
fn with_logged(returned: &str) -> String {
    let returned = reason(returned);
    match LOGGED.take().map(|logged| reason(&logged)) {
        Some(logged) if !logged.contains(&returned) && !returned.contains(&logged) => {
            format!("{returned}: {logged}")
        }
        _ => returned,
    }
}

/// The last cause in a message of the runtime, which puts the place in its source code before each, such as
/// `/a/b.cc:141 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library`.
fn reason(message: &str) -> String {
    let message = one_line(message);
    // Its own words blame the user for what this crate asks of every session.
    if message.contains("fallback to CPU EP has been explicitly disabled") {
        return "some of the model would be left to the CPU".to_owned();
    }
    let cause = match message.rsplit_once("[ONNXRuntimeError] : ") {
        // After it come number and name of the error.
        Some((_, status)) => status.splitn(3, " : ").last().unwrap_or(status),
        None => &message,
    };
    let is_place = |word: &str| word.starts_with('/') && word.contains(".cc:");
    match cause.split_once(' ') {
        Some((place, rest)) if is_place(place) => rest.to_owned(),
        _ => cause.to_owned(),
    }
}

/// A message of the runtime, whose line breaks would tear a log.
pub(super) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(returned: &str, logged: Option<&str>) -> String {
        if let Some(logged) = logged {
            logger()(LogLevel::Warning, "", "", "", "no error");
            logger()(LogLevel::Error, "", "", "", logged);
            logger()(LogLevel::Error, "", "", "", "what followed");
        }
        with_logged(returned)
    }

    #[test]
    fn the_cause_is_told_without_the_place_in_the_source() {
        assert_eq!(
            failed(
                "/a/b.cc:9 X& Get() [ONNXRuntimeError] : 1 : FAIL : library : gone\n",
                None
            ),
            "library : gone"
        );
        assert_eq!(
            failed("/a/b.cc:9 f() no\nsuch key", None),
            "f() no such key"
        );
        assert_eq!(failed("Device is busy", None), "Device is busy");
    }

    #[test]
    fn what_was_only_logged_is_told_too() {
        assert_eq!(failed("failed", Some("/a/b.cc:9 no GPU")), "failed: no GPU");
        assert_eq!(failed("no GPU", Some("/a/b.cc:9 no GPU")), "no GPU");
        assert_eq!(
            failed("failed", None),
            "failed",
            "an earlier log is forgotten"
        );
    }
}
