//! Decides what to do about flows.
//!
//! A label says what a flow is, an action what to do about it. There are two ways to an action:
//!
//! | module | holds |
//! |---|---|
//! | [`by_label`] | actions by label, whatever the addresses: `tag.dscp`, `mark.class` |
//! | [`rule`], [`RuleSet`] | rules by tuple, label and past traffic, as they are written |
//! | [`hours`], [`Gates`] | when rules count |
//! | [`Policy`] | compiled rules for the data path |
//! | [`Store`] | rules that are added and deleted during look-ups |
//! | [`classifier`] | finds the rule of a tuple |
//! | [`analysis`] | rules that never win, overlaps, explanations, figures |
//!
//! This crate depends on no other of the program.
#![deny(unsafe_code)]

mod address;
pub mod analysis;
pub mod by_label;
pub mod classifier;
mod dscp;
mod gates;
pub mod hours;
mod key;
mod mark;
mod memory;
mod nearest;
mod policy;
mod prefetch;
pub mod rule;
mod rule_set;
mod store;

pub use address::Address;
pub use by_label::{Action, Label, LabelRule, NoSuchLabel, actions, by_class, by_task, listed};
pub use dscp::{Dscp, NotADscp};
pub use gates::{Gates, Moment};
pub use key::{Filter, ICMP, ICMPV6, Key, Ports, RULES_MAX, Rank, RuleNumber, TCP, Tuple, UDP};
pub use mark::{DSCP_MASK, Mark};
pub use nearest::{nearest, suggest};
pub use policy::{Ask, Decision, Facts, LABELS_MAX, Names, Policy, PolicyError, UnknownName};
pub use rule_set::{Extent, FILTERS_MAX, RuleSet, TooManyRules};
pub use store::{Batch, Store, StoreError, Trained, Training, Update, Version};
