//! Tagging: the DSCP of a packet's outermost IP header.

/// Sets the DSCP of the IP header at `ip_at`, which [`crate::wire::parse`] found there; the two ECN
/// bits stay. An IPv4 header checksum is updated incrementally (RFC 1624 equation 3), so a correct
/// one stays correct and a wrong one is not hidden.
#[inline]
pub fn set_dscp(frame: &mut [u8], ip_at: u32, dscp: u8) {
    let Some(ip) = frame.get_mut(ip_at as usize..) else {
        return;
    };
    match ip {
        [version, ..] if *version >> 4 == 4 && ip.len() >= 20 => set_v4(ip, dscp),
        [version, ..] if *version >> 4 == 6 && ip.len() >= 40 => set_v6(ip, dscp),
        _ => {}
    }
}

/// The DSCP is the upper six bits of the second byte (RFC 2474).
#[inline]
fn set_v4(ip: &mut [u8], dscp: u8) {
    let old = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] = dscp << 2 | ip[1] & 3;
    let new = u16::from_be_bytes([ip[0], ip[1]]);
    if new == old {
        return;
    }
    let checksum = u16::from_be_bytes([ip[10], ip[11]]);
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// The traffic class straddles the first two bytes; IPv6 has no checksum.
fn set_v6(ip: &mut [u8], dscp: u8) {
    ip[0] = ip[0] & 0xf0 | dscp >> 2;
    ip[1] = ip[1] & 0x3f | dscp << 6;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checksum(header: &[u8]) -> u16 {
        let mut sum: u32 =
            header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !sum as u16
    }

    proptest! {
        #[test]
        fn v4_checksums_stay_right(
            mut header in prop::array::uniform20(any::<u8>()),
            dscp in 0u8..64,
            at in 0usize..20,
        ) {
            header[0] = 0x45;
            header[10..12].fill(0);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let mut frame = vec![0xee; at];
            frame.extend(header);
            set_dscp(&mut frame, at as u32, dscp);
            let tagged = &frame[at..];
            prop_assert_eq!(checksum(tagged), 0);
            prop_assert_eq!(tagged[1] >> 2, dscp);
            prop_assert_eq!(tagged[1] & 3, header[1] & 3);
            prop_assert_eq!(&tagged[2..10], &header[2..10]);
            prop_assert_eq!(&tagged[12..], &header[12..]);
        }

        #[test]
        fn v6_keeps_all_but_the_dscp(
            mut header in prop::collection::vec(any::<u8>(), 40),
            dscp in 0u8..64,
        ) {
            header[0] = 0x60 | header[0] & 15;
            let mut tagged = header.clone();
            set_dscp(&mut tagged, 0, dscp);
            let class = |ip: &[u8]| ip[0] << 4 | ip[1] >> 4;
            prop_assert_eq!(class(&tagged), dscp << 2 | class(&header) & 3);
            prop_assert_eq!(tagged[1] & 15, header[1] & 15);
            prop_assert_eq!(&tagged[2..], &header[2..]);
            prop_assert_eq!(tagged[0] >> 4, 6);
        }
    }

    #[test]
    fn what_is_no_header_is_left_alone() {
        for frame in [vec![], vec![0x45; 19], vec![0x60; 39], vec![0x75; 60]] {
            let mut tagged = frame.clone();
            set_dscp(&mut tagged, 0, 46);
            set_dscp(&mut tagged, 100, 46);
            assert_eq!(tagged, frame);
        }
    }
}
