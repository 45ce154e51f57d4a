//! Products of activations and weights, bytes or words, in tiles that stay in registers.

// Vectors and rows are counted: loops over arrays of them read better with their numbers.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;
use std::mem::MaybeUninit;

use crate::aligned::Aligned;
use crate::channels::Channels;
use crate::integers::{BYTE_MAX, Hidden, WORD_MAX};
use crate::simd::{Product, Simd, TILE_INPUTS, TILE_ROWS, TILE_ROWS_MIN};

/// Columns of layer 0 and of scores are padded to the longest vector of 16-bit numbers.
pub(crate) const PAD_WIDE: usize = 32;
/// Columns of the other layers, to the longest vector of 32-bit numbers.
const PAD: usize = 16;

/// Weights as the kernels read them: `[inputs/4][outputs][4]` bytes, so that a vector holds four
/// inputs of `LANES` outputs, or `[inputs/2][outputs][2]` words. Zeros follow, up to a whole number
/// of matrix tiles.
pub(crate) struct Layer {
    /// Bytes of a row of inputs.
    inputs: usize,
    channels: Channels,
    is_convolution: bool,
    weights: Aligned<i8>,
    bias: Aligned<i32>,
    shifts: Aligned<i32>,
}

impl Layer {
    pub fn hidden(layer: &Hidden, from: &Channels, places: usize) -> Self {
        let Hidden { taps, outputs, weights, bias, shifts, top } = layer;
        let (is_convolution, width) = (*taps > 1, outputs.next_multiple_of(PAD));
        let places = if is_convolution { places } else { 0 };
        let channels = Channels { count: *outputs, width, places, size: size(*top) };
        Self::packed(weights, from, channels, is_convolution, bias, shifts)
    }

    /// The last layer. Its bias stands in the scores, but for half of what the shift cuts off.
    pub fn output(weights: &[i16], classes: usize, from: &Channels, shift: i32) -> Self {
        let width = classes.next_multiple_of(PAD_WIDE);
        let channels = Channels { count: classes, width, places: 0, size: 1 };
        let (bias, shifts) = (vec![1 << (shift - 1); classes], vec![shift; classes]);
        Self::packed(weights, from, channels, false, &bias, &shifts)
    }

    /// Pads the rows of each place to the width of their channels, and the columns to `width`.
    fn packed(
        weights: &[i16],
        from: &Channels,
        channels: Channels,
        is_convolution: bool,
        bias: &[i32],
        shifts: &[i32],
    ) -> Self {
        let inputs = from.padded(weights.len() / channels.count) * from.size;
        let lane = 4 / from.size;
        let mut packed = Aligned::zeroed(inputs.next_multiple_of(TILE_INPUTS) * channels.width);
        for (row, columns) in weights.chunks_exact(channels.count).enumerate() {
            let input = from.padded(row);
            for (column, &w) in columns.iter().enumerate() {
                let at = (input / lane * channels.width + column) * lane + input % lane;
                match from.size {
                    1 => packed[at] = w as i8,
                    _ => {
                        packed[2 * at..][..2].copy_from_slice(&w.to_ne_bytes().map(u8::cast_signed))
                    }
                }
            }
        }
        let padded = |numbers: &[i32]| {
            let mut padded = Aligned::zeroed(channels.width);
            padded[..numbers.len()].copy_from_slice(numbers);
            padded
        };
        let (bias, shifts) = (padded(bias), padded(shifts));
        Self { inputs, channels, is_convolution, weights: packed, bias, shifts }
    }

    pub fn channels(&self) -> Channels {
        self.channels
    }

    pub fn width(&self) -> usize {
        self.channels.width
    }

    pub fn is_convolution(&self) -> bool {
        self.is_convolution
    }
}

/// Bytes of an activation.
pub(crate) fn size(top: i16) -> usize {
    if top > BYTE_MAX { 2 } else { 1 }
}

/// What is multiplied.
#[derive(Clone, Copy)]
pub(crate) enum Numbers {
    /// Activations of 7 bits, weights of 8.
    Bytes,
    /// Activations of 8 bits, weights of 7.
    AllOfBytes,
    Words,
}

/// What becomes of the sums of a tile.
pub(crate) trait Finish<S: Simd> {
    const NUMBERS: Numbers;

    /// What is the same for all rows of a vector of columns.
    type Columns: Copy;

    fn columns(&self, s: S, column: usize) -> Self::Columns;

    /// # Safety
    /// The row is below the number for which this was made, and `LANES` columns from this one on
    /// are.
    unsafe fn put(&mut self, s: S, row: usize, column: usize, columns: Self::Columns, sums: S::I);
}

/// Activations: `clamp(sums >> shifts, 0, top)`. `FROM` and `TO` are the sizes of the inputs and of
/// what is made of them.
pub(crate) struct Activate<'a, const FROM: usize, const TO: usize> {
    shifts: &'a Aligned<i32>,
    to: &'a mut [u8],
    stride: usize,
}

impl<'a, const FROM: usize, const TO: usize> Activate<'a, FROM, TO> {
    #[inline(always)]
    pub fn new(layer: &'a Layer, to: &'a mut [u8], rows: usize) -> Self {
        let stride = layer.channels.step();
        assert!(rows <= to.len() / stride && stride == layer.width() * TO);
        Self { shifts: &layer.shifts, to, stride }
    }
}

impl<S: Simd, const FROM: usize, const TO: usize> Finish<S> for Activate<'_, FROM, TO> {
    const NUMBERS: Numbers = if FROM == 1 { Numbers::Bytes } else { Numbers::Words };

    type Columns = S::I;

    #[inline(always)]
    fn columns(&self, s: S, column: usize) -> S::I {
        let shifts = &self.shifts[column..][..S::LANES];
        // SAFETY: the slice has as many numbers.
        unsafe { s.load(shifts.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn put(&mut self, s: S, row: usize, column: usize, shifts: S::I, sums: S::I) {
        let top = if TO == 1 { BYTE_MAX } else { WORD_MAX };
        let clamped = s.min(s.max(s.shift_right(sums, shifts), s.splat(0)), s.splat(top.into()));
        // SAFETY: `new` has seen that each row has room for all columns.
        unsafe {
            let to = self.to.as_mut_ptr().add(row * self.stride + column * TO);
            if TO == 1 { s.store_bytes(to, clamped) } else { s.store_words(to.cast(), clamped) }
        }
    }
}

/// Scores: `(sums >> shifts) + scores`.
pub(crate) struct Score<'a> {
    shifts: &'a Aligned<i32>,
    scores: &'a Aligned<i32>,
    /// Where each row's scores begin.
    at: &'a [usize],
    to: &'a mut Aligned<i32>,
}

impl<'a> Score<'a> {
    #[inline(always)]
    pub fn new(
        layer: &'a Layer,
        scores: &'a Aligned<i32>,
        at: &'a [usize],
        to: &'a mut Aligned<i32>,
    ) -> Self {
        let width = layer.width();
        assert!(at.len() * width <= to.len());
        assert!(at.iter().all(|at| at + width <= scores.len()));
        Self { shifts: &layer.shifts, scores, at, to }
    }
}

impl<S: Simd> Finish<S> for Score<'_> {
    const NUMBERS: Numbers = Numbers::Words;

    type Columns = S::I;

    #[inline(always)]
    fn columns(&self, s: S, column: usize) -> S::I {
        let shifts = &self.shifts[column..][..S::LANES];
        // SAFETY: the slice has as many numbers.
        unsafe { s.load(shifts.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn put(&mut self, s: S, row: usize, column: usize, shifts: S::I, sums: S::I) {
        // SAFETY: `new` has seen that both have all columns of each row.
        unsafe {
            let scores = s.load(self.scores.as_ptr().add(self.at.get_unchecked(row) + column));
            let to = self.to.as_mut_ptr().add(row * self.shifts.len() + column);
            s.store(to, s.add(s.shift_right(sums, shifts), scores));
        }
    }
}

/// Multiplies rows of activations, `stride` bytes apart, with the layer's weights.
///
/// Tiles are as high as the registers allow, for each vector of weights is then loaded once for
/// many rows: 5 or 10 places of a convolution, 8 rows of a batch. What remains is done by four,
/// by two, then alone.
#[inline(always)]
pub(crate) fn multiply<S: Simd, F: Finish<S>>(
    s: S,
    layer: &Layer,
    a: &[u8],
    stride: usize,
    rows: usize,
    mut finish: F,
) {
    assert!(rows == 0 || (rows - 1) * stride + layer.inputs <= a.len());
    let mut tiles = Tiles { s, layer, a, stride, finish: &mut finish };
    let mut row = 0;
    // SAFETY: the rows have just been seen to have all inputs; `F` was made for them.
    unsafe {
        if s.has_tiles() && !matches!(F::NUMBERS, Numbers::Words) {
            row = tiles.matrices(rows);
        }
        match (S::REGISTERS, S::LANES) {
            (32, 16) if rows.is_multiple_of(5) => row = tiles.run::<5, 4>(row, rows),
            (32, 16) => row = tiles.run::<8, 2>(row, rows),
            (32, _) if rows.is_multiple_of(5) => row = tiles.run::<5, 4>(row, rows),
            (_, 8) if rows.is_multiple_of(5) => row = tiles.run::<5, 2>(row, rows),
            _ => {}
        }
        // Plain code has no registers for tiles, and is twice as fast without.
        if S::REGISTERS >= 16 {
            row = match S::REGISTERS {
                32 => tiles.run::<4, 4>(row, rows),
                _ => tiles.run::<4, 2>(row, rows),
            };
            row = tiles.run::<2, 4>(row, rows);
        }
        while row < rows {
            tiles.row(row);
            row += 1;
        }
    }
}

struct Tiles<'a, S: Simd, F: Finish<S>> {
    s: S,
    layer: &'a Layer,
    a: &'a [u8],
    stride: usize,
    finish: &'a mut F,
}

/// Sums of `TILE_ROWS` rows and 32 columns.
#[repr(align(64))]
struct Sums {
    _rows: [[i32; 32]; TILE_ROWS],
}

impl<S: Simd, F: Finish<S>> Tiles<'_, S, F> {
    /// As many rows as are worth it, by matrix instructions. They take `TILE_ROWS` rows at a time
    /// and whole tiles of inputs; what is read beyond the last of either makes no sum that counts.
    /// Returns the first row that is left.
    #[inline(always)]
    unsafe fn matrices(&mut self, rows: usize) -> usize {
        let Self { s, layer, stride, .. } = *self;
        let (blocks, width) = (layer.inputs.div_ceil(TILE_INPUTS), layer.width());
        let read = (TILE_ROWS - 1) * stride + blocks * TILE_INPUTS;
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<i32>();
        let mut row = 0;
        while rows - row >= TILE_ROWS_MIN && blocks > 0 && row * stride + read <= self.a.len() {
            let end = rows.min(row + TILE_ROWS);
            for column in (0..width).step_by(32) {
                let is_wide = column + 32 <= width;
                // SAFETY: all that is read of `a` has just been seen to be there. The weights are
                // padded to whole blocks, columns to 16, and `sums` have 32 rows of 32.
                unsafe {
                    let product = Product {
                        a: self.a.as_ptr().add(row * stride),
                        stride,
                        blocks,
                        weights: layer.weights.as_ptr().add(column * 4),
                        width,
                        bias: layer.bias.as_ptr().add(column),
                    };
                    if is_wide {
                        s.multiply_tiles::<true>(&product, sums);
                    } else {
                        s.multiply_tiles::<false>(&product, sums);
                    }
                    for v in (0..if is_wide { 32 } else { 16 }).step_by(S::LANES) {
                        let columns = self.finish.columns(s, column + v);
                        for row in row..end {
                            let sums = s.load(sums.add((row % TILE_ROWS) * 32 + v));
                            self.finish.put(s, row, column + v, columns, sums);
                        }
                    }
                }
            }
            row = end;
        }
        row
    }

    /// Tiles of `R` rows and `V` vectors of columns, as many as fit from `row` on. Returns the
    /// first row that is left.
    #[inline(always)]
    unsafe fn run<const R: usize, const V: usize>(&mut self, row: usize, rows: usize) -> usize {
        let end = row + (rows - row) / R * R;
        let width = self.layer.width();
        let mut column = 0;
        // SAFETY: as the caller's; columns end at the layer's width, which is padded to whole
        // vectors.
        unsafe {
            while row < end && column + V * S::LANES <= width {
                for row in (row..end).step_by(R) {
                    self.tile::<R, V>(row, column);
                }
                column += V * S::LANES;
            }
            while row < end && column < width {
                for row in (row..end).step_by(R) {
                    self.tile::<R, 1>(row, column);
                }
                column += S::LANES;
            }
        }
        end
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const V: usize>(&mut self, row: usize, column: usize) {
        let Self { s, layer, stride, .. } = *self;
        let mut sums = [[s.splat(0); R]; V];
        // SAFETY: the caller has seen `R` rows with all inputs and `V` vectors of columns.
        unsafe {
            let a = self.a.as_ptr().add(row * stride);
            for v in 0..V {
                sums[v] = [s.load(layer.bias.as_ptr().add(column + v * S::LANES)); R];
            }
            let mut weights = layer.weights.as_ptr().add(column * 4);
            for input in (0..layer.inputs).step_by(4) {
                let mut w = [s.splat(0); V];
                for v in 0..V {
                    w[v] = s.load(weights.add(v * S::LANES * 4).cast());
                }
                for r in 0..R {
                    let a = s.broadcast_bytes(a.add(r * stride + input));
                    for v in 0..V {
                        sums[v][r] = self.dot(sums[v][r], a, w[v]);
                    }
                }
                weights = weights.add(layer.width() * 4);
            }
            for v in 0..V {
                let column = column + v * S::LANES;
                let columns = self.finish.columns(s, column);
                for r in 0..R {
                    self.finish.put(s, row + r, column, columns, sums[v][r]);
                }
            }
        }
    }

    #[inline(always)]
    fn dot(&self, sums: S::I, a: S::I, w: S::I) -> S::I {
        match F::NUMBERS {
            Numbers::Bytes => self.s.dot(sums, a, w),
            Numbers::AllOfBytes => self.s.dot_bytes(sums, a, w),
            Numbers::Words => self.s.dot_words(sums, a, w),
        }
    }

    /// One row, in as many vectors of columns at a time as divide its width.
    #[inline(always)]
    unsafe fn row(&mut self, row: usize) {
        let vectors = self.layer.width() / S::LANES;
        // SAFETY: as the caller's.
        unsafe {
            if vectors.is_multiple_of(4) {
                self.row_by::<4>(row);
            } else if vectors.is_multiple_of(3) {
                self.row_by::<3>(row);
            } else if vectors.is_multiple_of(2) {
                self.row_by::<2>(row);
            } else {
                self.row_by::<1>(row);
            }
        }
    }

    /// Two sums for each vector, so that a product need not wait for the one before.
    #[inline(always)]
    unsafe fn row_by<const V: usize>(&mut self, row: usize) {
        let Self { s, layer, stride, .. } = *self;
        // Not seeing where the weights come from, the compiler does not keep them all on the stack
        // from one row to the next.
        let weights = black_box(layer.weights.as_ptr());
        for column in (0..layer.width()).step_by(V * S::LANES) {
            let mut sums = [[s.splat(0); V]; 2];
            // SAFETY: the caller has seen the row with all inputs; `V` vectors divide the width.
            unsafe {
                let a = self.a.as_ptr().add(row * stride);
                let mut weights = weights.add(column * 4);
                for v in 0..V {
                    sums[0][v] = s.load(layer.bias.as_ptr().add(column + v * S::LANES));
                }
                // The inputs are padded to whole vectors, so there are two more, each time.
                for input in (0..layer.inputs).step_by(8) {
                    for (half, sums) in sums.iter_mut().enumerate() {
                        let a = s.broadcast_bytes(a.add(input + 4 * half));
                        for v in 0..V {
                            let w = s.load(weights.add(v * S::LANES * 4).cast());
                            sums[v] = self.dot(sums[v], a, w);
                        }
                        weights = weights.add(layer.width() * 4);
                    }
                }
                for v in 0..V {
                    let column = column + v * S::LANES;
                    let columns = self.finish.columns(s, column);
                    self.finish.put(s, row, column, columns, s.add(sums[0][v], sums[1][v]));
                }
            }
        }
    }
}
