//! What the pcap and the pcapng parser share.
//!
//! A parser is shown the unread bytes and takes whole records off their front. It does no I/O
//! and keeps no bytes, so it works alike on a chunk, on a mapped file and in a test.

use super::error::{Flaw, Part};

/// What a parser did with the bytes it was shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    /// Bytes taken off the front.
    pub used: usize,
    /// Why it stopped there.
    pub stop: Stop,
}

/// Why a parser stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It has as many frames as were asked for.
    Full,
    /// It must see at least `need` bytes after those used, more than there are. If fewer come,
    /// the file ends inside `inside`; if none are there, between two records.
    More { need: usize, inside: Part },
    /// The next record is bad.
    Bad(Flaw),
}

/// The order of the bytes in a file's numbers.
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

    /// `N` numbers of 32 bits from the front of `bytes`, if they are there.
    #[inline]
    pub fn u32s<const N: usize>(self, bytes: &[u8]) -> Option<[u32; N]> {
        let (words, _) = bytes.as_chunks::<4>();
        let words = words.first_chunk::<N>()?;
        Some(words.map(|word| self.u32(word)))
    }
}
