//! Models that learn where they run. Samples of flows that have ended go to a program that tunes
//! models, beside fenxi or elsewhere. It offers candidates; fenxi judges them by a quarter of the
//! flows, which it holds out, since flows themselves tell the truth when they end.
//!
//! ```text
//! samples of flows ─┬─► tuner ── offer ─► judged ─► shadow ─► canary ─► promoted, watched ─► kept
//!                   └─► held out ───────────┴─────────┴─────────┴──────────┘   └► rolled back
//! ```
//!
//! A flow manager makes samples ([`flowmgr::record::Sample`]). The thread of the sink keeps a few
//! per band until the next frame ([`strata`]), and readers of the socket get frames of JSON
//! ([`frame`]).
//!
//! Source: LiteFlow §3.3, which trusts that a model that has converged is a better one; here that
//! has to be shown.

mod ask;
mod control;
mod frame;
mod held;
mod judge;
mod offer;
mod refusal;
mod signature;
mod strata;

pub use ask::{Session, ask};
pub use control::Learning;
pub use held::SharedHeld;
pub use judge::Outputs;
pub use offer::{Models, OUTCOMES, Offers};
pub use refusal::Refusal;
pub use signature::Key;
