//! Functions of one integer, as tables.
//!
//! What a network does to a length, a port or a protocol number before its first layer (clip, add,
//! cast, look up, compare with ranges) depends on that one integer only. So the graph is evaluated
//! once for each integer, in f32 as ONNX Runtime does, and its nodes need no code in the data path.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::Error;
use crate::simd::{LANES_MAX, Simd};

/// Elements are tabulated from −`ELEMENT_MAX` to `ELEMENT_MAX`: no IP packet is longer.
pub(crate) const ELEMENT_MAX: i32 = 65_535;
/// Numbers of the context are tabulated from 0 to `CONTEXT_MAX`: ports and protocols.
pub(crate) const CONTEXT_MAX: i32 = 65_535;

/// Which integer a table is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Each element of a channel of the series.
    Channel(usize),
    /// A number of the context.
    Context(usize),
}

/// For each integer of the source's domain a row of `width` numbers.
#[derive(Clone, Debug)]
pub(crate) struct Tabulated {
    pub source: Source,
    row_of: Rc<[u32]>,
    rows: Vec<f32>,
    pub width: usize,
}

/// A table without rows that are equal or that no integer uses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lookup {
    /// The domain, beyond which integers count as its ends.
    pub low: i32,
    /// The row of each integer from `low` on.
    pub row_of: Vec<u16>,
}

impl Source {
    fn domain(self) -> std::ops::RangeInclusive<i32> {
        match self {
            Self::Channel(_) => -ELEMENT_MAX..=ELEMENT_MAX,
            Self::Context(_) => 0..=CONTEXT_MAX,
        }
    }
}

impl Tabulated {
    /// The integer itself.
    pub fn identity(source: Source) -> Self {
        let rows: Vec<f32> = source.domain().map(|integer| integer as f32).collect();
        Self { source, row_of: (0..rows.len() as u32).collect(), rows, width: 1 }
    }

    /// How many numbers it holds.
    pub fn len(&self) -> usize {
        self.row_of.len() + self.rows.len()
    }

    pub fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self { rows: self.rows.iter().map(|&x| f(x)).collect(), ..self.clone_head() }
    }

    fn clone_head(&self) -> Self {
        let (source, row_of, width) = (self.source, Rc::clone(&self.row_of), self.width);
        Self { source, row_of, rows: vec![], width }
    }

    /// `clip(x·scale + offset)` side by side for each scale and offset.
    pub fn affine(&self, scales: &[f32], offsets: &[f32]) -> Self {
        let mut rows = Vec::with_capacity(self.rows.len() * scales.len());
        for x in &self.rows {
            rows.extend(scales.iter().zip(offsets).map(|(scale, offset)| x * scale + offset));
        }
        Self { rows, width: scales.len(), ..self.clone_head() }
    }

    /// Takes the number as an index into rows of `width` numbers. None if one is out of range.
    pub fn gather(&self, rows: Vec<f32>, width: usize) -> Option<Self> {
        let count = rows.len().checked_div(width)?;
        let index = |&row: &u32| {
            let at = self.rows[row as usize];
            (self.width == 1 && at >= 0.0 && (at as usize) < count).then_some(at as u32)
        };
        let row_of = self.row_of.iter().map(index).collect::<Option<_>>()?;
        Some(Self { source: self.source, row_of, rows, width })
    }

    /// Whether this is 0 for 0 and 1 for all other integers: an element is there.
    pub fn is_presence(&self) -> bool {
        let value = |row: &u32| self.rows[*row as usize];
        self.width == 1
            && self
                .source
                .domain()
                .zip(self.row_of.iter())
                .all(|(integer, row)| value(row) == if integer == 0 { 0.0 } else { 1.0 })
    }

    pub fn is_finite(&self) -> bool {
        self.rows.iter().all(|x| x.is_finite())
    }

    /// The table with each row once, in their order, over the least domain.
    pub fn compact(&self) -> Result<(Lookup, Vec<f32>), Error> {
        const UNUSED: u32 = u32::MAX;
        let bits: Vec<u32> = self.rows.iter().map(|x| x.to_bits()).collect();
        let bits = |row: usize| &bits[row * self.width..][..self.width];
        let mut is_used = vec![false; self.rows.len() / self.width];
        self.row_of.iter().for_each(|&row| is_used[row as usize] = true);
        let mut kept = vec![UNUSED; is_used.len()];
        let mut rows: Vec<f32> = vec![];
        let (mut seen, mut previous) = (HashMap::new(), None);
        for row in (0..is_used.len()).filter(|&row| is_used[row]) {
            // Most integers have the row of their neighbour, which spares the hash.
            kept[row] = match previous {
                Some(previous) if bits(previous) == bits(row) => kept[previous],
                _ => *seen.entry(bits(row)).or_insert_with(|| {
                    rows.extend(&self.rows[row * self.width..][..self.width]);
                    (rows.len() / self.width - 1) as u32
                }),
            };
            previous = Some(row);
        }
        let row_of: Option<Vec<u16>> =
            self.row_of.iter().map(|&row| u16::try_from(kept[row as usize]).ok()).collect();
        let row_of = row_of.ok_or_else(|| {
            Error::Bounds("a number of the input has more than 65536 codes".into())
        })?;
        Ok((Lookup::trimmed(*self.source.domain().start(), row_of), rows))
    }
}

impl Lookup {
    /// Cuts off what equals the ends of what remains. A domain about 0 stays symmetric, and wide
    /// enough that 0 has a place of its own: the depth counts the others.
    fn trimmed(low: i32, mut row_of: Vec<u16>) -> Self {
        let (first, last) = (row_of[0], row_of[row_of.len() - 1]);
        let tail = row_of.iter().rev().take_while(|&&row| row == last).count();
        let head = row_of.iter().take_while(|&&row| row == first).count();
        if low == 0 {
            row_of.truncate((row_of.len() - tail + 1).max(1));
            return Self { low, row_of };
        }
        let limit = low.unsigned_abs() as usize;
        let cut = (tail.min(head) - 1).min(limit - 1);
        row_of.truncate(row_of.len() - cut);
        row_of.drain(..cut);
        Self { low: low + cut as i32, row_of }
    }

    /// The place of a number in `row_of`: NaN counts as 0, fractions are cut off, and what lies
    /// outside the domain counts as its end.
    #[inline(always)]
    pub fn place(&self, number: f32) -> usize {
        let high = self.low + self.row_of.len() as i32 - 1;
        ((number as i32).clamp(self.low, high) - self.low) as usize
    }

    /// The places of many numbers. `places` has room for a vector more than there are numbers.
    #[inline(always)]
    pub fn places<S: Simd>(&self, s: S, numbers: &[f32], places: &mut [i32]) {
        assert!(places.len() >= numbers.len() + LANES_MAX && S::LANES <= LANES_MAX);
        let high = self.low + self.row_of.len() as i32 - 1;
        let (low, high) = (s.splat(self.low), s.splat(high));
        let (low_f, high_f) = (s.to_float(low), s.to_float(high));
        let vectors = numbers.chunks(S::LANES).zip(places.chunks_mut(S::LANES));
        let mut last = [0.0; LANES_MAX];
        for (numbers, places) in vectors {
            let whole = if numbers.len() < S::LANES {
                last[..numbers.len()].copy_from_slice(numbers);
                &last
            } else {
                numbers
            };
            // SAFETY: both have a whole vector: `places` is longer than the numbers are.
            unsafe {
                let place = s.sub(s.truncate(s.load_f(whole.as_ptr()), low_f, high_f), low);
                s.store(places.as_mut_ptr(), place);
            }
        }
    }

    /// The place of 0.
    pub fn zero(&self) -> usize {
        -self.low as usize
    }

    /// The row of a number.
    #[inline(always)]
    pub fn row(&self, number: f32) -> usize {
        self.row_of[self.place(number)].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Source = Source::Channel(0);

    #[test]
    fn a_table_knows_each_integer_and_ends_where_nothing_changes() {
        let cut = Tabulated::identity(LENGTH).map(|x| x.clamp(-3.0, 2.0));
        let (lookup, rows) = cut.compact().unwrap();
        assert_eq!(rows, [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]);
        assert_eq!((lookup.low, lookup.row_of.len()), (-3, 7));
        for (number, row) in [
            (-3.0, 0),
            (-1e9, 0),
            (f32::NEG_INFINITY, 0),
            (-0.9, 3),
            (0.0, 3),
            (f32::NAN, 3),
            (1.99, 4),
            (70_000.0, 5),
            (f32::INFINITY, 5),
        ] {
            assert_eq!(lookup.row(number), row, "{number}");
        }
    }

    #[test]
    fn equal_rows_are_kept_once_and_unused_ones_not() {
        let parity = Tabulated::identity(Source::Context(1)).map(|x| x.min(3.0));
        let table = [7.0, 8.0, 5.0, 5.0, 7.0, 8.0, 1.0, 1.0, 9.0, 9.0];
        let gathered = parity.gather(table.to_vec(), 2).unwrap();
        let (lookup, rows) = gathered.compact().unwrap();
        assert_eq!(rows, [7.0, 8.0, 5.0, 5.0, 1.0, 1.0]);
        assert_eq!(lookup, Lookup { low: 0, row_of: vec![0, 1, 0, 2] });
        assert!(parity.gather(vec![1.0, 2.0, 3.0], 1).is_none());
        assert!(gathered.gather(vec![1.0; 10], 1).is_none());
    }

    #[test]
    fn a_constant_is_one_row() {
        for (source, places) in [(LENGTH, 3), (Source::Context(0), 1)] {
            let (lookup, rows) = Tabulated::identity(source).map(|_| 4.0).compact().unwrap();
            assert_eq!((rows.as_slice(), lookup.row_of.len()), (&[4.0][..], places));
            assert_eq!((lookup.row(-5.0), lookup.row(5.0)), (0, 0));
            assert_eq!(lookup.place(0.0) == lookup.place(1.0), places == 1);
        }
    }

    #[test]
    fn presence_is_recognised() {
        let size = Tabulated::identity(LENGTH).map(f32::abs);
        assert!(size.map(|x| x.clamp(0.0, 1.0)).is_presence());
        assert!(!size.map(|x| x.clamp(0.0, 2.0)).is_presence());
        assert!(!size.is_presence());
    }
}
