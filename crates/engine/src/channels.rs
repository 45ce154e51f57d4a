//! How activations stand in memory.

use crate::aligned::Aligned;
use crate::simd::{TILE_INPUTS, TILE_ROWS};

/// `[rows][places + 2][width]`, the first and the last place zeros, or `[rows][width]`.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    /// Channels without padding.
    pub count: usize,
    pub width: usize,
    /// 0 if there are no places.
    pub places: usize,
    /// Elements of memory that a number takes: 2 where words stand in memory of bytes.
    pub size: usize,
}

impl Channels {
    /// Memory for this many rows. Matrix tiles read beyond the last: rows or windows that are too
    /// few for a tile, and inputs.
    pub fn activations(&self, rows: usize) -> Aligned<u8> {
        Aligned::zeroed(rows * self.stride() + TILE_ROWS * self.step() + TILE_INPUTS)
    }

    /// From a place to the next.
    pub fn step(&self) -> usize {
        self.width * self.size
    }

    /// From a row to the next.
    pub fn stride(&self) -> usize {
        if self.places > 0 { (self.places + 2) * self.step() } else { self.step() }
    }

    /// Where the first activation stands.
    pub fn start(&self) -> usize {
        if self.places > 0 { self.step() } else { 0 }
    }

    /// Windows of a convolution over this many rows, as if their places were one series.
    pub fn windows(&self, rows: usize) -> usize {
        rows * (self.places + 2) - 2
    }

    /// Writes zeros to the places beyond the ends, where [`windows`](Self::windows) have been.
    #[inline(always)]
    pub fn clear_ends(&self, activations: &mut [u8], rows: usize) {
        for row in activations.chunks_exact_mut(self.stride()).take(rows) {
            row[..self.step()].fill(0);
            row[(self.places + 1) * self.step()..].fill(0);
        }
    }

    /// The number of an input of the next layer, if channels are padded. A row of its weights
    /// belongs to each input.
    pub fn padded(&self, input: usize) -> usize {
        input / self.count * self.width + input % self.count
    }
}
