//! Registers threads that move packets with DPDK, so that pools keep a cache of free buffers for
//! each.

use std::cell::Cell;

use crate::sys;

/// A thread's registration; ends with the thread.
struct Registration(Cell<State>);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Unknown,
    Registered,
    /// DPDK has no room for more threads; works without a cache.
    Refused,
}

thread_local! {
    static REGISTRATION: Registration = const { Registration(Cell::new(State::Unknown)) };
}

/// Registers the calling thread, once. The environment must run.
#[inline]
pub(crate) fn register() {
    // Fails on a thread that is ending, which does without.
    let _ = REGISTRATION.try_with(|it| {
        if it.0.get() == State::Unknown {
            it.register();
        }
    });
}

impl Registration {
    #[cold]
    fn register(&self) {
        // SAFETY: the environment runs. Registering a registered thread has no effect.
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
            // SAFETY: called on the registered thread. It only changes static memory of the
            // library.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
