//! Arrays taken once, at start, as zeroed memory.
//!
//! The allocator gets zeroed pages from the kernel, which hands them out when
//! they are first touched: a table for millions of flows starts at once, and an
//! unused part of it costs nothing.
//!
//! One of the two modules of this crate with `unsafe`; the other is
//! [`crate::entry`].
#![allow(unsafe_code, reason = "zeroed arrays without touching every page")]

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes must be a valid value of the type.
pub(crate) unsafe trait Zeroed {}

// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u16 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for u32 {}
// SAFETY: zero is a valid integer.
unsafe impl Zeroed for i64 {}

/// `length` zeroed elements.
pub(crate) fn zeroed<T: Zeroed>(length: usize) -> Box<[T]> {
    let array = Box::<[T]>::new_zeroed_slice(length);
    // SAFETY: `T: Zeroed` promises that the zero bytes of `array` are values.
    unsafe { array.assume_init() }
}
