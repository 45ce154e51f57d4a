//! The two places where fenxi's walks meet: the ring takes series down, the label word brings labels up.
//!
//! The packet's walk (one thread per flow manager, tens of nanoseconds a packet) must never wait for the series' walk
//! (one thread per analytics manager, milliseconds a batch). So they share two things only, and neither has a lock:
//!
//! * The [ring](ring()), bounded, from exactly one [`Producer`] to exactly one [`Consumer`]. A [`Slot`] is written in
//!   place when a flow's K-th packet has come and read in place when a batch is gathered. This is the cRing of the
//!   FENXI paper, §3 and Fig. 3.
//! * The [`LabelWord`], one atomic in each flow's table entry. The analytics side turns it from pending to a label and
//!   the flow manager reads it at the flow's next packet. It is the paper's "label stored as an atomic variable" (§4);
//!   no queue leads back.
//!
//! # Who may call what
//!
//! | what | thread |
//! |---|---|
//! | [`Producer`], all of it | the flow manager that owns it |
//! | [`Consumer`], all of it | the analytics manager that owns it |
//! | [`LabelWord::begin`], [`pend`](LabelWord::pend), [`retire`](LabelWord::retire) | the flow manager that owns the entry, nobody else |
//! | [`LabelWord::decide`] | the analytics manager that was given the entry's [`FlowRef`]; the owner itself, after `pend`, when the ring was full and the series is shed |
//! | [`LabelWord::read`], [`label`](LabelWord::label) | any |
//!
//! The two ends of a ring can be moved to another thread; they cannot be cloned, and what changes a ring takes
//! `&mut self`, so the compiler holds the first two rows. The owner's rows rest on the callers: breaking them mixes up
//! labels, but is not undefined behaviour.
//!
//! # What is promised
//!
//! 1. Slots are read in the order in which they were pushed, each once, none torn.
//! 2. Pushed slots become visible at [`Producer::publish`] and then all at once, together with everything the producer's
//!    thread had done before (a Release store of the tail, met by the Acquire load in [`Consumer::waiting`]). So a word
//!    that was pended before the publish is found pending by whoever reads the slot.
//! 3. A slot is written again only after [`Consumer::release`] gave it back (the same pairing on the head).
//! 4. Dropping the producer publishes what it pushed, then marks the ring closed. Dropping the consumer marks it
//!    abandoned. Memory goes with the second of the two.
//! 5. A label that was asked for one generation of an entry is never seen on another one, however
//!    [`decide`](LabelWord::decide) races with [`retire`](LabelWord::retire) and [`begin`](LabelWord::begin). Generations
//!    have 24 bits ([`GENERATIONS_MAX`]): a reference kept while its entry has exactly 2²⁴ other owners would fit again. An
//!    entry is free only after its burst was settled, so it has one owner a burst at most, and bursts take a microsecond at
//!    least: that is 16 s, while a series waits milliseconds and is given up at its device's deadline.
//! 6. Whoever reads a label also sees everything the deciding thread had done before it decided.
//! 7. After [`ring()`] nothing here allocates, locks, or calls the system. What panics is a broken bound (reading or
//!    releasing more than waits), which only a bug can reach.
//!
//! # How it is tested
//!
//! `cargo test -p cring` runs examples, properties against a plain queue, and a transfer between threads. Every
//! interleaving that the memory model allows is walked through, in small models, by
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p cring --release --lib loom
//! ```
//!
//! and `cargo +nightly miri test -p cring` looks for undefined behaviour in the same tests with fewer rounds.

#![deny(unsafe_code)]

mod answers;
mod context;
mod counters;
mod feature;
mod label;
#[cfg(all(test, loom))]
mod loom_tests;
mod mesh;
#[allow(
    unsafe_code,
    reason = "slots are written and read in place by two threads; see the file's invariant"
)]
mod ring;
mod series;
mod slot;
mod sync;

pub use answers::{Answers, Depth, TaskWords, resolve};
pub use context::Context;
pub use counters::Counter;
pub use feature::{Feature, Features, Unit};
pub use label::{
    CLASSES_MAX, GENERATIONS_MAX, Label, LabelWord, Labels, MODELS_MAX, PostMortem, Source,
};
pub use mesh::Mesh;
pub use ring::{Consumer, Producer, ring};
pub use series::{K_MAX, SERIES_WORDS_MAX, Series};
pub use slot::{FlowRef, Slot};

/// Tasks that are asked of one flow, at most, each depth of one counted. Each has a label word of its own.
pub const TASKS_MAX: usize = 8;

/// Label words of one flow, at most: one for each depth, and one for each task whose ports name flows.
pub const WORDS_MAX: usize = 2 * TASKS_MAX;
