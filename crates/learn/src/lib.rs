//! The gates of models that learn where they run. A program tunes models by samples of flows that
//! have ended, beside fenxi or elsewhere, and offers candidates. They are judged by a quarter of
//! the flows, which is held out, since flows themselves tell the truth when they end.
//!
//! ```text
//! samples of flows ─┬─► tuner ── offer ─► judged ─► shadow ─► canary ─► promoted, watched ─► kept
//!                   └─► held out ───────────┴─────────┴─────────┴──────────┘   └► rolled back
//! ```
//!
//! A flow manager makes samples ([`flowmgr::record::Sample`]).
//!
//! Source: LiteFlow §3.3, which trusts that a model that has converged is a better one; here that
//! has to be shown.
#![forbid(unsafe_code)]

mod ask;
mod held;
mod judge;
mod offer;
mod refusal;
mod signature;

pub use ask::{Session, ask};
pub use held::{Held, SharedHeld};
pub use judge::Outputs;
pub use offer::{Models, OUTCOMES, Offers};
pub use refusal::Refusal;
pub use signature::Key;
