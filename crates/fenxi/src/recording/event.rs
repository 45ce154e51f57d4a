//! The events of a recording, and their form in the file.
//!
//! ```text
//! file:   "FENXIREC", version (4 bytes, little endian), events
//! event:  length of the body (LEB128), body, CRC-32 of the body (4 bytes, little endian)
//! body:   kind (1 byte), fields in the order of [`Event`]
//! ```
//!
//! What is rare and has many fields (settings, devices, counters) is JSON in its field.

use std::collections::BTreeMap;

use accel::{Classification, DeviceError, Sizes};
use flate2::Crc;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{Cursor, Malformed, put_bytes, put_i64, put_u64};
use super::settings::{FlowSettings, Offer, SeriesStart};

/// How the file begins.
pub const MAGIC: &[u8; 8] = b"FENXIREC";
/// Of the format described here.
pub const VERSION: u32 = 1;
/// A longer body is no event. A burst has 256 frames at most, of which some hundred bytes each are kept.
pub const BODY_MAX: usize = 64 << 20;
/// A longer frame is none that a packet socket gives.
pub const CAPTURED_MAX: u32 = 1 << 20;

/// Counters by name; what is 0 may be left out.
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

/// One step, or what is said about the steps. Times `now_ns` are on the clock of the run, `time_us` are since the epoch.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// [`flowmgr::Manager::burst`].
    Burst {
        lane: u32,
        now_ns: u64,
        frames: Vec<Frame>,
    },
    /// [`flowmgr::Manager::pass`].
    Pass { lane: u32, time_us: i64 },
    /// [`flowmgr::Manager::settle`].
    Settle { lane: u32, now_ns: u64 },
    /// [`flowmgr::Manager::configure`].
    Configure { lane: u32, settings: FlowSettings },
    /// [`flowmgr::Manager::drain`].
    Drain { lane: u32 },
    /// An analytics manager and its devices are there.
    Start { manager: u32, start: SeriesStart },
    /// [`analytics::Manager::round`].
    Round {
        manager: u32,
        now_ns: u64,
        /// [`analytics::Manager::drain`] was called before.
        draining: bool,
        /// What the clock of the cache's cost said, in the order in which it was asked.
        costs: Vec<u64>,
        /// What the devices were asked and answered, in order.
        calls: Vec<Call>,
    },
    /// [`analytics::Manager::stand_by`].
    Offer { manager: u32, offer: Offer },
    /// [`analytics::Manager::change_over`].
    ChangeOver { manager: u32 },
    /// [`analytics::Manager::stand_down`].
    StandDown { manager: u32 },
    /// What a thread has counted by now.
    Counted { who: Who, counts: Counts },
    /// For people: a request of the control plane, and what came of it.
    Note { text: String },
    /// The recording is complete up to here.
    End { reason: String },
}

/// A frame, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub time_us: i64,
    /// Bytes that the walk saw. Those behind the kept ones are zeros in the replay.
    pub captured: u32,
    pub link: u16,
    pub rss: Option<u32>,
    /// The first bytes, as far as the parser reads.
    pub kept: Vec<u8>,
}

/// A call of a device, with its outcome.
#[derive(Debug)]
pub enum Call {
    /// Polled: no batch was ready.
    Nothing,
    /// Polled: these are the results.
    Results(Vec<Classification>),
    /// Polled: the batch failed.
    Failed(DeviceError),
    /// A batch of so many rows was submitted; `input` is [`hash_of`] them.
    Submitted {
        rows: usize,
        input: u32,
        refused: Option<DeviceError>,
    },
}

/// As `DeviceError` has no equality: the same in the file.
impl PartialEq for Call {
    fn eq(&self, other: &Call) -> bool {
        let bytes = |call: &Call| {
            let mut bytes = Vec::new();
            call.encode(&mut bytes);
            bytes
        };
        bytes(self) == bytes(other)
    }
}

/// FNV-1a of a batch's input: enough to notice that a replay submits something else.
pub fn hash_of(input: &[f32]) -> u32 {
    input.iter().fold(0x811c_9dc5, |hash, value| {
        (hash ^ value.to_bits()).wrapping_mul(0x0100_0193)
    })
}

impl Event {
    /// The event's body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Event::Burst {
                lane,
                now_ns,
                frames,
            } => {
                begin_burst(out, *lane, *now_ns, frames.len());
                let mut before_us = 0;
                for frame in frames {
                    frame.encode(&frame.kept, &mut before_us, out);
                }
            }
            Event::Pass { lane, time_us } => {
                begin(out, 1, *lane);
                put_i64(out, *time_us);
            }
            Event::Settle { lane, now_ns } => {
                begin(out, 2, *lane);
                put_u64(out, *now_ns);
            }
            Event::Configure { lane, settings } => {
                begin(out, 3, *lane);
                put_json(out, settings);
            }
            Event::Drain { lane } => begin(out, 4, *lane),
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
            Event::Offer { manager, offer } => {
                begin(out, 7, *manager);
                put_json(out, offer);
            }
            Event::ChangeOver { manager } => begin(out, 8, *manager),
            Event::StandDown { manager } => begin(out, 9, *manager),
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
        let lane = cursor.u32()?;
        let manager = lane;
        Ok(match kind {
            0 => Event::Burst {
                lane,
                now_ns: cursor.u64()?,
                frames: read_frames(cursor)?,
            },
            1 => Event::Pass {
                lane,
                time_us: cursor.i64()?,
            },
            2 => Event::Settle {
                lane,
                now_ns: cursor.u64()?,
            },
            3 => Event::Configure {
                lane,
                settings: read_json(cursor)?,
            },
            4 => Event::Drain { lane },
            5 => Event::Start {
                manager,
                start: read_json(cursor)?,
            },
            6 => read_round(cursor, manager)?,
            7 => Event::Offer {
                manager,
                offer: read_json(cursor)?,
            },
            8 => Event::ChangeOver { manager },
            9 => Event::StandDown { manager },
            10 => Event::Counted {
                who: Who::Flow(lane),
                counts: read_json(cursor)?,
            },
            11 => Event::Counted {
                who: Who::Series(manager),
                counts: read_json(cursor)?,
            },
            kind => return Err(Malformed::new(format!("no event is of the kind {kind}"))),
        })
    }
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
pub fn begin_burst(out: &mut Vec<u8>, lane: u32, now_ns: u64, frames: usize) {
    begin(out, 0, lane);
    put_u64(out, now_ns);
    put_u64(out, frames as u64);
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
        put_u64(
            out,
            u64::from(self.link) << 1 | u64::from(self.rss.is_some()),
        );
        if let Some(rss) = self.rss {
            put_u64(out, rss.into());
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
        let rss = match link & 1 {
            1 => Some(cursor.u32()?),
            _ => None,
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
            link: u16::try_from(link >> 1).map_err(|_| Malformed::new("no such link type"))?,
            rss,
            kept,
        });
    }
    Ok(frames)
}

impl Call {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Call::Nothing => out.push(0),
            Call::Results(results) => encode_results(out, results),
            Call::Failed(error) => encode_failed(out, error),
            Call::Submitted {
                rows,
                input,
                refused,
            } => encode_submitted(out, *rows, *input, refused.as_ref()),
        }
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Call, Malformed> {
        Ok(match cursor.u8()? {
            0 => Call::Nothing,
            1 => {
                let results = (0..cursor.count(5)?).map(|_| {
                    Ok(Classification {
                        class: cursor.u16()?,
                        confidence: cursor.f32()?,
                    })
                });
                Call::Results(results.collect::<Result<_, Malformed>>()?)
            }
            2 => Call::Failed(read_error(cursor)?),
            kind @ (3 | 4) => Call::Submitted {
                rows: cursor.u32()? as usize,
                input: cursor.u32()?,
                refused: match kind {
                    4 => Some(read_error(cursor)?),
                    _ => None,
                },
            },
            kind => {
                return Err(Malformed::new(format!(
                    "no call of a device is of the kind {kind}"
                )));
            }
        })
    }
}

/// [`Call::Results`], from where they lie.
pub fn encode_results(out: &mut Vec<u8>, results: &[Classification]) {
    out.push(1);
    put_u64(out, results.len() as u64);
    for result in results {
        put_u64(out, result.class.into());
        out.extend_from_slice(&result.confidence.to_le_bytes());
    }
}

/// [`Call::Failed`].
pub fn encode_failed(out: &mut Vec<u8>, error: &DeviceError) {
    out.push(2);
    put_error(out, error);
}

/// [`Call::Submitted`].
pub fn encode_submitted(out: &mut Vec<u8>, rows: usize, input: u32, refused: Option<&DeviceError>) {
    out.push(3 + u8::from(refused.is_some()));
    put_u64(out, rows as u64);
    put_u64(out, input.into());
    if let Some(error) = refused {
        put_error(out, error);
    }
}

fn put_error(out: &mut Vec<u8>, error: &DeviceError) {
    let mut put = |kind: u8, text: &str, numbers: &[u64]| {
        out.push(kind);
        put_bytes(out, text.as_bytes());
        numbers.iter().for_each(|&number| put_u64(out, number));
    };
    match error {
        DeviceError::Busy { device } => put(0, device, &[]),
        DeviceError::Rows {
            device,
            rows,
            sizes,
        } => {
            put(1, device, &[*rows as u64]);
            put_json(out, &super::settings::SizesForm::from(sizes));
        }
        DeviceError::Run {
            device,
            rows,
            cause,
        } => {
            put(2, device, &[*rows as u64]);
            put_bytes(out, cause.as_bytes());
        }
        DeviceError::Output {
            device,
            rows,
            classes,
            found,
        } => {
            put(3, device, &[*rows as u64, *classes as u64]);
            put_bytes(out, found.as_bytes());
        }
        DeviceError::NotAProbability { row, class, value } => {
            put(4, "", &[*row as u64, *class as u64]);
            out.extend_from_slice(&value.to_le_bytes());
        }
        DeviceError::Gone { device, cause } => {
            put(5, device, &[]);
            put_bytes(out, cause.as_bytes());
        }
    }
}

fn read_error(cursor: &mut Cursor<'_>) -> Result<DeviceError, Malformed> {
    let (kind, device) = (cursor.u8()?, cursor.text()?);
    Ok(match kind {
        0 => DeviceError::Busy { device },
        1 => DeviceError::Rows {
            device,
            rows: cursor.u32()? as usize,
            sizes: Sizes::from(read_json::<super::settings::SizesForm>(cursor)?),
        },
        2 => DeviceError::Run {
            device,
            rows: cursor.u32()? as usize,
            cause: cursor.text()?,
        },
        3 => DeviceError::Output {
            device,
            rows: cursor.u32()? as usize,
            classes: cursor.u32()? as usize,
            found: cursor.text()?,
        },
        4 => DeviceError::NotAProbability {
            row: cursor.u32()? as usize,
            class: cursor.u32()? as usize,
            value: cursor.f32()?,
        },
        5 => DeviceError::Gone {
            device,
            cause: cursor.text()?,
        },
        kind => {
            return Err(Malformed::new(format!(
                "no error of a device is of the kind {kind}"
            )));
        }
    })
}

fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    // Numbers, texts, lists, and maps with texts as keys: nothing that JSON cannot say.
    let text = serde_json::to_string(value).unwrap_or_default();
    put_bytes(out, text.as_bytes());
}

fn read_json<T: DeserializeOwned>(cursor: &mut Cursor<'_>) -> Result<T, Malformed> {
    serde_json::from_slice(cursor.bytes()?).map_err(|error| Malformed::new(error.to_string()))
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
