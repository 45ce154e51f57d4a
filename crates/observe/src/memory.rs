//! Words that several processes share: a mapping, or memory of this process for tests.
//!
//! Every access is an atomic load or store of a u64, so whatever another process writes meanwhile
//! is a value and nothing worse. Read-only mappings are only read, by relaxed loads, which Rust
//! promises to work there.

use std::ops::Deref;
use std::sync::Arc;

use crate::sync::AtomicU64;

#[cfg(not(loom))]
pub(crate) use mapping::{Mapping, create, map_read_only, map_writable, seals};

/// Shared words.
#[derive(Clone)]
pub(crate) enum Memory {
    Heap(Arc<[AtomicU64]>),
    #[cfg(not(loom))]
    Mapped(Arc<Mapping>),
}

impl Memory {
    /// Zeroed memory of this process.
    pub(crate) fn heap(words: usize) -> Self {
        Self::Heap((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Heap(words) => words,
            #[cfg(not(loom))]
            Self::Mapped(mapping) => mapping.words(),
        }
    }
}

#[cfg(not(loom))]
mod mapping {
    use std::os::fd::{AsFd, OwnedFd};
    use std::ptr::{NonNull, null_mut};
    use std::slice;
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::Memory;
    use crate::error::Error;
    use crate::layout::WORDS_MAX;
    use crate::sync::AtomicU64;

    /// A shared mapping of a file.
    pub(crate) struct Mapping {
        words: NonNull<AtomicU64>,
        count: usize,
    }

    // SAFETY: the memory stays mapped until the drop and is used as atomics only.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        #[inline]
        pub(super) fn words(&self) -> &[AtomicU64] {
            // SAFETY: `map` mapped `count` words at this address, page-aligned, until the drop. The
            // file cannot shrink while its memory is sealed; a file in a folder is its owner's to
            // keep (see the crate's documentation). All its users access it as atomics.
            unsafe { slice::from_raw_parts(self.words.as_ptr(), self.count) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: `map` mapped exactly this range, and no reference to it outlives `self`.
            // Unmapping a valid range cannot fail.
            let _ = unsafe { munmap(self.words.as_ptr().cast(), self.count * 8) };
        }
    }

    fn map(file: impl AsFd, may: ProtFlags) -> Result<Memory, Error> {
        let bytes = fstat(&file)?.st_size as u64;
        if bytes == 0 || !bytes.is_multiple_of(8) || bytes / 8 > WORDS_MAX as u64 {
            return Err(Error::Foreign);
        }
        let count = bytes as usize / 8;
        // SAFETY: a new mapping at an address that the kernel picks changes no other memory.
        let words = unsafe { mmap(null_mut(), count * 8, may, MapFlags::SHARED, file, 0)? };
        let words = NonNull::new(words.cast()).ok_or(Error::Foreign)?;
        Ok(Memory::Mapped(Arc::new(Mapping { words, count })))
    }

    /// The whole file, read-only.
    pub(crate) fn map_read_only(file: impl AsFd) -> Result<Memory, Error> {
        map(file, ProtFlags::READ)
    }

    /// The whole file, to write in.
    pub(crate) fn map_writable(file: impl AsFd) -> Result<Memory, Error> {
        map(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Memory without a name, of a fixed size.
    pub(crate) fn create(name: &str, words: usize) -> Result<OwnedFd, Error> {
        let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, words as u64 * 8)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(memory)
    }

    /// Adds seals to memory from [`create`], the last ones.
    pub(crate) fn seals(memory: impl AsFd, seals: SealFlags) -> Result<(), Error> {
        Ok(fcntl_add_seals(memory, seals | SealFlags::SEAL)?)
    }
}
