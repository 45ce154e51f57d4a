//! The hot line of a flow: its key, its states, its action, and counters that carry into the cold
//! line.

use crate::Packet;
use crate::action::PolicyStamp;
use crate::key::{KIND_UDP, KIND_V6, Key};
use crate::wire::{TCP_ACK, TCP_PSH};

/// The hot line of a flow, without its label word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Hot {
    /// Time of the last packet, µs since the epoch, in bits 8 and up. Below: which
    /// [`FLAGS_USUAL`] the forward side has sent, and, shifted by [`REVERSE`], the reverse side.
    last: i64,
    low: [u64; 2],
    high: [u64; 2],
    ports: u32,
    /// Packets forward and reverse, modulo [`PACKETS_CARRIED`] and 0 only where there were none.
    pub(super) packets: [u8; 2],
    /// Number of the flow's action, where `policy` says by which map.
    pub action: u8,
    pub policy: PolicyStamp,
    /// Bytes forward and reverse, bits 0 to 15 and 16 to 23.
    pub(super) bytes_low: [u16; 2],
    pub(super) bytes_high: [u8; 2],
    /// Kind bits of the key, and the `STATE_` bits.
    state: u8,
    /// Low bits of the tick at which the flow was last reported, see
    /// [`crate::expiry::ActiveTimeout`].
    pub reported_tick: u8,
}

const STATE_KIND: u8 = KIND_UDP | KIND_V6;
/// Forward is from the key's low end to its high end.
const STATE_LOW_IS_FORWARD: u8 = 0x04;
/// A FIN came from the forward side; shifted by one, from the reverse side.
pub(crate) const STATE_FIN_FORWARD: u8 = 0x08;
/// A FIN came from the reverse side.
pub(crate) const STATE_FIN_REVERSE: u8 = 0x10;
/// A RST came.
pub(crate) const STATE_RST: u8 = 0x20;
/// The series was completed: it was emitted or shed.
pub(crate) const STATE_EMITTED: u8 = 0x40;
/// Live: no packet adds to a series any more: an answer has decided, or all series are complete.
pub(crate) const STATE_COLLECTED: u8 = 0x80;
/// Without [`STATE_EMITTED`]: the flow gives no series, as a rule or the only task says. No packet
/// adds to one either, so it has the place of [`STATE_COLLECTED`].
pub(crate) const STATE_WITHHELD: u8 = STATE_COLLECTED;
/// By packet time, with [`STATE_EMITTED`]: the label counts for packets from now on. Series are
/// collected to their ends then, so that it can have the place of [`STATE_COLLECTED`].
pub(crate) const STATE_IN_EFFECT: u8 = STATE_COLLECTED;
/// A state that no flow has, see [`Hot::has_all`].
pub(crate) const STATE_NEVER: u16 = 0x100;

/// Flags of TCP that most packets have. Once they are known of a direction, its packets need not
/// touch the line where all flags are noted, see [`crate::headers`].
pub(crate) const FLAGS_USUAL: u8 = TCP_ACK | TCP_PSH;
const REVERSE: usize = 2;
const _: () = assert!(FLAGS_USUAL & FLAGS_USUAL << REVERSE == 0 && FLAGS_USUAL.leading_zeros() > 2);
/// Bits below the time in [`Hot::last`].
const TIME_SHIFT: u32 = 8;

impl Hot {
    /// Begins a flow whose first packet goes from the low end (`from_low`) or
    /// from the high one.
    pub fn begin(&mut self, key: &Key, from_low: bool) {
        debug_assert_eq!(key.kind & !STATE_KIND, 0, "a kind with the bits of states");
        *self = Hot {
            low: key.low,
            high: key.high,
            ports: key.ports,
            state: key.kind | if from_low { STATE_LOW_IS_FORWARD } else { 0 },
            ..Hot::default()
        };
    }

    /// Time of the last packet, µs since the epoch.
    #[inline]
    pub fn last_us(&self) -> i64 {
        self.last >> TIME_SHIFT
    }

    /// `time_us` is in the range of [`crate::Packet::time_us`].
    #[inline]
    pub fn set_last_us(&mut self, time_us: i64) {
        debug_assert!(time_us.abs() <= Packet::TIME_MAX_US, "the time does not fit");
        self.last = time_us << TIME_SHIFT | self.last & 0xff;
    }

    /// Whether all of these flags of TCP are known of a direction.
    #[inline]
    pub fn has_flags(&self, direction: usize, tcp_flags: u8) -> bool {
        let known = self.last as u8 >> (REVERSE * (direction & 1)) & FLAGS_USUAL;
        tcp_flags & !known == 0
    }

    /// Flags of TCP are known of a direction.
    pub fn set_flags(&mut self, direction: usize, tcp_flags: u8) {
        let known = (tcp_flags & FLAGS_USUAL) << (REVERSE * (direction & 1));
        self.last |= i64::from(known);
    }

    pub fn key(&self) -> Key {
        Key { low: self.low, high: self.high, ports: self.ports, kind: self.state & STATE_KIND }
    }

    #[inline]
    pub fn is_of(&self, key: &Key) -> bool {
        // Without branches: nearly always all are equal.
        let addresses = (self.low[0] ^ key.low[0])
            | (self.low[1] ^ key.low[1])
            | (self.high[0] ^ key.high[0])
            | (self.high[1] ^ key.high[1]);
        let rest = (self.ports ^ key.ports) | u32::from((self.state & STATE_KIND) ^ key.kind);
        addresses | u64::from(rest) == 0
    }

    #[inline]
    pub fn has(&self, state: u8) -> bool {
        self.state & state == state
    }

    /// [`STATE_WITHHELD`], which has a meaning only without [`STATE_EMITTED`].
    pub fn is_withheld(&self) -> bool {
        self.has(STATE_WITHHELD) && !self.has(STATE_EMITTED)
    }

    /// Whether it has all of these states. [`STATE_NEVER`] is one that no flow has.
    #[inline]
    pub fn has_all(&self, states: u16) -> bool {
        u16::from(self.state) & states == states
    }

    #[inline]
    pub fn set(&mut self, state: u8) {
        debug_assert_eq!(state & (STATE_KIND | STATE_LOW_IS_FORWARD), 0, "not a state");
        self.state |= state;
    }

    pub fn is_low_forward(&self) -> bool {
        self.has(STATE_LOW_IS_FORWARD)
    }

    /// 0 for a forward packet, 1 for one in reverse.
    #[inline]
    pub fn direction(&self, from_low: bool) -> usize {
        usize::from(from_low != self.is_low_forward())
    }

    /// The flow ended by FIN from both sides, or by RST.
    pub fn is_closed(&self) -> bool {
        self.has(STATE_RST) || self.has(STATE_FIN_FORWARD | STATE_FIN_REVERSE)
    }

    /// The forward side or the reverse side sent FIN, or one of them RST.
    pub fn is_closing(&self) -> bool {
        self.state & (STATE_RST | STATE_FIN_FORWARD | STATE_FIN_REVERSE) != 0
    }

    /// Packets came since the flow's last record.
    pub fn has_packets(&self) -> bool {
        self.packets != [0; 2]
    }

    /// Whether the next packet in a direction is one at which a flow is held against bounds: the
    /// 1st, 2nd, 4th, 8th, 16th, and each 32nd or so.
    #[inline]
    pub fn is_at_mark(&self, direction: usize) -> bool {
        // As in `Hot::count`; past 255 comes 1.
        let next = self.packets[direction & 1].wrapping_add(1);
        next & next.wrapping_sub(1) == 0 || next.is_multiple_of(32)
    }

    /// Whether no packet came in the direction of this one since the flow's last record.
    #[inline]
    pub fn is_first(&self, from_low: bool) -> bool {
        self.packets[self.direction(from_low) & 1] == 0
    }

    /// A packet came in reverse since the flow's last record, however many did.
    #[inline]
    pub fn has_reverse_packets(&self) -> bool {
        self.packets[1] != 0
    }

    /// Counts a packet; says what must carry into the cold line.
    #[inline]
    pub fn count(&mut self, direction: usize, length: u32) -> Option<Carry> {
        let direction = direction & 1;
        // Past 255 comes 1, so that a count of 0 says that no packet came.
        let (packets, packets_carry) = self.packets[direction].overflowing_add(1);
        let packets = packets + u8::from(packets_carry);
        debug_assert_ne!(packets, 0, "0 says that no packet came");
        let bytes = self.bytes(direction) + length;
        self.packets[direction] = packets;
        self.set_bytes(direction, bytes);
        (packets_carry || bytes >> 24 != 0)
            .then_some(Carry { packets: packets_carry, bytes: (bytes >> 24) as u8 })
    }

    #[inline]
    pub(super) fn bytes(&self, direction: usize) -> u32 {
        u32::from(self.bytes_low[direction]) | u32::from(self.bytes_high[direction]) << 16
    }

    #[inline]
    pub(super) fn set_bytes(&mut self, direction: usize, bytes: u32) {
        self.bytes_low[direction] = bytes as u16;
        self.bytes_high[direction] = (bytes >> 16) as u8;
    }
}

/// Packets that one carry of the hot line's counter stands for.
pub(super) const PACKETS_CARRIED: u64 = u8::MAX as u64;

/// What goes from the hot line's counters to the cold line's.
#[derive(Clone, Copy)]
pub(crate) struct Carry {
    pub(super) packets: bool,
    pub bytes: u8,
}
