//! What people look at, made from replies of the control protocol: [`top`] for a terminal, [`page`] for a browser,
//! [`explanation`] for whoever asks about one flow; and numbers and names as people read them.
//!
//! Names of labels and hosts come from outside. [`text`] makes them harmless wherever they are shown.
#![forbid(unsafe_code)]

pub mod explanation;
pub mod figures;
pub mod page;
pub mod text;
pub mod top;
