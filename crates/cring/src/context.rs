//! What a model may want to know of a flow beside its series.

use crate::Series;

/// A number of a flow, the same for all its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// IP protocol number: 6 TCP, 17 UDP.
    Protocol,
    /// Port that the flow's first packet went to; 0 for a flow of TCP that began mid-stream.
    ServerPort,
}

impl Context {
    /// All of them.
    pub const ALL: [Context; 2] = [Context::Protocol, Context::ServerPort];

    /// The name in a model's bundle.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Context::Protocol => "protocol",
            Context::ServerPort => "server_port",
        }
    }

    /// The number of a flow, as the model gets it.
    #[inline]
    #[must_use]
    pub fn of(self, series: &Series) -> f32 {
        f32::from(match self {
            Context::Protocol => u16::from(series.protocol),
            Context::ServerPort => series.server_port,
        })
    }
}
