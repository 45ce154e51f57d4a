//! What a label asks for.
//!
//! A label says what a flow is; an [`Action`] says what to do about it. [`Rule`]s, as the user wrote them, lead from labels
//! by name to actions; [`actions`] holds them against the labels of the model in use, so that the data path finds the action
//! of a class by its number.
//!
//! This crate knows no other of the program's, no file and no wire.
#![forbid(unsafe_code)]

mod dscp;
mod mark;
mod rule;

pub use dscp::Dscp;
pub use mark::{DSCP_MASK, Mark};
pub use rule::{Action, Label, NoSuchLabel, Rule, actions, by_class, listed};
