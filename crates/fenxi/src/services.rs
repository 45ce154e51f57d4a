//! Services: memory that other processes read, one part per service and flow worker, created here
//! and filled by the workers ([`flowmgr::Services`]).
//!
//! [`open`] runs before rights are dropped and gives the flow managers their first services. From
//! then on a reload prepares memory, and brings it to the workers in boxes; what they used before
//! comes back in the same boxes and is dropped here, which tells readers that it has ended.

mod control;
mod folder;
mod hand_out;
mod look;
mod meaning;
mod memory;
mod rates;
mod replayed;
mod section;

pub use control::{Observing, Opened, Ports, open};
pub use replayed::Replayed;
#[cfg(feature = "history")]
pub use section::{ServiceKeys, services};
