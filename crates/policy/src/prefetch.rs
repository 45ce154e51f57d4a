//! Prefetches memory.
#![allow(unsafe_code, reason = "prefetch is an instruction")]

/// Prefetches the cache line of an element; does nothing beyond the end.
#[inline(always)]
pub(crate) fn prefetch<T>(all: &[T], at: usize) {
    let Some(element) = all.get(at) else { return };
    prefetch_line(std::ptr::from_ref(element).cast());
}

/// Prefetches all cache lines of an element.
#[inline(always)]
pub(crate) fn prefetch_whole<T>(all: &[T], at: usize) {
    let Some(element) = all.get(at) else { return };
    let start: *const u8 = std::ptr::from_ref(element).cast();
    for offset in (0..size_of::<T>()).step_by(64) {
        prefetch_line(start.wrapping_add(offset));
    }
}

#[inline(always)]
fn prefetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which faults at no address; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) line,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
