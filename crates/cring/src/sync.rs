//! Switches between the standard library's shared memory and loom's model of it.
//!
//! Everything that two threads touch comes from here. Under `--cfg loom` the same code runs on
//! loom's types, which replay each test in every order that the memory model allows and check all
//! accesses to slots.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// The standard cell with loom's interface: a pointer lives as long as a call, so that loom sees
/// its use.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Declares a function `const`, except under loom, which registers atomics at run time.
#[cfg(not(loom))]
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* pub fn $($rest:tt)*) => { $(#[$meta])* pub const fn $($rest)* };
}
#[cfg(loom)]
macro_rules! const_unless_loom {
    ($($function:tt)*) => { $($function)* };
}
pub(crate) use const_unless_loom;
