//! Targets: classes that are bands of what a flow does behind the packet that decided. The flow
//! itself tells the truth when it ends.

/// What a task's classes are bands of. Class 0 is the lowest band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What is measured.
    pub of: TargetOf,
    /// The number with which each band but the lowest begins; rising.
    pub edges: Vec<u64>,
}

/// What is measured of a flow behind the packet that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetOf {
    /// Bytes at the IP layer.
    Volume,
    /// Time to the last packet, µs.
    Duration,
    /// Bytes per second of this time.
    Rate,
}

impl TargetOf {
    /// All of them.
    pub const ALL: [TargetOf; 3] = [TargetOf::Volume, TargetOf::Duration, TargetOf::Rate];

    /// The name in bundles.
    pub const fn name(self) -> &'static str {
        match self {
            TargetOf::Volume => "volume",
            TargetOf::Duration => "duration",
            TargetOf::Rate => "rate",
        }
    }
}

/// What came of a flow behind the packet that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Bytes at the IP layer, of both directions.
    pub bytes: u64,
    /// Time to the last packet, µs.
    pub us: u64,
}

impl Target {
    /// What the bands are of.
    pub fn measured(&self, came: Came) -> u64 {
        match self.of {
            TargetOf::Volume => came.bytes,
            TargetOf::Duration => came.us,
            TargetOf::Rate => came.bytes.saturating_mul(1_000_000) / came.us.max(1),
        }
    }

    /// The band of a flow that has ended.
    pub fn band(&self, came: Came) -> u16 {
        let measured = self.measured(came);
        self.edges.partition_point(|&edge| edge <= measured) as u16
    }

    /// The band of a flow that was cut while it may have gone on. It is known where the flow is in
    /// the last band already, or above the band that was said, which then was wrong: the flow
    /// counts for the band that it has reached. A rate may fall again, and is never known.
    pub fn band_of_cut(&self, came: Came, said: u16) -> Option<u16> {
        let reached = self.band(came);
        let is_last = usize::from(reached) == self.edges.len();
        (self.of != TargetOf::Rate && (is_last || reached > said)).then_some(reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(of: TargetOf) -> Target {
        Target { of, edges: vec![1_000, 50_000] }
    }

    #[test]
    fn a_band_begins_with_its_edge() {
        let band = |of, bytes, us| target(of).band(Came { bytes, us });
        let volume = [0, 999, 1_000, 49_999, 50_000, u64::MAX];
        assert_eq!(volume.map(|bytes| band(TargetOf::Volume, bytes, 7)), [0, 0, 1, 1, 2, 2]);
        assert_eq!([999, 1_000].map(|us| band(TargetOf::Duration, 1 << 40, us)), [0, 1]);
        // 600 bytes in half a second are 1,200 a second.
        assert_eq!(band(TargetOf::Rate, 600, 500_000), 1);
        assert_eq!(band(TargetOf::Rate, 0, 0), 0);
        assert_eq!(band(TargetOf::Rate, u64::MAX, 0), 2);
    }

    #[test]
    fn of_a_flow_that_was_cut_only_what_it_has_passed_is_known() {
        let band = |of, bytes, said| target(of).band_of_cut(Came { bytes, us: 0 }, said);
        assert_eq!(band(TargetOf::Volume, 500, 0), None, "it may have gone on");
        assert_eq!(band(TargetOf::Volume, 5_000, 1), None);
        assert_eq!(band(TargetOf::Volume, 5_000, 2), None);
        assert_eq!(band(TargetOf::Volume, 5_000, 0), Some(1), "more than was said");
        assert_eq!(band(TargetOf::Volume, 50_000, 2), Some(2), "there is no higher band");
        assert_eq!(band(TargetOf::Volume, 50_000, 3), Some(2), "unknown was said");
        assert_eq!(band(TargetOf::Volume, 5_000, 3), None);
        assert_eq!(band(TargetOf::Rate, 50_000, 0), None);
    }
}
