//! What can be measured of a flow, and sets of it.

/// A measured feature of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// From the SYN to the SYN-ACK, µs: the network on the server's side.
    ServerHandshake,
    /// From the SYN-ACK to its acknowledgement, µs: the network on the client's side.
    ClientHandshake,
    /// From the first payload of the side that opened the flow to the first payload that comes back
    /// behind it, µs.
    Response,
    /// Round trips from here to each side, by sequence and acknowledgement numbers.
    Rtt,
    /// The longest time between two packets of a direction.
    Gap,
    /// The receive window that each side offers, if its scale is known.
    Window,
    /// From the first packet to the last one.
    Duration,
    /// Packets and bytes since the flow began.
    FlowBytes,
    /// Segments whose first byte was sent before.
    Retransmits,
    /// Segments that came behind later ones, but too early to be sent again.
    OutOfOrder,
    /// Acknowledgements that say again what the one before said (RFC 5681 §2).
    DuplicateAcks,
    /// Packets that offer no window.
    ZeroWindows,
    /// Round trips by timestamps of TCP (RFC 7323 §3).
    RttTimestamps,
    /// Round trips by the spin bit of QUIC (RFC 9000 §17.4).
    Spin,
    /// From a question to its answer, by the id of DNS (RFC 1035 §4.1.1).
    Dns,
    /// The shortest and the longest packet of a direction.
    Sizes,
}

impl Feature {
    /// All, in the order of their numbers.
    pub const ALL: [Feature; 16] = [
        Feature::ServerHandshake,
        Feature::ClientHandshake,
        Feature::Response,
        Feature::Rtt,
        Feature::Gap,
        Feature::Window,
        Feature::Duration,
        Feature::FlowBytes,
        Feature::Retransmits,
        Feature::OutOfOrder,
        Feature::DuplicateAcks,
        Feature::ZeroWindows,
        Feature::RttTimestamps,
        Feature::Spin,
        Feature::Dns,
        Feature::Sizes,
    ];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::ServerHandshake => "server_handshake",
            Feature::ClientHandshake => "client_handshake",
            Feature::Response => "response",
            Feature::Rtt => "rtt",
            Feature::Gap => "gap",
            Feature::Window => "window",
            Feature::Duration => "duration",
            Feature::FlowBytes => "flow_bytes",
            Feature::Retransmits => "retransmits",
            Feature::OutOfOrder => "out_of_order",
            Feature::DuplicateAcks => "duplicate_acks",
            Feature::ZeroWindows => "zero_windows",
            Feature::RttTimestamps => "rtt_timestamps",
            Feature::Spin => "spin",
            Feature::Dns => "dns",
            Feature::Sizes => "sizes",
        }
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    /// None.
    pub const NONE: Features = Features(0);
    /// The eleven that need one array and no look at options or payload.
    pub const DEFAULT: Features = Features((1 << Feature::ZeroWindows as u8) - 1);
    /// All.
    pub const ALL: Features = Features(u16::MAX);
    /// Those that need [`crate::More`].
    pub const MORE: Features = Features(
        1 << Feature::RttTimestamps as u8
            | 1 << Feature::Spin as u8
            | 1 << Feature::Dns as u8
            | 1 << Feature::Sizes as u8,
    );
    /// Those that need the sequence numbers of TCP.
    pub const SEQUENCE: Features = Features(
        1 << Feature::ServerHandshake as u8
            | 1 << Feature::ClientHandshake as u8
            | 1 << Feature::Response as u8
            | 1 << Feature::Rtt as u8
            | 1 << Feature::Window as u8
            | 1 << Feature::Retransmits as u8
            | 1 << Feature::OutOfOrder as u8
            | 1 << Feature::DuplicateAcks as u8
            | 1 << Feature::ZeroWindows as u8,
    );

    /// Whether the feature is in the set.
    #[inline]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & 1 << feature as u8 != 0
    }

    /// Whether any of the others is in the set.
    #[inline]
    pub const fn any_of(self, others: Features) -> bool {
        self.0 & others.0 != 0
    }

    /// The features, in their order.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Features {
        Features(features.into_iter().fold(0, |set, feature| set | 1 << feature as u8))
    }
}
