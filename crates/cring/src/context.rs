//! Model inputs besides the series.

use crate::Series;

/// A number of the flow, the same for all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// IP protocol number: 6 TCP, 17 UDP.
    Protocol,
    /// Destination port of the flow's first packet; 0 for a TCP flow that began mid-stream.
    ServerPort,
}

impl Context {
    /// All contexts.
    pub const ALL: [Context; 2] = [Context::Protocol, Context::ServerPort];

    /// The name in a model's bundle.
    pub const fn name(self) -> &'static str {
        match self {
            Context::Protocol => "protocol",
            Context::ServerPort => "server_port",
        }
    }

    /// The flow's value, as the model input.
    #[inline]
    pub fn value(self, series: &Series) -> f32 {
        f32::from(match self {
            Context::Protocol => u16::from(series.protocol),
            Context::ServerPort => series.server_port,
        })
    }
}
