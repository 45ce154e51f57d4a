//! Layout shared with `bpf/first.c`, byte by byte.

use std::net::IpAddr;

/// Maximum flow workers.
pub const WORKERS_MAX: u32 = 64;
/// Entries per set, among which a flow finds its place.
pub const WAYS: usize = 4;
/// Bits of an entry's version: another flow takes the entry, its counts restart; and the increment.
pub const GIVING: u32 = 1;
pub const CLEARING: u32 = 2;
pub const VERSION_STEP: u32 = 16;

/// Flags of a record.
pub const HAS_COUNTS: u16 = 1;
pub const OPENS: u16 = 2;
pub const IS_UDP: u16 = 4;
pub const IS_REPORT: u16 = 8;

/// Elements of a series, and depths, at most.
pub const ELEMENTS_MAX: usize = 12;
pub const DEPTHS_MAX: usize = 6;

/// Flags of an entry.
pub const IS_OURS: u8 = 2;
pub const IS_MARKED: u8 = 64;
pub const IS_KEPT: u8 = 128;

/// Fields of a series' state, of 8 bits each, above the version.
pub const CLAIMED_SHIFT: u32 = 32;
pub const WRITTEN_SHIFT: u32 = 40;
pub const REPORTED_SHIFT: u32 = 48;

/// Converts to ticks of 2^20 ns of `CLOCK_MONOTONIC`, which wrap. Times above 0 are at least a
/// tick.
pub fn ticks(ns: u64) -> u32 {
    match ns {
        0 => 0,
        ns => ((ns >> 20) as u32).max(1),
    }
}

/// The two ends of a flow in order, as numbers. An address' last word comes first, so an IPv4
/// address is word 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    pub low: [u32; 4],
    pub high: [u32; 4],
    pub low_port: u16,
    pub high_port: u16,
    pub protocol: u8,
    pub is_v6: u8,
}

/// The kernel's counts of a flow. Index 0 is from the low end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    /// Time of the last packet, in ticks.
    pub last: u32,
    /// Version of the entry; identifies the counter together with the flow.
    pub version: u32,
}

/// A worker's counters, per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    pub counted: u64,
    pub counted_bytes: u64,
    pub sent: u64,
    pub dropped: u64,
    pub evicted: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.counted += other.counted;
        self.counted_bytes += other.counted_bytes;
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.evicted += other.evicted;
    }
}

const _: () = assert!(size_of::<Counters>() == 40);

impl Key {
    pub fn new(protocol: u8, ends: [(IpAddr, u16); 2]) -> Key {
        let [one, other] = ends;
        let [low, high] = if one <= other { ends } else { [other, one] };
        Key {
            low: words(low.0),
            high: words(high.0),
            low_port: low.1,
            high_port: high.1,
            protocol,
            is_v6: low.0.is_ipv6().into(),
        }
    }

    pub fn ends(&self) -> [(IpAddr, u16); 2] {
        let address = |words: [u32; 4]| match self.is_v6 {
            0 => IpAddr::V4(words[0].into()),
            _ => {
                let words = words.iter().rev();
                let bits = words.fold(0, |bits, word| bits << 32 | u128::from(*word));
                IpAddr::V6(bits.into())
            }
        };
        [(address(self.low), self.low_port), (address(self.high), self.high_port)]
    }

    /// From the program's words: ports, protocol and family in one, then a word per pair of address
    /// words.
    pub fn from_words(kind: u64, word: impl Fn(usize) -> u64) -> Key {
        let is_v6 = (kind >> 40) as u8;
        let words = if is_v6 == 0 { 1 } else { 4 };
        let words: [u64; 4] = std::array::from_fn(|i| if i < words { word(i) } else { 0 });
        Key {
            low: words.map(|word| word as u32),
            high: words.map(|word| (word >> 32) as u32),
            low_port: kind as u16,
            high_port: (kind >> 16) as u16,
            protocol: (kind >> 32) as u8,
            is_v6,
        }
    }

    /// Ports, protocol and family as the program has them; never 0.
    pub fn kind(&self) -> u64 {
        let ports = u64::from(self.low_port) | u64::from(self.high_port) << 16;
        ports | u64::from(self.protocol) << 32 | u64::from(self.is_v6) << 40
    }

    /// Word `i` of both addresses.
    pub fn word(&self, i: usize) -> u64 {
        u64::from(self.low[i]) | u64::from(self.high[i]) << 32
    }
}

fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [address.to_bits(), 0, 0, 0],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [0, 32, 64, 96].map(|shift| (bits >> shift) as u32)
        }
    }
}

/// A packet with payload that did not come up: an element of a series that the kernel collects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Element(pub u64);

impl Element {
    /// Time in µs of `CLOCK_BOOTTIME`, which wraps.
    pub fn us(self) -> u32 {
        self.0 as u32
    }

    /// Bytes at the IP layer.
    pub fn length(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub fn is_from_high(self) -> bool {
        self.0 >> 48 & 1 != 0
    }

    pub fn has_fin(self) -> bool {
        self.0 >> 49 & 1 != 0
    }

    pub fn has_rst(self) -> bool {
        self.0 >> 50 & 1 != 0
    }

    /// Whether it is of the flow whose entry has this version, and no packet was on its way for so
    /// long that another flow got the entry meanwhile.
    pub fn is_of(self, version: u32) -> bool {
        self.0 >> 51 == u64::from(version / VERSION_STEP) << 51 >> 51
    }
}

/// Elements of a flow that no record had, and its label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// The first one's number, and the one behind the last.
    pub from: u8,
    pub to: u8,
    /// Elements of the depth that decided; 0: none has yet.
    pub decided: u8,
    /// The class, if the flow has a label.
    pub class: u8,
    /// Whether the program has seen to the connection's mark: `IS_MARKED` or `IS_KEPT`.
    pub marked: u8,
    /// By depth: class, confidence in Q15, and edition; 0: not asked.
    pub answers: [u32; DEPTHS_MAX],
    pub elements: [Element; ELEMENTS_MAX],
}

impl Reported {
    const BYTES: usize = 128;

    fn read(bytes: &[u8; Reported::BYTES]) -> Reported {
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let most = ELEMENTS_MAX as u8;
        Reported {
            from: bytes[0].min(most),
            to: bytes[1].min(most),
            decided: bytes[2],
            class: bytes[3],
            marked: bytes[4],
            answers: std::array::from_fn(|i| half(8 + 4 * i)),
            elements: std::array::from_fn(|i| Element(word(32 + 8 * i))),
        }
    }

    /// Those elements.
    pub fn elements(&self) -> &[Element] {
        self.elements.get(usize::from(self.from)..usize::from(self.to)).unwrap_or_default()
    }
}

/// The header of a frame in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub time_ns: u64,
    pub wire: u32,
    pub captured: u32,
    /// The tag that the kernel took off: protocol and value; both 0 for none.
    pub tag: (u16, u16),
    pub gso_size: u16,
    pub flags: u16,
    pub key: Key,
    pub counts: KernelCounts,
    /// Only where the kernel labels flows.
    pub reported: Reported,
}

impl Record {
    /// Bytes of the header, without what is reported.
    pub const BYTES: usize = 104;

    /// A record and its frame; `None` if there are too few bytes, which the program never writes.
    pub fn read(bytes: &[u8], has_labels: bool) -> Option<(Record, &[u8])> {
        let (head, mut rest) = bytes.split_first_chunk::<{ Record::BYTES }>()?;
        let mut reported = Reported::default();
        let flags = u16::from_ne_bytes([head[22], head[23]]);
        if has_labels {
            let bytes;
            (bytes, rest) = rest.split_first_chunk()?;
            if flags & HAS_COUNTS != 0 {
                reported = Reported::read(bytes);
            }
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
        let quarter = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let captured = half(12);
        let record = Record {
            time_ns: word(0),
            wire: half(8),
            captured,
            // The kernel has the protocol in network order.
            tag: (u16::from_be_bytes([head[16], head[17]]), quarter(18)),
            gso_size: quarter(20),
            flags,
            key: Key::from_words(word(56), |i| word(24 + 8 * i)),
            counts: KernelCounts {
                packets: [word(64), word(72)],
                bytes: [word(80), word(88)],
                last: half(96),
                version: half(100),
            },
            reported,
        };
        Some((record, rest.get(..captured as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_have_one_key_which_names_the_ends() {
        let (v4, v6): ([IpAddr; 2], [IpAddr; 2]) = (
            ["10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()],
            ["2001:db8::1".parse().unwrap(), "2001:db8:1::".parse().unwrap()],
        );
        for addresses in [v4, v6] {
            let ends = [(addresses[0], 40_000), (addresses[1], 53)];
            let key = Key::new(17, ends);
            assert_eq!(key, Key::new(17, [ends[1], ends[0]]));
            let mut named = key.ends();
            assert!(named[0] <= named[1]);
            named.sort_unstable();
            let mut ends = ends;
            ends.sort_unstable();
            assert_eq!(named, ends);
        }
    }

    #[test]
    fn a_cut_record_is_none() {
        let mut bytes = vec![0; Record::BYTES + 60];
        bytes[12] = 60;
        assert_eq!(Record::read(&bytes, false).unwrap().1.len(), 60);
        assert!(Record::read(&bytes[..Record::BYTES + 59], false).is_none());
        assert!(Record::read(&bytes[..Record::BYTES - 1], false).is_none());
    }
}
