//! Builds and reads netlink messages: headers and attributes.
//!
//! Headers are in native byte order, attributes of netfilter in network order by default. Numbers
//! are from `linux/netlink.h` and `linux/netfilter/nfnetlink.h`.

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: request an answer on success, too.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP`: request the whole table.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;

/// The answer to a request, success or error.
const NLMSG_ERROR: u16 = 2;
/// Kinds below this are netlink's own.
const NLMSG_MIN_TYPE: u16 = 0x10;
pub(crate) const HEADER_BYTES: usize = 16;
/// `nfgenmsg`: family, version, resource.
const FAMILY_BYTES: usize = 4;
/// Marks an attribute that contains attributes.
const NESTED: u16 = 0x8000;

/// The header of a message.
pub(crate) struct Header {
    /// Subsystem and message.
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// Address family, or a table's family.
    pub family: u8,
    /// `nfgenmsg.res_id`.
    pub resource: u16,
}

/// Appends a message with the attributes that `fill` appends.
pub(crate) fn push_message(out: &mut Vec<u8>, header: &Header, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]); // the length, once it is known
    out.extend(header.kind.to_ne_bytes());
    out.extend(header.flags.to_ne_bytes());
    out.extend(header.sequence.to_ne_bytes());
    out.extend([0; 4]); // from no port in particular: the kernel knows the sender
    out.extend([header.family, 0]); // nfgenmsg: family, version
    out.extend(header.resource.to_be_bytes());
    fill(out);
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Appends length, kind, value, and padding to four bytes, which the length excludes.
pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends a text with the NUL that the kernel expects.
pub(crate) fn text(out: &mut Vec<u8>, kind: u16, value: &str) {
    attribute(out, kind, &[value.as_bytes(), &[0]].concat());
}

/// Appends an attribute that contains what `fill` appends.
pub(crate) fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    attribute(out, NESTED | kind, &[]);
    fill(out);
    let length = (out.len() - start) as u16;
    out[start..start + 2].copy_from_slice(&length.to_ne_bytes());
}

/// The attributes in these bytes with their kinds; truncated ones have no value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        // The two highest bits tell the value's encoding.
        let kind = u16::from_ne_bytes([k0, k1]) & 0x3fff;
        let value = bytes.get(4..length).unwrap_or_default();
        let next = length.next_multiple_of(4).max(4);
        bytes = bytes.get(next..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The kernel's answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// The request's number.
    pub sequence: u32,
    /// 0: done. Otherwise an error number, positive as in errno(3).
    pub errno: i32,
    /// Subsystem and message; `NLMSG_ERROR` for an answer without content.
    pub kind: u16,
    /// Attributes of the answer.
    pub attributes: &'a [u8],
}

/// The answers in received bytes. Other messages are skipped; reading ends at the first invalid
/// length.
pub(crate) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    std::iter::from_fn(move || {
        loop {
            let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
            let length = u32_at(header, 0)? as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let sequence = u32_at(header, 8)?;
            let payload = bytes.get(..length)?.get(HEADER_BYTES..)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            // The error number is followed by the request, which is not needed.
            let (errno, attributes) = match (kind, u32_at(payload, 0)) {
                (NLMSG_ERROR, Some(errno)) => ((errno as i32).wrapping_neg(), &[][..]),
                (NLMSG_MIN_TYPE.., Some(_)) => (0, &payload[FAMILY_BYTES..]),
                _ => continue,
            };
            return Some(Answer { sequence, errno, kind, attributes });
        }
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ack(sequence: u32, errno: i32, tail: &[u8]) -> Vec<u8> {
        let length = (20 + tail.len()) as u32;
        let mut out = length.to_ne_bytes().to_vec();
        out.extend(NLMSG_ERROR.to_ne_bytes());
        out.extend([0; 2]);
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend((-errno).to_ne_bytes());
        out.extend(tail);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    #[test]
    fn answers_are_read_one_after_the_other() {
        let mut bytes = ack(5, 0, &[]);
        bytes.extend(ack(6, 2, b"the request"));
        let mut noise = ack(9, 1, &[]);
        noise[4] = 3; // NLMSG_DONE
        bytes.extend(noise);
        bytes.extend(ack(7, 1, &[]));
        let read: Vec<_> = answers(&bytes).map(|answer| (answer.sequence, answer.errno)).collect();
        assert_eq!(read, [(5, 0), (6, 2), (7, 1)]);
        // An error number that is cut off is none.
        let mut short = ack(1, 0, &[]);
        short[0] = 18;
        assert_eq!(answers(&short).count(), 0);
    }

    #[test]
    fn a_text_ends_with_nul_and_attributes_are_read_back() {
        let mut out = Vec::new();
        text(&mut out, 3, "four");
        attribute(&mut out, 4, &[1]);
        let read: Vec<_> = attributes(&out).collect();
        assert_eq!(read, [(3, &b"four\0"[..]), (4, &[1])]);
        assert_eq!(out.len(), 12 + 8);
        // A length that leads beyond the end, and one of 0.
        assert_eq!(attributes(&[9, 0, 1, 0, 7]).collect::<Vec<_>>(), [(1, &[][..])]);
        assert_eq!(attributes(&[0; 8]).count(), 2);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // Every answer takes a header's worth of bytes at least, every attribute four.
            prop_assert!(answers(&bytes).count() <= bytes.len() / HEADER_BYTES);
            prop_assert!(attributes(&bytes).count() <= bytes.len() / 4);
        }

        #[test]
        fn a_damaged_answer_does_not_hide_those_before(at in 20..40_usize, value: u8) {
            let mut bytes = ack(1, 0, &[]);
            bytes.extend(ack(2, 2, &[]));
            bytes[at] = value;
            let first = answers(&bytes).next().map(|answer| (answer.sequence, answer.errno));
            prop_assert_eq!(first, Some((1, 0)));
        }
    }
}
