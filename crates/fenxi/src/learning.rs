//! Samples for a program that tunes models (crate `learn` judges what it offers): the thread of the
//! sink keeps a few per band until the next frame ([`strata`]), and readers of the socket get
//! frames of JSON ([`frame`]).

mod control;
mod frame;
mod strata;

pub use control::Learning;
