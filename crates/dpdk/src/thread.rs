//! Registers threads that move packets with DPDK, so that pools keep a cache of free buffers for
//! each.

use crate::sys;

/// Whether a thread is registered; otherwise DPDK has no room for more threads, and this one works
/// without a cache. Ends with the thread.
struct Registration(bool);

thread_local! {
    // SAFETY: the environment runs. Registering a registered thread has no effect.
    static REGISTRATION: Registration = Registration(unsafe { sys::rte_thread_register() } == 0);
}

/// Registers the calling thread, once. The environment must run.
#[inline]
pub(crate) fn register() {
    // Fails on a thread that is ending, which does without.
    let _ = REGISTRATION.try_with(|_| ());
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: called on the registered thread. It only changes static memory of the
            // library.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}
