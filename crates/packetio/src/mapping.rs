//! Memory mapped into this process, which the kernel may read and write, too.
#![allow(unsafe_code, reason = "mapped memory")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping, readable and writable. Its owner sees to who touches which bytes when.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it only holds an address and a length, neither of which is tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of its own, present at once.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, PROTECTION, flags) }?;
        Mapping::new(start.cast(), bytes)
    }

    /// The memory of a descriptor from `offset` on, shared with the kernel.
    pub fn shared(
        fd: BorrowedFd<'_>,
        bytes: usize,
        offset: u64,
        more: MapFlags,
    ) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | more;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(null_mut(), bytes, PROTECTION, flags, fd, offset) }?;
        Mapping::new(start.cast(), bytes)
    }

    fn new(start: *mut u8, bytes: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes })
    }

    /// Its first byte; aligned to a page.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nothing borrowed of it outlives its owner. The
        // kernel keeps pages that it still uses. It cannot fail for such a range; if it did, the
        // memory would stay mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
