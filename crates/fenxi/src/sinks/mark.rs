//! Labels for the kernel: the class of a flow as bits of its connection's mark.
//!
//! Where the kernel forwards (`mode = "mark"`), fenxi touches no packet. It writes the class into
//! the conntrack entry over ctnetlink, and rules of nftables, tc and ip-rule act on it from the
//! connection's next packet on. What is written stays when fenxi dies, and the kernel goes on.
//!
//! The crate `netfilter` has the messages, the queue and the thread, [`writer`] says what is
//! written, [`classes`] the numbers, [`control`] what the control thread has of it. `docs/mark.md`
//! explains all of it to users.

mod classes;
mod control;
mod status;
#[cfg(test)]
mod tests;
mod writer;

pub use classes::ClassMarks;
pub use control::Marks;
#[cfg(test)]
pub use control::{behaviour_words, class_marks};
pub use netfilter::writer::StartError;
pub use writer::probe;

use netfilter::counts::Counts;
use writer::Writer;
