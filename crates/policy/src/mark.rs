//! Marks of connections, by which rules of the kernel find the flows of a label.

/// What is written to a connection: bits, and which of them are to be changed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The new bits, within the mask; not 0.
    pub bits: u32,
    /// The bits that are the program's to write.
    pub mask: u32,
}

impl Mark {
    /// Both in one word, so that an atomic holds them; 0 for no mark.
    pub fn to_word(mark: Option<Mark>) -> u64 {
        mark.map_or(0, |mark| u64::from(mark.bits) << 32 | u64::from(mark.mask))
    }

    /// The mark in a word, if there is one.
    pub fn of_word(word: u64) -> Option<Mark> {
        (word != 0).then_some(Mark {
            bits: (word >> 32) as u32,
            mask: word as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_a_mark_or_none() {
        let mark = Mark {
            bits: 0x8000_0300,
            mask: 0xffff_ff00,
        };
        for mark in [Some(mark), None] {
            assert_eq!(Mark::of_word(Mark::to_word(mark)), mark);
        }
    }
}
