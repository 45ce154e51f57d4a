//! Types shared by the pcap and pcapng parsers.
//!
//! A parser takes whole records off the front of the unread bytes. It does no I/O and keeps no
//! bytes, so it works the same on a chunk, a mapped file and in a test.

use super::error::{Flaw, Part};

/// A parser's progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    /// Bytes taken off the front.
    pub used: usize,
    /// Why it stopped.
    pub stop: Stop,
}

/// Why a parser stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It has the requested number of frames.
    Full,
    /// It needs `need` bytes after those used, more than there are. If the file ends here, it is
    /// truncated inside `inside`, or complete if no bytes are left.
    More { need: usize, inside: Part },
    /// The next record is bad.
    Bad(Flaw),
}

/// Byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    #[inline]
    pub fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub fn i64(self, bytes: [u8; 8]) -> i64 {
        match self {
            Self::Little => i64::from_le_bytes(bytes),
            Self::Big => i64::from_be_bytes(bytes),
        }
    }

    /// The first `N` numbers of 32 bits in `bytes`.
    #[inline]
    pub fn u32s<const N: usize>(self, bytes: &[u8]) -> Option<[u32; N]> {
        let (words, _) = bytes.as_chunks::<4>();
        let words = words.first_chunk::<N>()?;
        Some(words.map(|word| self.u32(word)))
    }
}
