//! A pcapng interface's clock: converts ticks to time since the epoch.

use super::step::ByteOrder;

const RESOLUTION: u16 = 9; // if_tsresol
const OFFSET: u16 = 14; // if_tsoffset
const END: u16 = 0; // opt_endofopt

/// Converts ticks to time. The usual resolutions avoid the division of 128-bit numbers, which costs
/// more than the rest of a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// Ticks per second. Saturates, which makes every time 0, as it should.
    per_second: i128,
    offset_us: i128,
}

impl Clock {
    /// The clock of an interface with these options; microseconds by default. The last of repeated
    /// options counts; a truncated one ends the list.
    pub fn from_options(options: &[u8], order: ByteOrder) -> Self {
        let mut clock = Self { per_second: 1_000_000, offset_us: 0 };
        let mut rest = options;
        while let Some((&[c0, c1, s0, s1], values)) = rest.split_first_chunk() {
            let size = usize::from(order.u16([s0, s1]));
            let (code, Some(value)) = (order.u16([c0, c1]), values.get(..size)) else {
                break;
            };
            match (code, value) {
                (END, _) => break,
                (RESOLUTION, &[resolution]) => clock.per_second = ticks_per_second(resolution),
                (OFFSET, value) => {
                    if let Ok(seconds) = value.try_into() {
                        clock.offset_us = i128::from(order.i64(seconds)) * 1_000_000;
                    }
                }
                _ => {}
            }
            rest = values.get(size.next_multiple_of(4)..).unwrap_or(&[]);
        }
        clock
    }

    /// Microseconds since the epoch, rounded down and saturating, and the nanoseconds beyond.
    #[inline]
    pub fn time(&self, ticks: u64) -> (i64, u16) {
        let (us, sub_ns) = match self.per_second {
            1_000_000 => (i128::from(ticks), 0),
            1_000_000_000 => (i128::from(ticks / 1000), (ticks % 1000) as u16),
            per_second => {
                let ns = i128::from(ticks) * 1_000_000_000 / per_second;
                (ns / 1000, (ns % 1000) as u16)
            }
        };
        let us = (us + self.offset_us).clamp(i64::MIN.into(), i64::MAX.into());
        (us as i64, sub_ns)
    }
}

/// A power of ten or, with the highest bit set, of two.
fn ticks_per_second(resolution: u8) -> i128 {
    let base = if resolution & 0x80 == 0 { 10_i128 } else { 2 };
    let exponent = u32::from(resolution & 0x7f);
    base.checked_pow(exponent).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(code.to_le_bytes());
        bytes.extend((value.len() as u16).to_le_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn clock(options: &[Vec<u8>]) -> Clock {
        Clock::from_options(&options.concat(), ByteOrder::Little)
    }

    #[test]
    fn microseconds_unless_told() {
        assert_eq!(clock(&[]).time(1_234_567), (1_234_567, 0));
        assert_eq!(clock(&[option(1, b"a comment")]).time(7), (7, 0));
    }

    #[test]
    fn resolutions_round_down_to_nanoseconds() {
        assert_eq!(clock(&[option(9, &[9])]).time(1_999), (1, 999));
        assert_eq!(clock(&[option(9, &[0])]).time(3), (3_000_000, 0));
        assert_eq!(clock(&[option(9, &[12])]).time(1_999_999), (1, 999));
        let binary = clock(&[option(9, &[0x80 | 20])]);
        assert_eq!(binary.time(1 << 20), (1_000_000, 0));
        assert_eq!(binary.time(1), (0, 953)); // 953.67 ns
    }

    #[test]
    fn absurd_resolutions_leave_no_time() {
        for resolution in [100, 127, 0xff] {
            assert_eq!(clock(&[option(9, &[resolution])]).time(u64::MAX), (0, 0));
        }
    }

    #[test]
    fn offsets_add_seconds_and_saturate() {
        let offset = |seconds: i64| option(14, &seconds.to_le_bytes());
        assert_eq!(clock(&[offset(-3)]).time(1), (-2_999_999, 0));
        assert_eq!(clock(&[offset(i64::MAX)]).time(1), (i64::MAX, 0));
        assert_eq!(clock(&[offset(i64::MIN)]).time(1), (i64::MIN, 0));
        assert_eq!(clock(&[]).time(u64::MAX), (i64::MAX, 0));
    }

    #[test]
    fn options_of_a_wrong_size_are_passed_over() {
        let options = [option(9, &[9, 9]), option(14, &[1; 7]), option(9, &[3])];
        assert_eq!(clock(&options).time(5), (5_000, 0));
    }

    #[test]
    fn the_end_mark_and_a_cut_option_end_the_list() {
        assert_eq!(clock(&[option(0, &[]), option(9, &[9])]).time(5), (5, 0));
        let mut cut = option(9, &[9]);
        cut.truncate(4);
        assert_eq!(clock(&[cut]).time(5), (5, 0));
        let unpadded = option(9, &[9])[..5].to_vec();
        assert_eq!(clock(&[unpadded]).time(5_000), (5, 0));
    }
}
