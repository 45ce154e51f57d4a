//! Models that learn where they run. Samples of flows that have ended go to a program that tunes
//! models; a quarter of the flows is held out, to judge what it makes of them.
//!
//! A flow manager makes samples ([`flowmgr::record::Sample`]). The thread of the sink keeps a few
//! per band until the next frame ([`strata`]), and readers of the socket get frames of JSON
//! ([`frame`]).

mod control;
mod frame;
mod held;
mod strata;

pub use control::Learning;
