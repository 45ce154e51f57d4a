//! The events of a recording, and their form in the file.
//!
//! ```text
//! file:   "FENXIREC", version (4 bytes, little endian), events
//! event:  length of the body (LEB128), body, CRC-32 of the body (4 bytes, little endian)
//! body:   kind (1 byte), fields in the order of [`Event`]
//! ```
//!
//! Rare fields with many parts (settings, devices, counters, errors) are JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;

use flate2::Crc;
use flowmgr::{Action, Counted, Key, RuleAnswer};

use super::call::Call;
use super::codec::{Cursor, Malformed, put_bytes, put_i64, put_json, put_u64, read_json};
use super::settings::{FlowSettings, SeriesStart, SwapForm};

/// How the file begins.
pub const MAGIC: &[u8; 8] = b"FENXIREC";
/// Of the format described here.
pub const VERSION: u32 = 8;
/// No event has a longer body. A burst has 256 frames at most, of which some hundred bytes each are kept.
pub const BODY_MAX: usize = 64 << 20;
/// No packet socket gives a longer frame.
pub const CAPTURED_MAX: u32 = 1 << 20;

/// Counters by name; those that are 0 may be left out.
pub type Counts = BTreeMap<String, u64>;

/// A thread whose steps are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A flow manager, numbered through all pipelines.
    Flow(u32),
    /// An analytics manager, likewise.
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

/// One step, or a statement about the steps. Times `now_ns` are on the clock of the run, `time_us` are since the epoch.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// [`flowmgr::Manager::burst`].
    Burst {
        manager: u32,
        now_ns: u64,
        /// [`flowmgr::Manager::receive_from`].
        port: u8,
        frames: Vec<Frame>,
    },
    /// [`flowmgr::Manager::count`] for each of these flows.
    Count {
        manager: u32,
        port: u8,
        flows: Vec<Counted>,
    },
    /// [`flowmgr::Manager::pass`].
    Pass { manager: u32, time_us: i64 },
    /// [`flowmgr::Manager::settle_some`].
    Settle {
        manager: u32,
        now_ns: u64,
        most: u64,
    },
    /// [`flowmgr::Manager::configure`].
    Configure {
        manager: u32,
        settings: FlowSettings,
    },
    /// [`flowmgr::Manager::change_rules`]. The rules themselves are not recorded, their answers are.
    ChangeRules {
        manager: u32,
        has_bounds: bool,
        has_behaviours: bool,
        is_renumbered: bool,
    },
    /// [`flowmgr::Manager::answer_rules`].
    AnswerRules {
        manager: u32,
        now_ns: u64,
        answers: Vec<RuleAnswer>,
    },
    /// [`flowmgr::Manager::drain`].
    Drain { manager: u32 },
    /// An analytics manager starts, with these devices.
    Start { manager: u32, start: SeriesStart },
    /// [`analytics::Manager::round`].
    Round {
        manager: u32,
        now_ns: u64,
        /// [`analytics::Manager::drain`] was called before.
        draining: bool,
        /// Readings of the clock that prices the prefix cache, in order.
        costs: Vec<u64>,
        /// Calls of the devices and their answers, in order.
        calls: Vec<Call>,
    },
    /// [`analytics::Task::prepare`].
    Prepare { manager: u32, swap: SwapForm },
    /// [`analytics::Task::commit`].
    Commit { manager: u32 },
    /// [`analytics::Task::abort`].
    Abort { manager: u32 },
    /// The counters of a thread at this point.
    Counted { who: Who, counts: Counts },
    /// For people: a request of the control plane and its outcome.
    Note { text: String },
    /// The recording is complete up to here.
    End { reason: String },
}

/// A frame, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub time_us: i64,
    /// Bytes that the manager saw. In the replay, those behind the kept ones are zeros.
    pub captured: u32,
    /// Bytes on the wire; see [`flowmgr::Packet::wire`].
    pub wire: u32,
    pub link: u16,
    pub rss: Option<NonZeroU32>,
    /// What is known of its segments, if it was merged; see [`flowmgr::Gso::bits`].
    pub gso: u16,
    /// The first bytes, as far as the parser reads.
    pub kept: Vec<u8>,
}

impl Event {
    /// The event's body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Event::Burst {
                manager,
                now_ns,
                port,
                frames,
            } => {
                begin_burst(out, *manager, *now_ns, *port, frames.len());
                let mut before_us = 0;
                for frame in frames {
                    frame.encode(&frame.kept, &mut before_us, out);
                }
            }
            Event::Count {
                manager,
                port,
                flows,
            } => encode_counts(out, *manager, *port, flows),
            Event::Pass { manager, time_us } => {
                begin(out, 1, *manager);
                put_i64(out, *time_us);
            }
            Event::Settle {
                manager,
                now_ns,
                most,
            } => {
                begin(out, 2, *manager);
                put_u64(out, *now_ns);
                put_u64(out, *most);
            }
            Event::Configure { manager, settings } => {
                begin(out, 3, *manager);
                put_json(out, settings);
            }
            Event::ChangeRules {
                manager,
                has_bounds,
                has_behaviours,
                is_renumbered,
            } => {
                begin(out, 15, *manager);
                out.extend_from_slice(
                    &[*has_bounds, *has_behaviours, *is_renumbered].map(u8::from),
                );
            }
            Event::AnswerRules {
                manager,
                now_ns,
                answers,
            } => encode_answers(out, *manager, *now_ns, answers),
            Event::Drain { manager } => begin(out, 4, *manager),
            Event::Start { manager, start } => {
                begin(out, 5, *manager);
                put_json(out, start);
            }
            Event::Round {
                manager,
                now_ns,
                draining,
                costs,
                calls,
            } => {
                let mut encoded = Vec::new();
                calls.iter().for_each(|call| call.encode(&mut encoded));
                let calls = (calls.len(), encoded.as_slice());
                encode_round(out, *manager, *now_ns, *draining, costs, calls);
            }
            Event::Prepare { manager, swap } => {
                begin(out, 7, *manager);
                put_json(out, swap);
            }
            Event::Commit { manager } => begin(out, 8, *manager),
            Event::Abort { manager } => begin(out, 9, *manager),
            Event::Counted { who, counts } => {
                match who {
                    Who::Flow(i) => begin(out, 10, *i),
                    Who::Series(i) => begin(out, 11, *i),
                }
                put_json(out, counts);
            }
            Event::Note { text } => {
                out.push(12);
                put_bytes(out, text.as_bytes());
            }
            Event::End { reason } => {
                out.push(13);
                put_bytes(out, reason.as_bytes());
            }
        }
    }

    /// # Errors
    /// Bytes that [`Event::encode`] does not write.
    pub fn decode(body: &[u8]) -> Result<Event, Malformed> {
        let mut cursor = Cursor::new(body);
        let event = Event::read(&mut cursor)?;
        cursor.end()?;
        Ok(event)
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Event, Malformed> {
        let kind = cursor.u8()?;
        match kind {
            12 => {
                let text = cursor.text()?;
                return Ok(Event::Note { text });
            }
            13 => {
                let reason = cursor.text()?;
                return Ok(Event::End { reason });
            }
            _ => {}
        }
        let manager = cursor.u32()?;
        Ok(match kind {
            0 => Event::Burst {
                manager,
                now_ns: cursor.u64()?,
                port: cursor.u8()?,
                frames: read_frames(cursor)?,
            },
            1 => Event::Pass {
                manager,
                time_us: cursor.i64()?,
            },
            2 => Event::Settle {
                manager,
                now_ns: cursor.u64()?,
                most: cursor.u64()?,
            },
            3 => Event::Configure {
                manager,
                settings: read_json(cursor)?,
            },
            4 => Event::Drain { manager },
            5 => Event::Start {
                manager,
                start: read_json(cursor)?,
            },
            6 => read_round(cursor, manager)?,
            7 => Event::Prepare {
                manager,
                swap: read_json(cursor)?,
            },
            8 => Event::Commit { manager },
            9 => Event::Abort { manager },
            10 => Event::Counted {
                who: Who::Flow(manager),
                counts: read_json(cursor)?,
            },
            11 => Event::Counted {
                who: Who::Series(manager),
                counts: read_json(cursor)?,
            },
            14 => Event::Count {
                manager,
                port: cursor.u8()?,
                flows: read_counts(cursor)?,
            },
            15 => Event::ChangeRules {
                manager,
                has_bounds: cursor.u8()? != 0,
                has_behaviours: cursor.u8()? != 0,
                is_renumbered: cursor.u8()? != 0,
            },
            16 => Event::AnswerRules {
                manager,
                now_ns: cursor.u64()?,
                answers: read_answers(cursor)?,
            },
            kind => return Err(Malformed::new(format!("no event is of the kind {kind}"))),
        })
    }
}

/// [`Event::AnswerRules`], from where the answers lie. Each: flags (drop, mirror, nothing asked), rule, DSCP and class, of these
/// one more than the number and 0 for none.
pub fn encode_answers(out: &mut Vec<u8>, manager: u32, now_ns: u64, answers: &[RuleAnswer]) {
    begin(out, 16, manager);
    put_u64(out, now_ns);
    put_u64(out, answers.len() as u64);
    for answer in answers {
        let Action { dscp, drop, mirror } = answer.action;
        let flags = [drop, mirror, answer.unasked != 0];
        out.push(
            flags
                .iter()
                .rev()
                .fold(0, |bits, &flag| bits << 1 | u8::from(flag)),
        );
        put_u64(out, answer.rule.map_or(0, |rule| u64::from(rule) + 1));
        put_u64(out, dscp.map_or(0, |dscp| u64::from(dscp) + 1));
        put_u64(out, answer.class.map_or(0, |class| u64::from(class) + 1));
    }
}

fn read_answers(cursor: &mut Cursor<'_>) -> Result<Vec<RuleAnswer>, Malformed> {
    let answers = (0..cursor.count(4)?).map(|_| {
        let flags = cursor.u8()?;
        let rule = cursor.u32()?.checked_sub(1);
        let dscp = cursor.u8()?.checked_sub(1);
        Ok(RuleAnswer {
            rule,
            action: Action {
                dscp,
                drop: flags & 1 != 0,
                mirror: flags & 2 != 0,
            },
            unasked: if flags & 4 != 0 { u8::MAX } else { 0 },
            class: cursor.u16()?.checked_sub(1),
        })
    });
    answers.collect()
}

/// A body with its length and its checksum.
pub fn put_event(out: &mut Vec<u8>, body: &[u8]) {
    put_u64(out, body.len() as u64);
    out.extend_from_slice(body);
    out.extend_from_slice(&checksum(body).to_le_bytes());
}

pub fn checksum(body: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(body);
    crc.sum()
}

fn begin(out: &mut Vec<u8>, kind: u8, number: u32) {
    out.push(kind);
    put_u64(out, number.into());
}

/// The head of a burst; so many frames must follow.
pub fn begin_burst(out: &mut Vec<u8>, manager: u32, now_ns: u64, port: u8, frames: usize) {
    begin(out, 0, manager);
    put_u64(out, now_ns);
    out.push(port);
    put_u64(out, frames as u64);
}

/// [`Event::Count`], from where the flows lie.
pub fn encode_counts(out: &mut Vec<u8>, manager: u32, port: u8, flows: &[Counted]) {
    begin(out, 14, manager);
    out.push(port);
    put_u64(out, flows.len() as u64);
    for flow in flows {
        let ((low, low_port), (high, high_port)) = flow.key.ends(true);
        out.extend_from_slice(&[flow.key.protocol(), low.is_ipv6().into()]);
        for address in [low, high] {
            match address {
                IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
            }
        }
        for port in [low_port, high_port] {
            put_u64(out, port.into());
        }
        for count in flow.packets.into_iter().chain(flow.bytes) {
            put_u64(out, count);
        }
        put_u64(out, flow.generation.into());
        put_i64(out, flow.last_us);
    }
}

fn read_counts(cursor: &mut Cursor<'_>) -> Result<Vec<Counted>, Malformed> {
    let flows = (0..cursor.count(18)?).map(|_| {
        let (protocol, is_v6) = (cursor.u8()?, cursor.u8()? != 0);
        let mut address = || -> Result<IpAddr, Malformed> {
            Ok(match is_v6 {
                true => IpAddr::from(cursor.array::<16>()?),
                false => IpAddr::from(cursor.array::<4>()?),
            })
        };
        let addresses = [address()?, address()?];
        let ends = [(addresses[0], cursor.u16()?), (addresses[1], cursor.u16()?)];
        let [mut packets, mut bytes] = [[0; 2]; 2];
        for count in packets.iter_mut().chain(&mut bytes) {
            *count = cursor.u64()?;
        }
        Ok(Counted {
            key: Key::of(protocol, ends[0], ends[1]),
            packets,
            bytes,
            generation: cursor.u32()?,
            last_us: cursor.i64()?,
        })
    });
    flows.collect()
}

/// A round; `calls` are encoded already.
pub fn encode_round(
    out: &mut Vec<u8>,
    manager: u32,
    now_ns: u64,
    draining: bool,
    costs: &[u64],
    (calls, encoded): (usize, &[u8]),
) {
    begin(out, 6, manager);
    put_u64(out, now_ns);
    out.push(draining.into());
    put_u64(out, costs.len() as u64);
    costs.iter().for_each(|&cost_ns| put_u64(out, cost_ns));
    put_u64(out, calls as u64);
    out.extend_from_slice(encoded);
}

fn read_round(cursor: &mut Cursor<'_>, manager: u32) -> Result<Event, Malformed> {
    let now_ns = cursor.u64()?;
    let draining = cursor.u8()? != 0;
    let costs = (0..cursor.count(1)?).map(|_| cursor.u64());
    let costs = costs.collect::<Result<_, _>>()?;
    let calls = (0..cursor.count(1)?).map(|_| Call::read(cursor));
    Ok(Event::Round {
        manager,
        now_ns,
        draining,
        costs,
        calls: calls.collect::<Result<_, _>>()?,
    })
}

impl Frame {
    /// `kept` stands for the frame's own, so that a recorder need not copy it. Times are differences within a burst.
    pub fn encode(&self, kept: &[u8], before_us: &mut i64, out: &mut Vec<u8>) {
        put_i64(out, self.time_us.wrapping_sub(*before_us));
        *before_us = self.time_us;
        put_u64(out, self.captured.into());
        let has = u64::from(self.wire != self.captured) << 2
            | u64::from(self.gso != 0) << 1
            | u64::from(self.rss.is_some());
        put_u64(out, u64::from(self.link) << 3 | has);
        if self.wire != self.captured {
            put_u64(out, self.wire.into());
        }
        if let Some(rss) = self.rss {
            put_u64(out, rss.get().into());
        }
        if self.gso != 0 {
            put_u64(out, self.gso.into());
        }
        put_bytes(out, kept);
    }
}

fn read_frames(cursor: &mut Cursor<'_>) -> Result<Vec<Frame>, Malformed> {
    let count = cursor.count(4)?;
    if count > flowmgr::BURST_MAX {
        return Err(Malformed::new(format!("a burst of {count} packets")));
    }
    let mut before_us: i64 = 0;
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        before_us = before_us.wrapping_add(cursor.i64()?);
        let captured = cursor.u32()?;
        let link = cursor.u32()?;
        let wire = match link & 4 {
            4 => cursor.u32()?,
            _ => captured,
        };
        let rss = match link & 1 {
            1 => NonZeroU32::new(cursor.u32()?),
            _ => None,
        };
        let gso = match link & 2 {
            2 => cursor.u16()?,
            _ => 0,
        };
        let kept = cursor.bytes()?.to_vec();
        if captured > CAPTURED_MAX || kept.len() > captured as usize {
            let kept = kept.len();
            return Err(Malformed::new(format!(
                "a frame of {captured} bytes with {kept} kept"
            )));
        }
        frames.push(Frame {
            time_us: before_us,
            captured,
            wire,
            link: u16::try_from(link >> 3).map_err(|_| Malformed::new("no such link type"))?,
            rss,
            gso,
            kept,
        });
    }
    Ok(frames)
}

#[cfg(test)]
#[path = "event_tests.rs"]
pub mod tests;
