//! Threads that move packets are made known to DPDK, so that pools keep a cache of free buffers for
//! each of them.

use std::cell::Cell;

use crate::sys;

/// The registration of a thread; ends with it.
struct Registration(Cell<State>);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Unknown,
    Registered,
    /// DPDK has no place for more threads; it works without a cache.
    Refused,
}

thread_local! {
    static REGISTRATION: Registration = const { Registration(Cell::new(State::Unknown)) };
}

/// Makes the calling thread known, once. The environment must run.
#[inline]
pub(crate) fn register() {
    // A thread that is ending has no registration any more, and does without.
    let _ = REGISTRATION.try_with(|it| {
        if it.0.get() == State::Unknown {
            it.register();
        }
    });
}

impl Registration {
    #[cold]
    fn register(&self) {
        // SAFETY: the environment runs. A thread that DPDK knows already stays what it is.
        let code = unsafe { sys::rte_thread_register() };
        self.0.set(match code {
            0 => State::Registered,
            _ => State::Refused,
        });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.0.get() == State::Registered {
            // SAFETY: called on the thread that was registered. It changes memory of the library
            // only, which stays.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
