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
}

impl Channels {
    /// Memory for this many rows. Matrix tiles read beyond the last: rows or windows that are too
    /// few for a tile, and inputs.
    pub fn activations(&self, rows: usize) -> Aligned<u8> {
        Aligned::zeroed(rows * self.stride() + TILE_ROWS * self.width + TILE_INPUTS)
    }

    /// Numbers from a row to the next.
    pub fn stride(&self) -> usize {
        if self.places > 0 { (self.places + 2) * self.width } else { self.width }
    }

    /// Where the first activation stands.
    pub fn start(&self) -> usize {
        if self.places > 0 { self.width } else { 0 }
    }

    /// Windows of a convolution over this many rows, as if their places were one series.
    pub fn windows(&self, rows: usize) -> usize {
        rows * (self.places + 2) - 2
    }

    /// Writes zeros to the places beyond the ends, where [`windows`](Self::windows) have been.
    #[inline(always)]
    pub fn clear_ends(&self, activations: &mut [u8], rows: usize) {
        for row in activations.chunks_exact_mut(self.stride()).take(rows) {
            row[..self.width].fill(0);
            row[(self.places + 1) * self.width..].fill(0);
        }
    }

    /// Where an input of the next layer stands, if channels are padded. A row of its weights
    /// belongs to each input.
    pub fn padded(&self, input: usize) -> usize {
        input / self.count * self.width + input % self.count
    }
}
