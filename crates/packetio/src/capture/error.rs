//! Errors of capture files. Messages are one line: file, error, place, and packets read before.

use std::io;

use crate::CAPTURED_MAX;

/// Maximum bytes of a packet or interface block: a packet of [`CAPTURED_MAX`] bytes and as much
/// again for options.
pub(super) const BLOCK_MAX: u32 = 2 * CAPTURED_MAX;
/// Maximum interfaces of one section.
pub(super) const INTERFACES_MAX: usize = 65_536;

/// A capture ended early. All packets before the place were handed out.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file}: {kind} (byte {at}, after {packets} packet{})",
    if *packets == 1 { "" } else { "s" }
)]
pub struct CaptureError {
    /// The file's name as given, or `standard input`.
    pub file: String,
    /// The kind of error.
    pub kind: CaptureErrorKind,
    /// Offset of the broken record or block in the capture, after gunzipping.
    pub at: u64,
    /// Packets read before.
    pub packets: u64,
}

/// The kinds of errors of a capture.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum CaptureErrorKind {
    #[error("the file is empty")]
    Empty,
    #[error("truncated: the file ends inside {0}")]
    Truncated(Part),
    #[error("bad record: {0}")]
    BadRecord(Flaw),
    #[error(
        "not a capture: it begins with {0:02x?}, which is neither pcap nor pcapng, plain or in \
         gzip"
    )]
    UnknownFormat([u8; 4]),
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// The part of a capture that is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum Part {
    /// Of pcap, or the first four bytes of any format.
    #[error("the file header")]
    FileHeader,
    #[error("a record header")]
    RecordHeader,
    #[error("the data of a packet")]
    PacketData,
    #[error("a pcapng block")]
    Block,
    #[error("the gzip stream, which is cut or corrupt")]
    GzipStream,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum Flaw {
    #[error("a packet claims {0} captured bytes, more than {CAPTURED_MAX}")]
    CapturedTooLarge(u32),
    #[error("a packet claims {0} captured bytes, more than its block holds")]
    CapturedBeyondBlock(u32),
    #[error("a block length of {0}, below 12 or no multiple of 4")]
    BlockLength(u32),
    #[error("a block begins with the length {first} and ends with {last}")]
    BlockTrailer { first: u32, last: u32 },
    #[error("a block of kind {kind} with {bytes} bytes inside is too short for its kind")]
    BlockTooShort { kind: u32, bytes: usize },
    #[error("a packet or interface block of {0} bytes; at most {max} are read", max = BLOCK_MAX)]
    BlockTooLong(u32),
    #[error("a section with the unknown byte-order mark {0:02x?}")]
    ByteOrder([u8; 4]),
    #[error(
        "a packet of interface {index}, counted from 0, where its section has described {known}"
    )]
    UnknownInterface { index: u32, known: usize },
    #[error("a section with more than {max} interfaces", max = INTERFACES_MAX)]
    TooManyInterfaces,
}
