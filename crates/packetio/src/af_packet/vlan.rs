//! Puts back the outermost VLAN tag, which the kernel strips and reports in the frame's header: the
//! two addresses in front of it move down into the room before the frame.

/// Bytes of a tag: the protocol that announces it and the tag itself.
pub(super) const TAG: usize = 4;
/// Protocol of an 802.1Q tag, the default where the kernel names none.
pub(super) const DOT1Q: u16 = 0x8100;
/// Bytes of the two addresses.
const ADDRESSES: usize = 12;

/// Puts a tag into the frame at `at` in `bytes`, which then begins [`TAG`] bytes earlier. `false`
/// without any change if there is no room or the frame is cut within its addresses.
pub(super) fn restore(bytes: &mut [u8], at: usize, captured: u32, protocol: u16, tag: u16) -> bool {
    let Some(start) = at.checked_sub(TAG) else {
        return false;
    };
    let Some(head) = bytes.get_mut(start..at + ADDRESSES) else {
        return false;
    };
    if (captured as usize) < ADDRESSES {
        return false;
    }
    head.copy_within(TAG.., 0);
    let ([protocol_0, protocol_1], [tag_0, tag_1]) = (protocol.to_be_bytes(), tag.to_be_bytes());
    head[ADDRESSES..].copy_from_slice(&[protocol_0, protocol_1, tag_0, tag_1]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_room_stays_as_it_is() {
        let mut bytes = [7; 40];
        assert!(!restore(&mut bytes, 3, 30, DOT1Q, 5));
        assert!(!restore(&mut bytes, 4, 11, DOT1Q, 5));
        assert!(!restore(&mut bytes, 30, 12, DOT1Q, 5));
        assert_eq!(bytes, [7; 40]);
    }
}
