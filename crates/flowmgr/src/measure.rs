//! For measurements: what memory allows a table, and which bucket a flow falls into. The data path
//! uses neither.

use std::io;

use crate::hash::{HashKind, Hasher};
use crate::key::Key;
use crate::memory::{Array, Pages};
use crate::prefetch::prefetch;

/// 64-bit words in a cache line.
const WORDS: usize = 8;

/// Reads in flight, at most.
const DEPTH_MAX: usize = 64;

/// Memory like the tables', to read random cache lines from.
pub struct RandomLines {
    words: Array<u64>,
}

impl RandomLines {
    /// At least `bytes` of memory, every page of it in use.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(bytes: usize) -> io::Result<RandomLines> {
        let lines = bytes.div_ceil(8 * WORDS).max(1);
        let mut words = Array::new(lines * WORDS)?;
        for (line, word) in words.iter_mut().step_by(WORDS).enumerate() {
            *word = line as u64 + 1;
        }
        Ok(RandomLines { words })
    }

    /// The pages under it.
    pub fn pages(&self) -> Pages {
        self.words.pages()
    }

    /// Reads `reads` lines at random, each prefetched `depth` reads (a power of two up to 64)
    /// earlier. Returns the sum of what was read.
    pub fn read(&self, depth: usize, reads: usize) -> u64 {
        let mask = depth.next_power_of_two().min(DEPTH_MAX) - 1;
        let lines = (self.words.len() / WORDS) as u64;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (((state >> 32) * lines) >> 32) as usize * WORDS
        };
        let mut asked = [0; DEPTH_MAX];
        let mut sum = 0u64;
        for read in 0..reads + mask + 1 {
            let slot = &mut asked[read & mask];
            if read > mask {
                sum = sum.wrapping_add(self.words[*slot]);
            }
            *slot = draw();
            prefetch(&self.words, *slot);
        }
        sum
    }
}

/// The hash of a flow that has none from a NIC. Its low bits choose the bucket, its top byte is the
/// tag.
pub fn hash_by(kind: HashKind) -> impl Fn(&Key) -> u64 {
    let hasher = Hasher::new(kind);
    move |key| hasher.hash(key, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_reads_reach_lines_all_over_and_are_as_many_as_asked() {
        let one = RandomLines::new(1).unwrap();
        assert_eq!(one.read(16, 1000), 1000);
        let many = RandomLines::new(1 << 20).unwrap();
        let mean = many.read(64, 10_000) / 10_000;
        assert!((7500..9000).contains(&mean), "{mean}");
        assert_eq!(many.read(8, 10_000), many.read(32, 10_000));
    }
}
