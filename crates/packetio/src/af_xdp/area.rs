//! The memory of the frames of one thread's ports (a UMEM), cut into regions, one per port and
//! direction.
//!
//! A region lends its bytes as one slice, as a burst needs. The kernel writes only into frames it
//! was given by a fill ring. The ports track who owns a frame, so no frame of a burst is the
//! kernel's, and no byte of a region outside a burst's frames is touched.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::io;
use std::sync::Arc;

use crate::mapping::Mapping;

/// The whole memory. Each socket registers it with the kernel. Its bytes are reached through
/// regions.
#[derive(Debug)]
pub(super) struct Area(Mapping);

impl Area {
    /// Allocates adjacent regions of these sizes in bytes, each a multiple of the page size.
    pub fn cut(sizes: &[usize]) -> io::Result<Vec<Region>> {
        let area = Arc::new(Area(Mapping::anonymous(sizes.iter().sum())?));
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
        (self.0.start().as_ptr() as u64, self.0.bytes() as u64)
    }
}

/// An exclusive part of an area.
#[derive(Debug)]
pub(super) struct Region {
    pub area: Arc<Area>,
    offset: usize,
    bytes: usize,
}

impl Region {
    /// Offset in the area, bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Its address, which identifies a burst's region.
    pub fn address(&self) -> usize {
        self.area.0.start().as_ptr() as usize + self.offset
    }

    /// All bytes. The caller may only touch frames that the kernel does not own.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: regions lie within their area, which outlives them, and do not overlap, so `self`
        // is the only way to these bytes in this program. The kernel writes to frames it owns,
        // which the callers do not touch; the compiler makes no accesses of its own.
        unsafe {
            let start = self.area.0.start().add(self.offset);
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
        let (start, bytes) = regions[0].area.place();
        assert_eq!((start as usize + 4096, bytes), (regions[1].address(), 16384));
    }
}
