//! What was measured of a flow, as records and the control socket say it.
#![allow(missing_docs, reason = "a name that says it all needs no comment")]

use serde::{Deserialize, Serialize};

/// Since the flow began. What was not measured is absent; see `docs/measure.md`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_handshake_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_handshake_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// From `src` to `dst`.
    pub fwd: MeasuredSide,
    pub rev: MeasuredSide,
}

/// For people: `12.3 ms`.
pub fn milliseconds(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

/// What was measured of a direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSide {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<MeasuredRtt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_timestamps_us: Option<MeasuredRtt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<MeasuredRtt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_us: Option<MeasuredRtt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_us: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<MeasuredWindow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_acks: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_windows: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<MeasuredSizes>,
}

/// Round trips, µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRtt {
    pub samples: u32,
    pub min: u32,
    pub smoothed: u32,
    pub max: u32,
}

/// Windows, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredWindow {
    pub min: u32,
    pub last: u32,
    pub max: u32,
}

/// Lengths of packets at the IP layer, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSizes {
    pub min: u16,
    pub max: u16,
}

impl Measured {
    /// The smoothed round trip from end to end, by both directions' numbers, else by the spin bit;
    /// where only one direction is measured, from here to its receiver. µs.
    pub fn round_trip_us(&self) -> Option<u64> {
        let of = |rtt: Option<MeasuredRtt>| rtt.map(|it| u64::from(it.smoothed));
        let [fwd, rev] = [of(self.fwd.rtt_us), of(self.rev.rtt_us)];
        let by_numbers = fwd.into_iter().chain(rev).reduce(|one, other| one + other);
        by_numbers.or(of(self.fwd.spin_us)).or(of(self.rev.spin_us))
    }

    /// Segments sent again, in both directions.
    pub fn retransmits(&self) -> Option<u64> {
        let of = |side: &MeasuredSide| side.retransmits.map(u64::from);
        let both = of(&self.fwd).into_iter().chain(of(&self.rev));
        both.reduce(|one, other| one + other)
    }

    /// In one line, for people.
    pub fn text(&self) -> String {
        let time = |us: u32| milliseconds(us.into());
        let mut parts = Vec::new();
        let times = [
            ("server", self.server_handshake_us),
            ("client", self.client_handshake_us),
            ("response", self.response_us),
        ];
        parts.extend(
            times.iter().filter_map(|(name, us)| us.map(|us| format!("{name} {}", time(us)))),
        );
        for (name, side) in [("fwd", &self.fwd), ("rev", &self.rev)] {
            let rtts = [("rtt", side.rtt_us), ("spin", side.spin_us), ("dns", side.dns_us)];
            let rtts = rtts.iter().filter_map(|(of, rtt)| {
                let rtt = rtt.as_ref()?;
                Some(format!("{name} {of} {} (min {})", time(rtt.smoothed), time(rtt.min)))
            });
            parts.extend(rtts);
            let counts = [
                ("retransmitted", side.retransmits),
                ("out of order", side.out_of_order),
                ("duplicate ACKs", side.duplicate_acks),
                ("zero windows", side.zero_windows),
            ];
            let counts = counts.iter().filter_map(|(of, count)| {
                count.filter(|count| *count > 0).map(|count| format!("{name} {count} {of}"))
            });
            parts.extend(counts);
        }
        parts.join(", ")
    }
}
