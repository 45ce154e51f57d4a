//! Model inputs besides the series.

use crate::Series;

/// A number of the flow, the same for all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// IP protocol number: 6 TCP, 17 UDP.
    Protocol,
    /// Destination port of the flow's first packet; 0 for a TCP flow that began mid-stream.
    ServerPort,
    /// Mean of the bytes of flows to the server, their log2; this and what follows is as it was
    /// when the flow began.
    ServerVolume,
    /// Mean of the log2 of their bytes.
    ServerLogVolume,
    /// Mean of the log2 of their durations in µs.
    ServerDuration,
    /// How many of the server's flows have ended, up to 32.
    ServerFlows,
    /// Time since the last flow to the server began, log2 of µs.
    ServerGap,
}

/// Numbers that the memory of servers gives a flow: [`Context::is_local`], in their order.
pub const LOCAL: usize = 5;

/// What the memory gives where nothing is known: log2 of 5000 bytes, 12, 16, no flows, log2 of an
/// hour; see `flowmgr::servers`.
pub const NOTHING_KNOWN: [f32; LOCAL] = [12.220_947, 12.0, 16.0, 0.0, 31.676_38];

impl Context {
    /// All contexts.
    pub const ALL: [Context; 7] = [
        Context::Protocol,
        Context::ServerPort,
        Context::ServerVolume,
        Context::ServerLogVolume,
        Context::ServerDuration,
        Context::ServerFlows,
        Context::ServerGap,
    ];

    /// The name in a model's bundle.
    pub const fn name(self) -> &'static str {
        match self {
            Context::Protocol => "protocol",
            Context::ServerPort => "server_port",
            Context::ServerVolume => "server_volume",
            Context::ServerLogVolume => "server_log_volume",
            Context::ServerDuration => "server_duration",
            Context::ServerFlows => "server_flows",
            Context::ServerGap => "server_gap",
        }
    }

    /// Whether it comes from this router's memory of servers: it says nothing elsewhere, and is not
    /// the same for flows that look alike.
    pub const fn is_local(self) -> bool {
        !matches!(self, Context::Protocol | Context::ServerPort)
    }

    /// The flow's value, as the model input.
    #[inline]
    pub fn value(self, series: &Series) -> f32 {
        let number = match self {
            Context::Protocol => return f32::from(series.protocol),
            Context::ServerPort => return f32::from(series.server_port),
            Context::ServerVolume => 0,
            Context::ServerLogVolume => 1,
            Context::ServerDuration => 2,
            Context::ServerFlows => 3,
            Context::ServerGap => 4,
        };
        series.local().unwrap_or(&NOTHING_KNOWN)[number]
    }
}
