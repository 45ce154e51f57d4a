//! The memory of servers in a file, so that a run begins with what the one before has learned.
//!
//! Each flow worker has a memory of its own, and the flows of a server go to all of them. So the
//! file has one cell for each server, made from the cells that workers have, and a run gives every
//! cell to every worker. Between two bursts workers copy portions of their memories
//! ([`dataplane::servers`]); a thread gathers, merges and writes them.

mod file;
mod kept;
mod merge;

#[cfg(feature = "history")]
pub use file::lock;
pub use kept::{Kept, Memories, recall, unusable};
pub use merge::copy_bytes;
