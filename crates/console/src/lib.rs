//! The control [`protocol`], and what is shown of its replies: [`top`] in a terminal, [`page`] in
//! a browser, [`explanation`] of one flow, [`report`] of past traffic.
//!
//! Names of labels and hosts come from outside; [`text`] makes them harmless before they are shown.
#![forbid(unsafe_code)]

pub mod explanation;
pub mod figures;
pub mod page;
pub mod protocol;
pub mod report;
pub mod text;
pub mod top;
