//! The memory of the frames of one thread's ports (a UMEM), cut into regions, one for each port and direction.
//!
//! A region lends its bytes as one slice, because a burst does. The kernel writes into those frames of a
//! region that it was given by a fill ring. The ports keep track of who has a frame, so no frame of a burst is the
//! kernel's, and nobody touches a byte of a region outside the frames of a burst.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The whole memory. Each socket registers it with the kernel by itself.
#[derive(Debug)]
pub(super) struct Area {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the area itself only tells where it is and how long; its bytes are reached through regions.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Regions of so many bytes, each a multiple of the page size, one behind the other.
    pub fn cut(sizes: &[usize]) -> io::Result<Vec<Region>> {
        let bytes = sizes.iter().sum();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Arc::new(Area { start, bytes });
        let mut offset = 0;
        let region = |bytes: &usize| {
            let region = Region {
                area: area.clone(),
                offset,
                bytes: *bytes,
            };
            offset += *bytes;
            region
        };
        Ok(sizes.iter().map(region).collect())
    }

    /// Where it begins, and its length, as the kernel is told.
    pub fn place(&self) -> (u64, u64) {
        (self.start.as_ptr() as u64, self.bytes as u64)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly what `cut` has mapped; the last region is gone, and with it all slices. The kernel
        // keeps pages that it still uses. It cannot fail for such a range; if it did, the memory would stay mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A part of an area that nobody else has.
#[derive(Debug)]
pub(super) struct Region {
    area: Arc<Area>,
    offset: usize,
    bytes: usize,
}

impl Region {
    /// The area that it is a part of.
    pub fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Where it begins in the area, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Its address, by which a burst is recognised.
    pub fn address(&self) -> usize {
        self.area.start.as_ptr() as usize + self.offset
    }

    /// All of its bytes. Only those of frames that the kernel does not have may be touched.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: regions lie within their area, which lives as long as they do, and do not overlap, so `self` is the
        // only way to these bytes in this program. The kernel writes to frames that it has, which the callers
        // do not touch; the compiler makes no accesses of its own.
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
        assert_eq!(
            (start as usize + 4096, bytes),
            (regions[1].address(), 16384)
        );
    }
}
