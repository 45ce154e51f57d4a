//! What a segment of TCP says.

/// The sender has no more data.
pub const FIN: u8 = 0x01;
/// The sender opens a connection.
pub const SYN: u8 = 0x02;
/// The sender aborts the connection.
pub const RST: u8 = 0x04;
/// The acknowledgement number counts.
pub const ACK: u8 = 0x10;

/// Kinds of options (RFC 9293 §3.2, RFC 7323 §2.2 and §3.2).
const END: u8 = 0;
const NOTHING: u8 = 1;
const SCALE: u8 = 3;
const TIMESTAMPS: u8 = 8;

/// A header, with what lies behind it. The fields that each packet needs are read, the rest is left
/// for those that need it.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Not scaled, in the order of its bytes in the header.
    pub(crate) window_bytes: u16,
    bytes: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// `None` if the first 20 bytes are not there.
    #[inline(always)] // into the packet's walk, as is the next one
    pub fn new(bytes: &'a [u8]) -> Option<Tcp<'a>> {
        let header: &[u8; 20] = bytes.first_chunk()?;
        Some(Tcp {
            seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            ack: u32::from_be_bytes([header[8], header[9], header[10], header[11]]),
            window_bytes: u16::from_ne_bytes([header[14], header[15]]),
            bytes,
        })
    }

    /// The header and what lies behind it.
    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    fn options(self) -> &'a [u8] {
        let words = self.bytes.get(12).map_or(0, |byte| usize::from(byte >> 4));
        self.bytes.get(20..self.bytes.len().min(words * 4)).unwrap_or_default()
    }

    /// The shift of the window, if this SYN offers one; at most 14 (RFC 7323 §2.3).
    pub fn scale(self) -> Option<u8> {
        self.option(SCALE)?.first().map(|shift| (*shift).min(14))
    }

    /// TSval and TSecr.
    #[inline]
    pub fn timestamps(self) -> Option<(u32, u32)> {
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        };
        // As RFC 7323 appendix A recommends, and as nearly all send them.
        let value = match self.options().get(..12) {
            Some([NOTHING, NOTHING, TIMESTAMPS, 10, value @ ..]) => value,
            _ => self.option(TIMESTAMPS)?,
        };
        Some((word(value, 0)?, word(value, 4)?))
    }

    /// The contents of the first option of a kind.
    #[inline(never)]
    fn option(self, wanted: u8) -> Option<&'a [u8]> {
        let mut left = self.options();
        loop {
            match *left {
                [NOTHING, ref rest @ ..] => left = rest,
                [END, ..] | [] | [_] => return None,
                [kind, length, ..] => {
                    let option = left.get(2..usize::from(length))?;
                    if kind == wanted {
                        return Some(option);
                    }
                    left = &left[usize::from(length)..];
                }
            }
        }
    }
}

/// A segment, or several that were merged.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Number of the first byte.
    pub seq: u32,
    /// The number that the sender waits for.
    pub ack: u32,
    /// Byte 13 of the header; of merged ones, what any of them has.
    pub flags: u8,
    /// As in the header.
    pub window: u16,
    /// Bytes of payload, of all segments together.
    pub payload: u32,
    /// Bytes of payload of each segment but the last; of one alone, the same as `payload`.
    pub size: u32,
    /// Where options are.
    pub tcp: Tcp<'a>,
}

impl<'a> Segment<'a> {
    /// From the bytes of a header, with `flags`, `payload` and `size`.
    pub(crate) fn new(bytes: &'a [u8], flags: u8, payload: u32, size: u32) -> Option<Segment<'a>> {
        let tcp = Tcp::new(bytes)?;
        let window = u16::from_be(tcp.window_bytes);
        Some(Segment { seq: tcp.seq, ack: tcp.ack, flags, window, payload, size, tcp })
    }

    /// Numbers that the segment takes: bytes, SYN and FIN.
    pub fn length(&self) -> u32 {
        let of = |flag: u8| u32::from(self.flags & flag != 0);
        self.payload.wrapping_add(of(SYN)).wrapping_add(of(FIN))
    }

    /// How many segments it is, at least one.
    pub fn segments(&self) -> u32 {
        self.payload.div_ceil(self.size.max(1)).max(1)
    }
}
