//! The two places where fenxi's walks meet: the ring takes series down, the label word brings
//! labels up.
//!
//! The packet's walk (a thread per flow manager, tens of nanoseconds per packet) must never wait
//! for the series' walk (a thread per analytics manager, milliseconds per batch). So they share
//! only two things, both without locks:
//!
//! * The [ring](ring()), bounded, from exactly one [`Producer`] to exactly one [`Consumer`]. A
//!   [`Slot`] is written in place when a flow's K-th packet has come, and read in place when a
//!   batch is gathered. It is the cRing of the FENXI paper, §3 and Fig. 3.
//! * The [`LabelWord`], an atomic in each flow-table entry. The analytics side turns it from
//!   pending to a label; the flow manager reads it at the flow's next packet. It is the paper's
//!   "label stored as an atomic variable" (§4); there is no queue back.
//!
//! # Who may call what
//!
//! * All of [`Producer`]: the flow manager that owns it.
//! * All of [`Consumer`]: the analytics manager that owns it.
//! * [`LabelWord::begin`], [`pend`](LabelWord::pend), [`replace`](LabelWord::replace),
//!   [`retire`](LabelWord::retire): the flow manager that owns the entry.
//! * [`LabelWord::decide`]: the analytics manager with the entry's [`FlowRef`]; the owner after
//!   `pend`, if the ring was full and the series is shed.
//! * [`LabelWord::read`], [`label`](LabelWord::label): any thread.
//!
//! The ends of a ring can move to another thread but not be cloned, and changing calls take
//! `&mut self`, so the compiler enforces the first two. The owner's calls are up to the
//! callers: breaking them mixes up labels, but is not undefined behaviour.
//!
//! # Promises
//!
//! 1. Slots are read in the order of pushing, each once, none torn.
//! 2. Pushed slots become visible at [`Producer::publish`], all at once and with everything the
//!    producer's thread did before (Release store of the tail, Acquire load in
//!    [`Consumer::waiting`]). So a reader of the slot finds a word pending that was pended before
//!    the publish.
//! 3. A slot is rewritten only after [`Consumer::release`] (the same pairing on the head).
//! 4. Dropping the producer publishes what it pushed, then marks the ring closed. Dropping the
//!    consumer marks it abandoned. Memory is freed with the second of the two.
//! 5. A label for one generation of an entry is never seen on another one, however
//!    [`decide`](LabelWord::decide) races with [`retire`](LabelWord::retire) and
//!    [`begin`](LabelWord::begin). Generations have 24 bits ([`GENERATIONS_MAX`]): a reference kept
//!    while its entry has exactly 2²⁴ other owners would fit again. An entry is freed only after
//!    its burst was settled, so it has at most one owner per burst of at least a microsecond: that
//!    is 16 s, while a series is given up at its device's deadline, after milliseconds.
//! 6. A reader of a label sees everything the deciding thread did before it decided.
//! 7. After [`ring()`] nothing allocates, locks, or makes system calls. Only a broken bound
//!    (reading or releasing more than waits) panics, which is a bug.
//!
//! # How it is tested
//!
//! `cargo test -p cring` runs examples, properties against a plain queue, and a transfer between
//! threads. Small models are checked under every interleaving that the memory model allows by
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p cring --release --lib loom
//! ```
//!
//! and `cargo +nightly miri test -p cring` checks for undefined behaviour in the same tests with
//! fewer rounds.

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
pub use context::{Context, LOCAL, NOTHING_KNOWN};
pub use counters::Counter;
pub use feature::{Feature, Features, Unit};
pub use label::{
    CLASSES_MAX, GENERATIONS_MAX, Label, LabelWord, Labels, MODELS_MAX, PostMortem, Source,
    in_words,
};
pub use mesh::Mesh;
pub use ring::{Consumer, Producer, ring};
pub use series::{K_MAX, SERIES_WORDS_MAX, Series};
pub use slot::{FlowRef, Slot};

/// Maximum tasks per flow, counting each depth. Each has a label word.
pub const TASKS_MAX: usize = 8;

/// Maximum label words per flow: one per depth, and one per task whose ports label flows.
pub const WORDS_MAX: usize = 2 * TASKS_MAX;
