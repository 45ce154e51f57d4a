//! What a task asks of flows.
//!
//! A model may be asked about a flow several times, each time with more elements, until an answer
//! is sure. Each of these depths has its own label word, and [`cring::resolve`] says what the
//! answers come to. Live, a depth is not asked once there is a sure answer. In a replay it is
//! always asked, since whether the answer is here yet depends on the machine.

use cring::{Depth, Features, Unit};

use crate::asked::Asked;
use crate::target::Target;

/// A task, with its depths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskConfig {
    /// Which packets are elements.
    pub unit: Unit,
    /// What is collected of each element; at least one.
    pub features: Features,
    /// TCP flows that begin mid-stream are asked about too: the model was trained for them.
    /// Otherwise they give no series, because the model does not know their first packets.
    pub midstream: bool,
    /// Classes that its labels have, `unknown` as the last; counters have a place for each.
    pub classes: usize,
    /// When the model is asked, with ever more elements.
    pub depths: Vec<DepthConfig>,
    /// About which flows it is asked.
    pub asked: Asked,
    /// Names flows by their server's port: with the first packet if the first depth says so
    /// ([`DepthConfig::k`]), else, for the first task, flows that end without a sure answer.
    pub ports: Vec<PortLabel>,
    /// What the classes are bands of, if they are.
    pub target: Option<Target>,
}

/// A depth of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthConfig {
    /// Elements in a series, 1 to [`cring::K_MAX`]. 0: no series; ports give flows their labels
    /// with their first packets. Only the first of several may have 0.
    pub k: usize,
    /// An answer is sure if its confidence is at least this, 0 to 65,535 for 0 to 1, and its class
    /// is not `unknown`. Used only among several depths.
    pub sure: u16,
    /// An answer contradicts the port that named the flow if its class is another one and its
    /// confidence at least this; `None`: never. Used only behind a depth without a series.
    pub contradicts: Option<u16>,
}

/// What flows to a port are, where nothing surer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLabel {
    /// IP protocol number.
    pub protocol: u8,
    /// Port of the server.
    pub port: u16,
    /// Number of the class in the model.
    pub class: u16,
    /// Share of such flows that are of this class, 0 to 65,535 for 0 to 1.
    pub precision: u16,
}

impl TaskConfig {
    /// The usual task: signed lengths of the first `k` packets, of all flows, TCP flows from their
    /// beginning.
    #[must_use]
    pub fn lengths(k: usize, classes: usize) -> TaskConfig {
        TaskConfig {
            unit: Unit::Packet,
            features: Features::LENGTHS,
            midstream: false,
            classes,
            depths: vec![DepthConfig { k, sure: 0, contradicts: None }],
            asked: Asked::default(),
            ports: Vec::new(),
            target: None,
        }
    }

    /// When the answers are sure, by depth.
    pub fn sure(&self) -> Vec<Depth> {
        let sure = |depth: &DepthConfig| match *depth {
            DepthConfig { k: 0, .. } => Depth::PORT,
            DepthConfig { sure, contradicts, .. } => {
                Depth { sure, classes: self.classes, contradicts }
            }
        };
        self.depths.iter().map(sure).collect()
    }

    /// Whether ports name flows with their first packets.
    pub fn is_ports_first(&self) -> bool {
        self.depths.first().is_some_and(|depth| depth.k == 0)
    }

    /// Elements at the deepest depth.
    pub fn k_max(&self) -> usize {
        self.depths.last().map_or(0, |depth| depth.k)
    }
}
