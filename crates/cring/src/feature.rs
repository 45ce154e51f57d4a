//! The features of a series, and sets of them.

/// A number collected per element of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Length at the IP layer, bytes, 0 to 65,535 (saturated); negative against the direction of
    /// the flow's first packet.
    SignedLength,
    /// Layer-4 payload, bytes, 0 to 65,535 (saturated).
    PayloadLength,
    /// Time since the previous element, µs, 0 to 2³² - 1 (saturated); 0 for the first element and
    /// if time steps back.
    InterArrival,
    /// TCP flags, byte 13 of the header; 0 for UDP.
    TcpFlags,
}

impl Feature {
    /// All features, in a series' order.
    pub const ALL: [Feature; 4] =
        [Feature::SignedLength, Feature::PayloadLength, Feature::InterArrival, Feature::TcpFlags];

    /// 16-bit words per element.
    #[inline]
    pub const fn words(self) -> usize {
        match self {
            Feature::InterArrival => 2,
            _ => 1,
        }
    }

    /// The name in bundles and records.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::SignedLength => "signed_length",
            Feature::PayloadLength => "payload_length",
            Feature::InterArrival => "inter_arrival_us",
            Feature::TcpFlags => "tcp_flags",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Which packets are elements of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unit {
    /// Every packet.
    #[default]
    Packet,
    /// Packets with layer-4 payload.
    Data,
}

impl Unit {
    /// All units, in the order of their discriminants.
    pub const ALL: [Unit; 2] = [Unit::Packet, Unit::Data];

    /// The name in bundles.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Packet => "packet",
            Unit::Data => "data",
        }
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Features(u8);

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);
    /// Signed lengths alone.
    pub const LENGTHS: Features = Features(Feature::SignedLength.bit());
    /// Every feature.
    pub const ALL: Features = Features((1 << Feature::ALL.len()) - 1);

    /// The set with `feature`.
    pub const fn with(self, feature: Feature) -> Features {
        Features(self.0 | feature.bit())
    }

    /// The union of both sets.
    pub const fn union(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Whether the feature is in the set.
    #[inline]
    pub const fn contains(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// Whether the set has no feature.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// [`Features::words`] by set: counting bits takes a dozen instructions on baseline processors.
    const WORDS: [u8; 1 << Feature::ALL.len()] = {
        let mut words = [0; 1 << Feature::ALL.len()];
        let mut set = 0;
        while set < words.len() {
            // A word per bit; the inter-arrival time takes one more.
            let has_times = Features(set as u8).contains(Feature::InterArrival);
            words[set] = set.count_ones() as u8 + has_times as u8;
            set += 1;
        }
        words
    };

    /// 16-bit words per element with these features.
    #[inline]
    pub const fn words(self) -> usize {
        Self::WORDS[(self.0 & Features::ALL.0) as usize] as usize
    }

    /// 16-bit words of an element before `feature`'s, in or out of the set.
    #[inline]
    pub const fn words_before(self, feature: Feature) -> usize {
        Features(self.0 & (feature.bit() - 1)).words()
    }

    /// The features of the set, in a series' order.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |&feature| self.contains(feature))
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Features {
        features.into_iter().fold(Features::NONE, |set, feature| set.with(feature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_members() {
        for bits in 0..=Features::ALL.0 {
            let set = Features(bits);
            let words: usize = set.iter().map(Feature::words).sum();
            assert_eq!(set.words(), words);
            let mut before = 0;
            for feature in Feature::ALL {
                assert_eq!(set.words_before(feature), before);
                before += if set.contains(feature) { feature.words() } else { 0 };
            }
            assert_eq!(set.iter().collect::<Features>(), set);
        }
        assert_eq!(Features::ALL.words(), 5);
        assert_eq!(Features::LENGTHS.iter().collect::<Vec<_>>(), [Feature::SignedLength]);
    }
}
