//! The memory of the frames of one thread's ports (a UMEM), cut into regions, one per port and
//! direction.
//!
//! A region lends its bytes as one slice, as a burst needs. The kernel writes only into frames it
//! was given by a fill ring. The ports track who owns a frame, so no frame of a burst is the
//! kernel's, and no byte of a region outside a burst's frames is touched.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The whole memory. Each socket registers it with the kernel.
#[derive(Debug)]
pub(super) struct Area {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the area only holds an address and a length; its bytes are reached through regions.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Allocates adjacent regions of these sizes in bytes, each a multiple of the page size.
    pub fn cut(sizes: &[usize]) -> io::Result<Vec<Region>> {
        let bytes = sizes.iter().sum();
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Arc::new(Area { start, bytes });
        let mut offset = 0;
        let region = |bytes: &usize| {
            let region = Region { area: area.clone(), offset, bytes: *bytes };
            offset += *bytes;
            region
        };
        Ok(sizes.iter().map(region).collect())
    }

    /// Address and length, for the kernel.
    pub fn place(&self) -> (u64, u64) {
        (self.start.as_ptr() as u64, self.bytes as u64)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly what `cut` has mapped; the last region is gone, and with it all slices.
        // The kernel keeps pages that it still uses. It cannot fail for such a range; if it did,
        // the memory would stay mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An exclusive part of an area.
#[derive(Debug)]
pub(super) struct Region {
    area: Arc<Area>,
    offset: usize,
    bytes: usize,
}

impl Region {
    /// The area it belongs to.
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Offset in the area, bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Its address, which identifies a burst's region.
    pub fn address(&self) -> usize {
        self.area.start.as_ptr() as usize + self.offset
    }

    /// All bytes. The caller may only touch frames that the kernel does not own.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: regions lie within their area, which outlives them, and do not overlap, so `self`
        // is the only way to these bytes in this program. The kernel writes to frames it owns,
        // which the callers do not touch; the compiler makes no accesses of its own.
        unsafe {
            let start = self.area.start.add(self.offset);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_one_behind_the_other() {
        let mut regions = Area::cut(&[4096, 8192, 4096]).unwrap();
        for (i, region) in regions.iter_mut().enumerate() {
            region.bytes().fill(i as u8 + 1);
        }
        let whole = regions.iter_mut().flat_map(|it| it.bytes().to_vec());
        let runs: Vec<u8> = whole.step_by(4096).collect();
        assert_eq!(runs, [1, 2, 2, 3]);
        assert_eq!((regions[1].offset(), regions[2].offset()), (4096, 12288));
        let (start, bytes) = regions[0].area().place();
        assert_eq!((start as usize + 4096, bytes), (regions[1].address(), 16384));
    }
}
