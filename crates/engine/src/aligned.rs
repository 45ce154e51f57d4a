//! Memory that begins at a cache line, so that no vector of 64 bytes crosses one.

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// A list of numbers that begins at a cache line. It does not grow.
#[derive(Clone)]
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    kind: PhantomData<T>,
}

/// Numbers for which any bytes are a value.
///
/// # Safety
/// So it must be, and a cache line holds a whole number of them.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    // SAFETY: integers and floats take any bytes, and their sizes divide 64.
    ($($kind:ty)*) => { $(unsafe impl Plain for $kind {})* };
}
plain! { u8 i8 u16 i16 u32 i32 f32 u64 }

impl<T: Plain> Aligned<T> {
    pub fn zeroed(len: usize) -> Self {
        let lines = vec![Line { _bytes: [0; 64] }; (len * size_of::<T>()).div_ceil(64)];
        Self { lines, len, kind: PhantomData }
    }
}

impl<T: Plain> From<&[T]> for Aligned<T> {
    fn from(numbers: &[T]) -> Self {
        let mut made = Self::zeroed(numbers.len());
        made.copy_from_slice(numbers);
        made
    }
}

impl<T: Plain + PartialEq> PartialEq for Aligned<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Plain + Debug> Debug for Aligned<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least `len` numbers, and any bytes are numbers (`Plain`).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_at_the_beginning_of_a_line() {
        for len in [0, 1, 63, 64, 65] {
            let numbers: Vec<i16> = (0..len).collect();
            let aligned = Aligned::from(&numbers[..]);
            assert_eq!(&*aligned, numbers);
            assert_eq!(aligned.as_ptr() as usize % 64, 0);
        }
    }
}
