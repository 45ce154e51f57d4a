//! DPDK's log, taken off the terminal and syslog; the first errors are kept for error messages.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use crate::sys;

/// The first error is the root of later ones; at most [`KEPT`] are kept.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const KEPT: usize = 8;

/// Redirects the log here from the terminal.
pub(crate) fn take_over() {
    // SAFETY: the function has the signature of `cookie_write_function_t` and is static. If the
    // stream cannot be created, the log is not redirected.
    unsafe { sys::fenxi_log_to(Some(write)) };
}

/// Makes DPDK format emergencies only: while packets flow, a driver may log each of them.
pub fn quiet() {
    // SAFETY: sets a number.
    unsafe { sys::rte_log_set_global_level(sys::RTE_LOG_EMERG) };
}

/// The first error since the last call, in one line.
pub fn first_error() -> Option<String> {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    let first = errors.first().cloned();
    errors.clear();
    first
}

/// Keeps a line if it is an error.
unsafe extern "C" fn write(_: *mut c_void, text: *const c_char, length: usize) -> isize {
    // SAFETY: reads a thread-local variable.
    let level = unsafe { sys::rte_log_cur_msg_loglevel() };
    if level > 0 && level <= sys::RTE_LOG_ERR as i32 {
        // SAFETY: the stream passes `length` bytes at `text`, valid for the call.
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
