//! A model that learns where it runs. A tuner beside fenxi offers candidates; fenxi judges them by
//! what flows proved to be, which the flows themselves tell when they end.
//!
//! ```text
//! samples of flows ─┬─► tuner ── offer ─► judged ─► shadow ─► promoted, watched ─► kept
//!                   └─► held out ───────────┴─────────┴──────────┘   └► rolled back
//! ```
//!
//! Source: LiteFlow §3.3, which trusts that a model that has converged is a better one; here that
//! has to be shown.

mod ask;
mod held;
mod judge;
mod offer;

pub use ask::{Asked, Session, ask};
pub use held::SharedHeld;
pub use offer::{Models, OUTCOMES, Offers, Refusal};
