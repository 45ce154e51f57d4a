//! The environment abstraction layer: DPDK's arguments, memory and devices. It can be started once
//! per process.

use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::error::{Error, ErrorKind};
use crate::{log, stdio, sys};

/// The running environment. Ports hold it; when the last holder is dropped, DPDK releases memory
/// and devices.
#[derive(Debug)]
pub struct Eal(());

/// The environment, once it was started.
static STARTED: Mutex<Option<Weak<Eal>>> = Mutex::new(None);

/// Without huge pages.
const NO_HUGE: &str = "--no-huge";

/// Arguments before the user's: leave nothing in the file system, allow no process to attach.
fn ours(args: &[String]) -> [&'static str; 3] {
    let private = match args.iter().any(|arg| arg == NO_HUGE) {
        true => "--no-shconf", // `--in-memory` without huge pages, which excludes `NO_HUGE`
        false => "--in-memory",
    };
    ["fenxi", private, "--no-telemetry"]
}

impl Eal {
    /// Starts DPDK with these arguments (as of any DPDK program, without the program's name). If it
    /// runs already, returns the running one with its arguments.
    ///
    /// # Errors
    /// An argument is wrong, there are no huge pages, … Each is one line; nothing is printed. A
    /// process cannot try again.
    pub fn start(args: &[String]) -> Result<Arc<Eal>, Error> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(eal) = &*started {
            return eal.upgrade().ok_or_else(|| {
                Error::new(ErrorKind::Refused, "DPDK cannot be started twice in one process")
            });
        }
        check(args)?;
        *started = Some(Weak::new());
        init(args)?;
        let eal = Arc::new(Eal(()));
        *started = Some(Arc::downgrade(&eal));
        Ok(eal)
    }

    /// The names of all devices.
    pub fn devices(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut port = 0;
        loop {
            // SAFETY: the environment runs; returns `RTE_MAX_ETHPORTS` at the end.
            port = unsafe { sys::rte_eth_find_next(port) };
            if u32::from(port) >= sys::RTE_MAX_ETHPORTS {
                return names;
            }
            let mut name: [c_char; sys::RTE_ETH_NAME_MAX_LEN as usize] =
                [0; sys::RTE_ETH_NAME_MAX_LEN as usize];
            // SAFETY: the buffer has the required size.
            if unsafe { sys::rte_eth_dev_get_name_by_port(port, name.as_mut_ptr()) } == 0 {
                let bytes = name.iter().take_while(|byte| **byte != 0);
                let bytes: Vec<u8> = bytes.map(|byte| *byte as u8).collect();
                names.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            port += 1;
        }
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        // SAFETY: ports, queues and lent packets hold the environment, so none is left.
        unsafe { sys::rte_eal_cleanup() };
    }
}

/// Refuses arguments that would end the process or print usage.
fn check(args: &[String]) -> Result<(), Error> {
    for arg in args {
        let refused = |why: &str| {
            let line = format!("argument {arg:?} of DPDK: {why}");
            Err(Error::new(ErrorKind::Setting, line))
        };
        match arg.as_str() {
            "-h" | "--help" | "-v" => return refused("only prints; leave it out"),
            "--" => return refused("ends the arguments of DPDK; leave it out"),
            _ if arg.contains('\0') => return refused("has a zero byte"),
            _ if arg.contains("--proc-type") => return refused("fenxi is a process of its own"),
            _ => {}
        }
    }
    Ok(())
}

fn init(args: &[String]) -> Result<(), Error> {
    // Starting pins the thread to DPDK's main core, and every core given to DPDK gets a thread.
    let affinity = sched_getaffinity(None).ok();
    let mut all: Vec<String> = ours(args).into_iter().map(str::to_owned).collect();
    let names_cores = |arg: &String| {
        ["-l", "-c", "--lcores"].iter().any(|option| arg.starts_with(option)) || arg == "-S"
    };
    if !args.iter().any(names_cores)
        && let Some(core) = affinity.and_then(|set| (0..1024).find(|core| set.is_set(*core)))
    {
        all.extend(["-l".to_owned(), core.to_string()]);
    }
    all.extend(args.iter().cloned());
    let strings: Vec<CString> = all.into_iter().flat_map(CString::new).collect();
    // DPDK keeps pointers to its arguments and reorders them.
    let strings = Vec::leak(strings);
    let mut pointers: Vec<*mut c_char> =
        strings.iter().map(|text| text.as_ptr().cast_mut()).collect();
    let count = pointers.len() as i32;
    pointers.push(std::ptr::null_mut());
    log::take_over();
    let held = stdio::Held::new();
    // SAFETY: the vector has `count` pointers to strings and a null behind them; vector and strings
    // are never freed.
    let code = unsafe { sys::rte_eal_init(count, Vec::leak(pointers).as_mut_ptr()) };
    let printed = held.and_then(stdio::Held::release);
    if let Some(affinity) = affinity {
        let _ = sched_setaffinity(None, &affinity);
    }
    match code {
        0.. => Ok(()),
        _ => Err(explain(printed)),
    }
}

/// Why DPDK does not start, by what it printed and logged.
fn explain(printed: Option<String>) -> Error {
    if let Some(printed) = printed {
        return Error::new(ErrorKind::Setting, format!("an argument of DPDK: {printed}"));
    }
    let error = Error::last("DPDK does not start");
    let line = error.to_string();
    // Without huge pages it reports a lack of permission.
    match line.contains("hugepage") {
        true => Error::new(ErrorKind::Memory, line),
        false => error,
    }
}
