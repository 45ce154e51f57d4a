//! DPDK's log: taken from the terminal and from syslog; the first errors are kept until an error's
//! message takes them.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use crate::sys;

/// The first error comes first, as the root of those behind it; more are not kept.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const KEPT: usize = 8;

/// Sends the log here instead of to the terminal.
pub(crate) fn take_over() {
    // SAFETY: the function has the signature of `cookie_write_function_t` and stays. If the stream
    // cannot be made, the log stays where it is.
    unsafe { sys::fenxi_log_to(Some(write)) };
}

/// Has DPDK format no more lines but those of emergencies: once packets flow, a driver may log each
/// of them.
pub(crate) fn quiet() {
    // SAFETY: sets a number.
    unsafe { sys::rte_log_set_global_level(sys::RTE_LOG_EMERG) };
}

/// The first error since the last call, in one line.
pub(crate) fn first_error() -> Option<String> {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    let first = errors.first().cloned();
    errors.clear();
    first
}

/// Keeps a line if it is an error.
unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, length: usize) -> isize {
    // SAFETY: reads a variable of this thread.
    let level = unsafe { sys::rte_log_cur_msg_loglevel() };
    if level > 0 && level <= sys::RTE_LOG_ERR as i32 {
        // SAFETY: the stream hands over `length` bytes at `text`, which stay for the call.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
        keep(&String::from_utf8_lossy(bytes));
    }
    length as isize
}

fn keep(text: &str) {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if errors.len() < KEPT {
            errors.push(line.to_owned());
        }
    }
}
