//! Layer 0: sums of rows of tables, in 16 bits.

// Vectors and rows are counted: loops over arrays of them read better with their numbers.
#![allow(clippy::needless_range_loop)]

use crate::aligned::Aligned;
use crate::channels::Channels;
use crate::integers::{Integers, Kind};
use crate::layer::{PAD_WIDE, size};
use crate::simd::Simd;

pub(super) struct First {
    channels: Channels,
    /// Numbers from a place's table to the next's; 0 if all places have one.
    table_len: u32,
    top: i16,
    tables: Tables,
}

enum Tables {
    Dense {
        /// `[places][codes][width]`
        elements: Aligned<i16>,
        /// `[places + 1][width]`: what the elements from a place on add where they are 0. Most
        /// series are shorter than the network's.
        absent: Aligned<i16>,
        /// Each with its look-up, and `[rows][width]`.
        context: Vec<(Option<usize>, Aligned<i16>)>,
        lookups: usize,
    },
    Convolution {
        /// `[3][codes + 1][width]`; the last row is 0, for what lies beyond an end.
        taps: Aligned<i16>,
        bias: Aligned<i16>,
        multipliers: Aligned<i16>,
    },
}

impl First {
    /// Takes the large tables out of the definition, unless they must be padded.
    pub fn new(integers: &mut Integers) -> Self {
        let Integers { places, codes, first, lookups, elements, .. } = integers;
        let columns = first.width;
        let width = columns.next_multiple_of(PAD_WIDE);
        let pad = |numbers: &[i16]| padded(numbers, columns, width);
        let (tables, table_len, places) = match &mut first.kind {
            Kind::Dense { tables, context } => {
                let context = context.iter().map(|(lookup, rows)| (*lookup, pad(rows))).collect();
                let of_zero = usize::from(elements.row_of[elements.zero()]);
                let elements = match width == columns {
                    true => std::mem::replace(tables, Aligned::zeroed(0)),
                    false => pad(tables),
                };
                let lookups = lookups.len();
                let mut absent = Aligned::<i16>::zeroed((*places + 1) * width);
                for place in (0..*places).rev() {
                    let added = &elements[(place * *codes + of_zero) * width..][..width];
                    let (here, behind) = absent[place * width..].split_at_mut(width);
                    for ((here, behind), added) in here.iter_mut().zip(behind).zip(added) {
                        *here = behind.wrapping_add(*added);
                    }
                }
                (Tables::Dense { elements, absent, context, lookups }, *codes * width, 0)
            }
            Kind::Convolution { taps, bias, multipliers } => {
                let mut padded = Aligned::zeroed(3 * (*codes + 1) * width);
                let to = padded.chunks_exact_mut((*codes + 1) * width);
                for (tap, to) in taps.chunks_exact(*codes * columns).zip(to) {
                    copy_rows(tap, columns, to, width);
                }
                let (bias, multipliers) = (pad(bias), pad(multipliers));
                (Tables::Convolution { taps: padded, bias, multipliers }, 0, *places)
            }
        };
        Self {
            channels: Channels { count: columns, width, places, size: size(first.top) },
            table_len: table_len as u32,
            top: first.top,
            tables,
        }
    }

    pub fn channels(&self) -> Channels {
        self.channels
    }

    pub fn width(&self) -> usize {
        self.channels.width
    }

    pub fn table_len(&self) -> u32 {
        self.table_len
    }

    /// The activations of rows whose codes and look-ups have been found; the elements from a row's
    /// end on are 0.
    #[inline(always)]
    pub fn run<S: Simd>(
        &self,
        s: S,
        (codes, ends): (&[u32], &[usize]),
        rows: &[usize],
        places: usize,
        to: &mut Aligned<u8>,
        count: usize,
    ) {
        let codes = codes[..count * places].chunks_exact(places);
        let to = to.chunks_exact_mut(self.channels.stride());
        match &self.tables {
            Tables::Dense { elements, absent, context, lookups } => {
                for (row, (codes, to)) in codes.zip(to).enumerate() {
                    let rows = &rows[row * lookups..][..*lookups];
                    let (codes, absent) =
                        (&codes[..ends[row]], &absent[ends[row] * self.width()..]);
                    self.dense(s, [elements, absent], context, codes, rows, to);
                }
            }
            Tables::Convolution { taps, bias, multipliers } => {
                for (codes, to) in codes.zip(to) {
                    if self.channels.size == 1 {
                        self.convolution::<S, 1>(s, [taps, bias, multipliers], codes, to);
                    } else {
                        self.convolution::<S, 2>(s, [taps, bias, multipliers], codes, to);
                    }
                }
            }
        }
    }

    /// One row, in as many vectors at a time as divide its width and fit the registers.
    #[inline(always)]
    fn dense<S: Simd>(
        &self,
        s: S,
        [elements, absent]: [&[i16]; 2],
        context: &[(Option<usize>, Aligned<i16>)],
        codes: &[u32],
        rows: &[usize],
        to: &mut [u8],
    ) {
        let vectors = self.width() / (2 * S::LANES);
        let sum = Sum { s, first: self, elements, absent, context, codes, rows };
        if vectors.is_multiple_of(12) && S::REGISTERS == 32 {
            sum.run::<12>(to);
        } else if vectors.is_multiple_of(6) {
            sum.run::<6>(to);
        } else if vectors.is_multiple_of(4) {
            sum.run::<4>(to);
        } else if vectors.is_multiple_of(3) {
            sum.run::<3>(to);
        } else if vectors.is_multiple_of(2) {
            sum.run::<2>(to);
        } else {
            sum.run::<1>(to);
        }
    }

    #[inline(always)]
    fn clamped<S: Simd>(&self, s: S, x: S::H) -> S::H {
        s.min_16(s.max_16(x, s.splat_16(0)), s.splat_16(self.top))
    }

    #[inline(always)]
    fn convolution<S: Simd, const SIZE: usize>(
        &self,
        s: S,
        [taps, bias, multipliers]: [&Aligned<i16>; 3],
        codes: &[u32],
        to: &mut [u8],
    ) {
        let (width, places, len) = (self.width(), codes.len(), taps.len() / 3);
        let beyond = (len - width) as u32;
        assert!(to.len() == self.channels.stride() && self.channels.size == SIZE);
        assert!(codes.iter().all(|&at| at <= beyond));
        for column in (0..width).step_by(2 * S::LANES) {
            // SAFETY: rows of taps begin at `beyond` at the latest, and a row has `width` numbers,
            // as the bias and the multipliers; `to` has a row for each place and two more.
            unsafe {
                let bias = s.load_16(bias.as_ptr().add(column));
                let multipliers = s.load_16(multipliers.as_ptr().add(column));
                let taps = taps.as_ptr().add(column);
                let tap = |tap: usize, at: u32| s.load_16(taps.add(tap * len + at as usize));
                for place in 0..places {
                    let before = if place == 0 { beyond } else { codes[place - 1] };
                    let after = if place + 1 == places { beyond } else { codes[place + 1] };
                    let sums = s.add_16(s.add_16(bias, tap(1, codes[place])), tap(0, before));
                    let sums = s.add_16(sums, tap(2, after));
                    let to = to.as_mut_ptr().add(((place + 1) * width + column) * SIZE);
                    let activations = self.clamped(s, s.mul_q15(sums, multipliers));
                    if SIZE == 1 {
                        s.store_bytes_16(to, activations);
                    } else {
                        s.store_16(to.cast(), activations);
                    }
                }
            }
        }
    }
}

/// What the sums of one row read.
struct Sum<'a, S> {
    s: S,
    first: &'a First,
    elements: &'a [i16],
    /// Begins with the row of the elements that are 0.
    absent: &'a [i16],
    context: &'a [(Option<usize>, Aligned<i16>)],
    codes: &'a [u32],
    rows: &'a [usize],
}

impl<S: Simd> Sum<'_, S> {
    #[inline(always)]
    fn run<const V: usize>(&self, to: &mut [u8]) {
        let Self { s, first, elements, absent, context, codes, rows } = *self;
        let width = first.width();
        assert!(to.len() == 2 * width && absent.len() >= width);
        assert!(codes.iter().all(|&at| at as usize + width <= elements.len()));
        for column in (0..width).step_by(V * 2 * S::LANES) {
            let mut sums = [s.splat_16(0); V];
            // SAFETY: the codes' rows have just been seen to lie in the tables, the look-ups' are
            // cut out below, and rows of all have `width` numbers, which `V` vectors divide.
            unsafe {
                for (lookup, table) in context {
                    let row = &table[lookup.map_or(0, |i| rows[i]) * width..][..width];
                    for v in 0..V {
                        let row = row.as_ptr().add(column + v * 2 * S::LANES);
                        sums[v] = s.add_16(sums[v], s.load_16(row));
                    }
                }
                for v in 0..V {
                    let row = absent.as_ptr().add(column + v * 2 * S::LANES);
                    sums[v] = s.add_16(sums[v], s.load_16(row));
                }
                for &at in codes {
                    let row = elements.as_ptr().add(at as usize + column);
                    for v in 0..V {
                        sums[v] = s.add_16(sums[v], s.load_16(row.add(v * 2 * S::LANES)));
                    }
                }
                for v in 0..V {
                    let column = column + v * 2 * S::LANES;
                    s.store_16(
                        to.as_mut_ptr().cast::<i16>().add(column),
                        first.clamped(s, sums[v]),
                    );
                }
            }
        }
    }
}

/// Rows of `columns` numbers, padded with zeros to `width`.
fn padded(rows: &[i16], columns: usize, width: usize) -> Aligned<i16> {
    let mut padded = Aligned::zeroed(rows.len() / columns * width);
    copy_rows(rows, columns, &mut padded, width);
    padded
}

fn copy_rows(rows: &[i16], columns: usize, to: &mut [i16], width: usize) {
    for (row, to) in rows.chunks_exact(columns).zip(to.chunks_exact_mut(width)) {
        to[..columns].copy_from_slice(row);
    }
}
