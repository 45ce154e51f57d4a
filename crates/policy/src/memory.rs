//! Large arrays on huge pages. A look-up reads a few random places of an index of some MiB; with
//! pages of 4 KiB each read also costs an access or two to the page tables.
#![allow(unsafe_code, reason = "memory aligned to huge pages, and advice to the kernel about it")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

/// Bytes of a huge page on x86-64 and, with base pages of 4 KiB, on Arm.
const HUGE: usize = 2 << 20;
/// Arrays of at least this size get huge pages.
const LARGE: usize = HUGE / 4;

#[derive(Debug)]
pub(crate) struct Array<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements, as `Box<[T]>` does.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Array<T> {}

impl<T: Copy> Array<T> {
    pub fn new(all: impl ExactSizeIterator<Item = T>) -> Array<T> {
        const { assert!(size_of::<T>() != 0) };
        let layout = layout::<T>(all.len());
        let mut array = Array { start: NonNull::dangling(), len: 0 };
        if layout.size() == 0 {
            return array;
        }
        let capacity = all.len();
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start.cast::<T>()) else {
            handle_alloc_error(layout);
        };
        if layout.align() == HUGE {
            // SAFETY: advice about our own memory, which changes no contents. If refused, pages are
            // small.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        array.start = start;
        for (place, element) in all.take(capacity).enumerate() {
            // SAFETY: there is room for `capacity` elements.
            unsafe { start.add(place).write(element) };
            array.len = place + 1;
        }
        // `drop` computes the layout from `len`.
        assert_eq!(array.len, capacity, "the iterator is as long as it reports");
        array
    }
}

/// The layout of `len` elements. Large arrays occupy whole pages, so that no other memory shares a
/// huge one.
fn layout<T>(len: usize) -> Layout {
    let plain = Layout::array::<T>(len);
    let large = |plain: Layout| match plain.size() >= LARGE {
        true => plain.align_to(HUGE).map(|it| it.pad_to_align()),
        false => Ok(plain),
    };
    plain.and_then(large).unwrap_or_else(|error| panic!("{len} elements: {error}"))
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written; with none it is dangling.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let layout = layout::<T>(self.len);
        if layout.size() != 0 {
            // SAFETY: allocated with this layout; elements are `Copy`, so none needs dropping.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_hold_what_they_are_made_of_small_and_large() {
        for len in [0, 1, 1000, 100_000] {
            let array = Array::new((0..len).map(|i| [i, 7]));
            assert_eq!(array.len(), len as usize);
            assert!((0..).zip(array.iter()).all(|(i, it)| *it == [i, 7]));
            let is_aligned = (array.as_ptr() as usize).is_multiple_of(HUGE);
            assert!(is_aligned || len < 100_000);
        }
    }
}
