//! Prefetches cache lines.
//!
//! The walk of a packet touches two lines at random places, and each costs a trip to memory.
//! Prefetched one burst stage ahead, the trips of a whole burst overlap.
#![allow(unsafe_code, reason = "the prefetch instruction is an intrinsic")]

/// Prefetches the line of `array[at]`, to be written soon. Outside the array, as in an empty one,
/// it only costs a walk through the page tables. On processors other than x86-64 it does nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(array: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = array.as_ptr().wrapping_add(at);
        // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (array, at);
}

/// Prefetches the first and the last element of a flow in an array of `each` elements per flow.
#[inline(always)]
pub(crate) fn prefetch_all<T>(array: &[T], index: u32, each: usize) {
    if each == 0 {
        return;
    }
    let at = index as usize * each;
    prefetch(array, at);
    if each > 1 {
        prefetch(array, at + each - 1);
    }
}
