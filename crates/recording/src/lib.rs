//! Recording a live run and replaying the recording: a fault seen on a router is reproduced from a
//! file.
//!
//! While a run is recorded, every call that changes a flow manager or an analytics manager is a
//! *step*. Steps of all threads exclude each other by one lock, and a step is written to the file
//! before the next one begins. So the file is a total order in which each step sees all effects of
//! the steps before it: label words, ring slots and so on. A replay makes the same calls in that
//! order on one thread.
//!
//! An event holds the inputs of its step apart from the managers' own state: the clock, frames,
//! answers of devices, readings of the clock that prices the prefix cache, settings. Four times a
//! second, and at its end, each thread writes its counters; the replay must have the same counters
//! at the same place.
//!
//! ```text
//! flow manager ─ burst, pass, settle, configure, drain ─┐lock chunk      thread
//!                                                       ├───► of events ► "recording" ► DIR/events
//! analytics ──── round, prepare, commit, abort ─────────┘     (bounded queue)
//! ```
//!
//! The workers know no recording. They make their calls through [`dataplane::recorder`], whose
//! implementors are here.
//!
//! | what | where |
//! |---|---|
//! | the lock, the bounds, the writer | `journal` |
//! | what each thread records | `recorders`, `device` |
//! | the file | `event`, `forms`, `header`, `reader` |
//! | how much of a frame is kept | `frame` |
//! | the replay | `replayer`, `managers`, `device`, `counts` |

#![forbid(unsafe_code)]

mod counts;
mod device;
mod error;
mod event;
mod forms;
mod frame;
mod header;
mod journal;
mod managers;
mod reader;
mod recorders;
mod replayer;

pub use error::RecordingError;
pub use header::{Header, TaskHeader};
pub use journal::{Recorder, RecorderPlan, make};
pub use replayer::{Replayed, Report, replay};

/// The header's file in the folder of a recording.
pub const HEADER_FILE: &str = "run.json";
const EVENTS_FILE: &str = "events";
