//! What is done about flows.
//!
//! A label says what a flow is; an action says what to do about it. There are two ways to an action:
//!
//! | module | holds |
//! |---|---|
//! | [`by_label`] | actions of labels, whatever the flow's addresses: `tag.dscp`, `mark.class` |
//! | [`rule`], [`RuleSet`] | rules by tuple, label and what a flow has done, as people and machines write them |
//! | [`Policy`] | the same as the data path asks it |
//! | [`Store`] | rules that are added and deleted while flows are looked up |
//! | [`classifier`] | how the rule of a tuple is found |
//! | [`analysis`] | what people want to know of a set: rules that never win, overlaps, why a rule is a flow's, figures |
//!
//! This crate knows no other of the program's.
#![deny(unsafe_code)]

mod address;
pub mod analysis;
pub mod by_label;
pub mod classifier;
mod dscp;
mod key;
mod mark;
mod memory;
mod policy;
mod prefetch;
pub mod rule;
mod rule_set;
mod store;

pub use address::Address;
pub use by_label::{Action, Label, LabelRule, NoSuchLabel, actions, by_class, listed};
pub use dscp::Dscp;
pub use key::{Filter, Key, Ports, RULES_MAX, Rank, RuleNumber, TCP, Tuple, UDP};
pub use mark::{DSCP_MASK, Mark};
pub use policy::{Ask, Facts, Names, Outcome, Policy, PolicyError, UnknownName};
pub use rule_set::{Extent, FILTERS_MAX, RuleSet, TooManyRules};
pub use store::{Batch, OwnedNames, Store, StoreError, Trained, Training, Update, Version};
