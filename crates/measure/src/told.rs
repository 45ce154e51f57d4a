//! What is told of a flow.

use crate::flow::{Counted, NOT_MEASURED, STATE_UNSEEN};
use crate::{Feature, Features, Flow, More, Rtt};

/// What the caller knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// TCP, else UDP.
    pub is_tcp: bool,
    /// UDP from or to the port of DNS.
    pub is_dns: bool,
    /// From the first packet to the last one, µs.
    pub duration_us: u64,
    /// Packets since the last record.
    pub packets: [u64; 2],
    /// Their bytes at the IP layer.
    pub bytes: [u64; 2],
}

/// What was measured of a flow since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    features: Features,
    /// With the packets and bytes of all records.
    known: Known,
    server_handshake_us: u32,
    client_handshake_us: u32,
    response_us: u32,
    sides: [Side; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    is_seen: bool,
    rtt: Rtt,
    more_rtt: Rtt,
    counted: Counted,
    gap_us: u32,
    /// The lowest, the highest and the last; the lowest is above the highest if none is known.
    window: [u32; 3],
    sizes: Option<[u16; 2]>,
}

/// What was measured of one direction. A value is `None` if its feature is off or nothing was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldSide {
    /// Packets and bytes at the IP layer.
    pub volume: Option<[u64; 2]>,
    /// See [`Feature::Rtt`].
    pub rtt: Option<Rtt>,
    /// See [`Feature::RttTimestamps`].
    pub rtt_timestamps: Option<Rtt>,
    /// See [`Feature::Spin`].
    pub spin: Option<Rtt>,
    /// See [`Feature::Dns`].
    pub dns: Option<Rtt>,
    /// The longest gap, µs.
    pub gap_us: Option<u32>,
    /// The lowest, the highest and the last window, bytes.
    pub window: Option<[u32; 3]>,
    /// See [`Feature::Retransmits`].
    pub retransmits: Option<u32>,
    /// See [`Feature::OutOfOrder`].
    pub out_of_order: Option<u32>,
    /// See [`Feature::DuplicateAcks`].
    pub duplicate_acks: Option<u32>,
    /// See [`Feature::ZeroWindows`].
    pub zero_windows: Option<u32>,
    /// The shortest and the longest packet, bytes at the IP layer.
    pub sizes: Option<[u16; 2]>,
}

impl Told {
    /// What these features say of a flow.
    pub fn of(features: Features, flow: &Flow, more: Option<&More>, known: Known) -> Told {
        let all = |earlier: u64, now: u64| earlier.saturating_add(now);
        let known = Known {
            packets: [0, 1].map(|side| all(flow.packets[side].into(), known.packets[side])),
            bytes: [0, 1].map(|side| all(flow.bytes[side], known.bytes[side])),
            ..known
        };
        let is_scaled = flow.sides.iter().all(|side| side.scale <= 14);
        let side = |from: usize| {
            let own = &flow.sides[from];
            let [lowest, highest] = flow.windows[from];
            let scaled = |window: u16| u32::from(window) << own.scale;
            let window = [lowest, highest, u16::from_be(own.window_bytes)];
            Side {
                is_seen: own.state & STATE_UNSEEN == 0,
                rtt: flow.rtt[from],
                more_rtt: more.map(|more| more.rtt[from]).unwrap_or_default(),
                counted: flow.counted[from],
                gap_us: own.longest_us,
                window: if is_scaled { window.map(scaled) } else { [1, 0, 0] },
                sizes: more.and_then(|more| more.sizes(from)),
            }
        };
        Told {
            features,
            known,
            server_handshake_us: flow.server_handshake_us,
            client_handshake_us: flow.client_handshake_us,
            response_us: flow.response_us,
            sides: [side(0), side(1)],
        }
    }

    /// See [`Feature::ServerHandshake`].
    pub fn server_handshake_us(&self) -> Option<u32> {
        self.time(Feature::ServerHandshake, self.server_handshake_us)
    }

    /// See [`Feature::ClientHandshake`].
    pub fn client_handshake_us(&self) -> Option<u32> {
        self.time(Feature::ClientHandshake, self.client_handshake_us)
    }

    /// See [`Feature::Response`].
    pub fn response_us(&self) -> Option<u32> {
        self.time(Feature::Response, self.response_us)
    }

    /// See [`Feature::Duration`].
    pub fn duration_us(&self) -> Option<u64> {
        self.features.has(Feature::Duration).then_some(self.known.duration_us)
    }

    fn time(&self, feature: Feature, us: u32) -> Option<u32> {
        (self.features.has(feature) && us != NOT_MEASURED).then_some(us)
    }

    /// What was measured of the forward direction, 0, or of the reverse one, 1.
    pub fn side(&self, from: usize) -> ToldSide {
        let (side, known) = (&self.sides[from & 1], &self.known);
        let [packets, bytes] = [known.packets[from & 1], known.bytes[from & 1]];
        let is_on = |feature| self.features.has(feature);
        let some =
            |feature, rtt: Rtt, fits| (is_on(feature) && fits && rtt.samples > 0).then_some(rtt);
        let count =
            |feature, count| (is_on(feature) && known.is_tcp && side.is_seen).then_some(count);
        let is_quic = !known.is_tcp && !known.is_dns;
        let has_window = side.window[0] <= side.window[1];
        ToldSide {
            volume: is_on(Feature::FlowBytes).then_some([packets, bytes]),
            rtt: some(Feature::Rtt, side.rtt, true),
            rtt_timestamps: some(Feature::RttTimestamps, side.more_rtt, known.is_tcp),
            spin: some(Feature::Spin, side.more_rtt, is_quic),
            dns: some(Feature::Dns, side.more_rtt, known.is_dns),
            gap_us: (is_on(Feature::Gap) && packets > 1).then_some(side.gap_us),
            window: (is_on(Feature::Window) && has_window).then_some(side.window),
            retransmits: count(Feature::Retransmits, side.counted.retransmits),
            out_of_order: count(Feature::OutOfOrder, side.counted.out_of_order),
            duplicate_acks: count(Feature::DuplicateAcks, side.counted.duplicate_acks),
            zero_windows: count(Feature::ZeroWindows, side.counted.zero_windows),
            sizes: side.sizes.filter(|_| is_on(Feature::Sizes)),
        }
    }
}
