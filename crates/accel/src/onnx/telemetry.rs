//! Turns off the telemetry client of ONNX Runtime.
//!
//! Official builds for Linux contain one since 1.29. When the runtime's environment is created, the
//! client writes an identifier and a database to the user's cache folder, and ten seconds later it
//! begins to look up its collector. No function of the C API stops it: `with_telemetry(false)`
//! turns off single events of an environment that exists by then. Only the variable [`VARIABLE`]
//! does, which the runtime reads when it creates its environment.
//!
//! A variable can be set soundly only while the process has one thread. Where the library is loaded
//! there are others, so the program's start-up code sets it before `main`. Every program, test and
//! bench that contains this crate is covered, and none can forget it.
#![allow(unsafe_code, reason = "the start of the program, and its environment variables")]

/// Any value but `0` and the empty one turns the client off.
const VARIABLE: &str = "ORT_DISABLE_TELEMETRY";

/// Called by the C library before `main`.
// SAFETY: the section `.init_array` is for pointers to C functions, and this is one. The function
// needs nothing that `main` would set up: the C library has set up the environment variables by
// then, and `set_var` needs no more.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = turn_off;

/// Overrides the user's value: there is no telemetry to ask for.
extern "C" fn turn_off() {
    // SAFETY: the process has no other thread yet, because neither fenxi nor the libraries that it
    // is linked to start one before `main`. That would not hold in a shared library that a running
    // program loads; fenxi is not built as one.
    unsafe { std::env::set_var(VARIABLE, "1") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_before_main() {
        assert_eq!(std::env::var(VARIABLE).as_deref(), Ok("1"));
    }
}
