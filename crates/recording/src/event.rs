//! The events of a recording, and their form in the file.
//!
//! ```text
//! file:   "FENXIREC", version (4 bytes, little endian), events
//! event:  length of the body (LEB128), body, CRC-32 of the body (4 bytes, little endian)
//! body:   the event in the postcard format (https://postcard.jamesmunns.com/wire-format)
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;

use flate2::Crc;
use flowmgr::{Action, Counted, Gso, Key, Packet, RuleAnswer};
use serde::{Deserialize, Serialize};

use crate::forms::{ActionForm, DeviceFailure, FlowSettingsForm, TaskStart, TaskSwap};

#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    /// Polled: no batch was ready.
    Nothing,
    /// Polled: class and confidence of each row.
    Results(Vec<(u16, f32)>),
    /// Polled: the batch failed.
    Failed(DeviceFailure),
    /// A batch of `rows` rows was submitted; `input` is their hash.
    Submitted { rows: usize, input: u32, refused: Option<DeviceFailure> },
}

/// How the file begins.
pub const MAGIC: &[u8; 8] = b"FENXIREC";
/// Version of the format described here.
pub const VERSION: u32 = 13;
/// No event has a longer body. A burst has 256 frames at most, of which some hundred bytes each are
/// kept.
pub const BODY_MAX: usize = 64 << 20;

/// Counters by name; those that are 0 may be left out.
pub type CountsByName = BTreeMap<String, u64>;

/// A thread whose steps are recorded: its manager's number, through all pipelines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    Flow(u32),
    Series(u32),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Flow(i) => write!(f, "flow manager {i}"),
            Who::Series(i) => write!(f, "analytics manager {i}"),
        }
    }
}

/// One step, or a statement about the steps. Times `now_ns` are on the clock of the run, `time_us`
/// are since the epoch. The steps of flow managers are described at
/// [`dataplane::recorder::FlowStep`]. `docs/recording.md` numbers the variants.
#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum Event<'a> {
    Burst {
        manager: u32,
        now_ns: u64,
        from: Port,
        frames: Vec<Frame<'a>>,
    },
    Pass {
        manager: u32,
        time_us: i64,
    },
    Settle {
        manager: u32,
        now_ns: u64,
        most: u64,
    },
    Configure {
        manager: u32,
        #[serde(with = "FlowSettingsForm")]
        settings: flowmgr::Settings,
    },
    Drain {
        manager: u32,
    },
    Start {
        manager: u32,
        tasks: Vec<TaskStart>,
    },
    /// [`analytics::Manager::round`].
    Round {
        manager: u32,
        now_ns: u64,
        /// [`analytics::Manager::drain`] was called before.
        drains: bool,
        /// Readings of the clock that prices the prefix caches, in order.
        costs: Vec<u64>,
        /// Calls of the devices and their answers, in order.
        calls: Vec<Call>,
    },
    /// [`analytics::Task::prepare`].
    Prepare {
        manager: u32,
        task: u32,
        swap: TaskSwap,
    },
    /// [`analytics::Task::commit`].
    Commit {
        manager: u32,
        task: u32,
    },
    /// [`analytics::Task::abort`].
    Abort {
        manager: u32,
        task: u32,
    },
    Counted {
        who: Who,
        counts: CountsByName,
    },
    Count {
        manager: u32,
        from: Port,
        flows: Vec<FlowCount>,
    },
    /// For people: a request of the control plane and its outcome.
    Note {
        text: String,
    },
    /// The recording is complete up to here.
    End {
        reason: String,
    },
    /// The rules themselves are not recorded, their answers are.
    ChangeRules {
        manager: u32,
        has_bounds: bool,
        has_behaviours: bool,
        label_tasks: u8,
        is_renumbered: bool,
    },
    AnswerRules {
        manager: u32,
        now_ns: u64,
        answers: Vec<Answer>,
    },
}

/// Where packets came in.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Port {
    pub number: u8,
    /// [`flowmgr::Manager::receive_from`], otherwise [`flowmgr::Manager::note_port`].
    pub owns_flows: bool,
}

impl Port {
    pub fn tell(self, manager: &mut dataplane::inline::FlowManager) {
        match self.owns_flows {
            true => manager.receive_from(self.number),
            false => manager.note_port(self.number),
        }
    }
}

/// A frame, without its payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Frame<'a> {
    pub time_us: i64,
    /// Bytes that the manager saw. In the replay, those behind the kept ones are zeros.
    pub captured: u32,
    /// Bytes on the wire; see [`flowmgr::Packet::wire`].
    pub wire: u32,
    pub link: u16,
    pub rss: Option<NonZeroU32>,
    /// [`Gso::bits`].
    pub gso: u16,
    /// The first bytes, as far as the parser reads.
    pub kept: Cow<'a, [u8]>,
}

impl Frame<'_> {
    pub fn from_packet<'a>(packet: &Packet, kept: &'a [u8]) -> Frame<'a> {
        Frame {
            time_us: packet.time_us,
            captured: packet.captured,
            wire: packet.wire,
            link: packet.link,
            rss: packet.rss,
            gso: packet.gso.bits(),
            kept: kept.into(),
        }
    }

    /// The packet, whose bytes begin at `at`.
    pub fn packet(&self, at: usize) -> Packet {
        Packet {
            at,
            captured: self.captured,
            wire: self.wire,
            link: self.link,
            time_us: Packet::clamp_time(self.time_us),
            rss: self.rss,
            gso: Gso::from_bits(self.gso),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct FlowCount {
    protocol: u8,
    ends: [(IpAddr, u16); 2],
    packets: [u64; 2],
    bytes: [u64; 2],
    generation: u32,
    last_us: i64,
}

impl From<&Counted> for FlowCount {
    fn from(flow: &Counted) -> FlowCount {
        FlowCount {
            protocol: flow.key.protocol(),
            ends: flow.key.ends(true).into(),
            packets: flow.packets,
            bytes: flow.bytes,
            generation: flow.generation,
            last_us: flow.last_us,
        }
    }
}

impl From<&FlowCount> for Counted {
    fn from(flow: &FlowCount) -> Counted {
        Counted {
            key: Key::from_ends(flow.protocol, flow.ends[0], flow.ends[1]),
            packets: flow.packets,
            bytes: flow.bytes,
            generation: flow.generation,
            last_us: Packet::clamp_time(flow.last_us),
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(remote = "RuleAnswer")]
struct AnswerForm {
    rule: Option<u32>,
    #[serde(with = "ActionForm")]
    action: Action,
    unasked: u8,
    class: Option<u16>,
    /// For who answers, and a replay asks nobody.
    #[serde(skip)]
    kept: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Answer(#[serde(with = "AnswerForm")] pub RuleAnswer);

impl Event<'_> {
    /// Writes the event's body over what is in `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        // No event is of a kind that the format cannot write.
        *out = postcard::to_extend(self, std::mem::take(out)).unwrap_or_default();
    }
}

impl Event<'static> {
    pub fn decode(body: &[u8]) -> Result<Event<'static>, String> {
        match postcard::take_from_bytes(body) {
            Ok((event, [])) => Ok(event),
            Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A body with its length and its checksum.
pub fn put_event(out: &mut Vec<u8>, body: &[u8]) {
    let mut length = body.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(body);
    out.extend_from_slice(&checksum(body).to_le_bytes());
}

pub fn checksum(body: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(body);
    crc.sum()
}

#[cfg(test)]
#[path = "event_tests.rs"]
pub mod tests;
