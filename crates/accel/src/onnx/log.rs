//! Finds out why ONNX Runtime failed, in one line.
//!
//! Some providers return only that they failed, and log the reason. For example OpenVINO, asked for
//! a GPU that does not exist, returns "Failed to load provider" and logs "Device GPU is not
//! available". So the runtime's log is not printed; its errors are kept for the call that failed.
//! They are kept per thread, because several devices may be opened at the same time, and a provider
//! logs on the thread that opens it.

use std::cell::RefCell;
use std::sync::Arc;

use ort::logging::{LogLevel, LoggerFunction};

thread_local! {
    /// The first error logged on this thread since it was last taken. Later errors mostly follow
    /// from it.
    static LOGGED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The logger of the runtime's environment.
pub(super) fn logger() -> LoggerFunction {
    Arc::new(|level: LogLevel, _: &str, _: &str, _: &str, message: &str| {
        if level >= LogLevel::Error {
            LOGGED.with_borrow_mut(|logged| {
                logged.get_or_insert_with(|| message.to_owned());
            });
        }
    })
}

/// Runs `work`, and adds to its error the reason that was logged meanwhile.
pub(super) fn explained<T>(work: impl FnOnce() -> ort::Result<T>) -> Result<T, String> {
    LOGGED.take();
    work().map_err(|error| with_logged(error.message()))
}

/// Combines what the runtime returned with what it logged, if that says more.
fn with_logged(returned: &str) -> String {
    let returned = reason(returned);
    match LOGGED.take().map(|logged| reason(&logged)) {
        Some(logged) if !logged.contains(&returned) && !returned.contains(&logged) => {
            format!("{returned}: {logged}")
        }
        _ => returned,
    }
}

/// The last cause in a message of the runtime, which writes the place in its source code before
/// each cause, such as `/a/b.cc:141 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library`.
fn reason(message: &str) -> String {
    let message = one_line(message);
    // The runtime's own text blames the user for an option that this crate sets in every session.
    if message.contains("fallback to CPU EP has been explicitly disabled") {
        return "some of the model would be left to the CPU".to_owned();
    }
    let cause = match message.rsplit_once("[ONNXRuntimeError] : ") {
        // The error's number and name follow.
        Some((_, status)) => status.splitn(3, " : ").last().unwrap_or(status),
        None => &message,
    };
    let is_place = |word: &str| word.starts_with('/') && word.contains(".cc:");
    match cause.split_once(' ') {
        Some((place, rest)) if is_place(place) => rest.to_owned(),
        _ => cause.to_owned(),
    }
}

/// A message of the runtime on one line.
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
            failed("/a/b.cc:9 X& Get() [ONNXRuntimeError] : 1 : FAIL : library : gone\n", None),
            "library : gone"
        );
        assert_eq!(failed("/a/b.cc:9 f() no\nsuch key", None), "f() no such key");
        assert_eq!(failed("Device is busy", None), "Device is busy");
    }

    #[test]
    fn what_was_only_logged_is_told_too() {
        assert_eq!(failed("failed", Some("/a/b.cc:9 no GPU")), "failed: no GPU");
        assert_eq!(failed("no GPU", Some("/a/b.cc:9 no GPU")), "no GPU");
        assert_eq!(failed("failed", None), "failed", "an earlier log is forgotten");
    }
}
