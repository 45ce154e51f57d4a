//! Arrays allocated once, at start, as zeroed memory, on huge pages if possible.
//!
//! A random access to a table of a gigabyte nearly always misses the TLB; with pages of 2 MiB it
//! rarely does. So a large array is requested in this order: explicit huge pages, if the system
//! keeps a pool of them; transparent ones, if it gives them on request; plain pages. The kernel
//! hands pages out when they are first touched: a table for millions of flows starts at once, and
//! an unused part costs nothing.
//!
//! One of the modules of this crate with `unsafe`; the others are `entry`, `prefetch`, `table`
//! and `tags`.
#![allow(unsafe_code, reason = "memory from the kernel")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size of a huge page.
const HUGE: usize = 2 << 20;

/// The size from which an array is worth huge pages. They are taken whole: with them, the first
/// flows of a small table, which has some ten arrays, would take as much memory as a full one.
const HUGE_FROM: usize = 8 * HUGE;

/// Types for which all-zero bytes are a valid value and that need no drop.
///
/// # Safety
/// All-zero bytes must be a valid value of the type, and dropping it must do nothing.
pub(crate) unsafe trait Zeroed {}

// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u8 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u16 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u32 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u64 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for i64 {}

/// The pages under an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pages {
    /// The system's usual pages, or an array too small for a huge one.
    Plain,
    /// Transparent huge pages, requested; the kernel gives them as it can.
    Transparent,
    /// Huge pages out of the system's pool.
    Huge,
}

impl Pages {
    /// The name in logs and summaries.
    pub const fn name(self) -> &'static str {
        match self {
            Pages::Plain => "plain",
            Pages::Transparent => "transparent_huge",
            Pages::Huge => "huge",
        }
    }
}

/// A fixed number of elements, zeroed at first.
pub(crate) struct Array<T: Zeroed> {
    start: NonNull<T>,
    length: usize,
    /// Bytes mapped; 0 for an empty array, which maps nothing.
    mapped: usize,
    pages: Pages,
}

// SAFETY: an array owns its elements like a boxed slice does.
unsafe impl<T: Zeroed + Send> Send for Array<T> {}
// SAFETY: as above; a shared array gives shared references only.
unsafe impl<T: Zeroed + Sync> Sync for Array<T> {}

impl<T: Zeroed> Array<T> {
    /// `length` zeroed elements.
    ///
    /// # Errors
    /// The system has not that much memory to give.
    pub fn new(length: usize) -> io::Result<Array<T>> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= 4096) };
        let bytes = length.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            let (start, mapped, pages) = (NonNull::dangling(), 0, Pages::Plain);
            return Ok(Array { start, length, mapped, pages });
        }
        let (start, mapped, pages) = map(bytes)?;
        Ok(Array { start: start.cast(), length, mapped, pages })
    }
}

impl<T: Zeroed> Array<T> {
    /// Has the kernel hand out all pages now, so that no first use has to wait for one; where it
    /// cannot (Linux before 5.14), they come as they are used.
    pub fn populate(&mut self) {
        if self.mapped != 0 {
            let start = self.start.as_ptr().cast();
            // SAFETY: the advice is about this array's own mapping, and changes no contents.
            let _ = unsafe { madvise(start, self.mapped, Advice::LinuxPopulateWrite) };
        }
    }

    /// The pages under it.
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

/// Maps at least `bytes` zeroed bytes.
fn map(bytes: usize) -> io::Result<(NonNull<u8>, usize, Pages)> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let anonymous = |bytes, flags| {
        // SAFETY: a new private mapping at an address of the kernel's choice touches
        // no memory that is in use.
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }
    };
    if bytes >= HUGE_FROM {
        let rounded = bytes.next_multiple_of(HUGE);
        if let Ok(start) = anonymous(rounded, MapFlags::PRIVATE | MapFlags::HUGETLB) {
            return Ok((non_null(start)?, rounded, Pages::Huge));
        }
        let start = anonymous(rounded, MapFlags::PRIVATE)?;
        // SAFETY: the advice is about the mapping just made, and changes no contents.
        let advised = unsafe { madvise(start, rounded, Advice::LinuxHugepage) };
        let pages = if advised.is_ok() { Pages::Transparent } else { Pages::Plain };
        return Ok((non_null(start)?, rounded, pages));
    }
    let start = anonymous(bytes, MapFlags::PRIVATE)?;
    Ok((non_null(start)?, bytes, Pages::Plain))
}

fn non_null(start: *mut std::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl<T: Zeroed> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `length` elements lie in the mapping, which lives as long as `self`;
        // their bytes were zeroed, a valid value (`Zeroed`), or written since.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T: Zeroed> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl<T: Zeroed> Drop for Array<T> {
    fn drop(&mut self) {
        if self.mapped != 0 {
            // SAFETY: the mapping is this array's own and nothing refers to it any more.
            // That it cannot be unmapped would mean it is not mapped: nothing to do.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_zeroed_writable_and_as_long_as_asked() {
        for length in [0, 1, 1000, 1 << 20] {
            let mut array = Array::<u32>::new(length).unwrap();
            assert_eq!(array.len(), length);
            assert!(array.iter().all(|&element| element == 0));
            if let Some(last) = array.last_mut() {
                *last = 7;
                assert_eq!(array[length - 1], 7);
            }
        }
    }

    #[test]
    fn large_arrays_ask_for_huge_pages_and_small_ones_do_not() {
        let large = Array::<u8>::new(HUGE_FROM).unwrap();
        assert_eq!(large.as_ptr().addr() % 4096, 0);
        assert_eq!(Array::<u8>::new(HUGE_FROM - 1).unwrap().pages(), Pages::Plain);
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(Array::<i64>::new(usize::MAX).is_err());
        assert!(Array::<i64>::new(1 << 56).is_err());
    }
}
