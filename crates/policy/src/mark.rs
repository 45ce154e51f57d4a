//! Connection marks, by which kernel rules find the flows of a label.

use crate::Dscp;

/// A change of a connection's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The new bits, within the mask; not 0.
    pub bits: u32,
    /// The bits to change.
    pub mask: u32,
}

/// Mask of marks that hold a DSCP.
pub const DSCP_MASK: u32 = 0xbf;
/// Set in marks that hold a DSCP, since the DSCP may be 0.
const DSCP_VALID: u32 = 0x80;

impl Mark {
    /// The mark that `tc ... action ctinfo dscp 63 128` copies into packets (tc-ctinfo(8)): the
    /// DSCP in the six low bits, and a valid bit.
    pub fn of_dscp(dscp: Dscp) -> Mark {
        Mark { bits: u32::from(dscp.code_point()) | DSCP_VALID, mask: DSCP_MASK }
    }

    /// The DSCP in the mark, if it holds one.
    pub fn dscp(self) -> Option<Dscp> {
        let holds_dscp = self.mask == DSCP_MASK && self.bits & DSCP_VALID != 0;
        let code_point = (self.bits & !DSCP_VALID) as u8;
        Dscp::new(code_point).filter(|_| holds_dscp)
    }

    /// Bits and mask in one word, for an atomic; 0 for no mark.
    pub fn to_word(mark: Option<Mark>) -> u64 {
        mark.map_or(0, |mark| u64::from(mark.bits) << 32 | u64::from(mark.mask))
    }

    /// The mark in a word; `None` for 0.
    pub fn of_word(word: u64) -> Option<Mark> {
        (word != 0).then_some(Mark { bits: (word >> 32) as u32, mask: word as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_a_mark_or_none() {
        let mark = Mark { bits: 0x8000_0300, mask: 0xffff_ff00 };
        for mark in [Some(mark), None] {
            assert_eq!(Mark::of_word(Mark::to_word(mark)), mark);
        }
    }

    #[test]
    fn a_dscp_stands_in_the_low_bits() {
        let bits = |name| Mark::of_dscp(Dscp::parse(name).unwrap()).bits;
        assert_eq!([bits("EF"), bits("CS1"), bits("CS0")], [174, 136, 128]);
        for code_point in 0..=Dscp::MAX {
            let mark = Mark::of_dscp(Dscp::new(code_point).unwrap());
            assert_eq!(mark.bits & !mark.mask, 0);
            assert_eq!(mark.dscp(), Dscp::new(code_point));
            // As act_ctinfo reads it: `dscp 63 128`.
            assert_eq!((mark.bits & 63, mark.bits & 128), (u32::from(code_point), 128));
        }
    }
}
