//! Tables of labelled flows, and the scores of a model's answers to them.
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | a table as CSV, gzipped or not, row by row |
//! | [`columns`] | what a model reads of a flow, in the columns of a table |
//! | [`flows`] | the flows of a table whose label counts |
//! | [`answers`] | the model's answers at each depth, and the names that flows end with |
//! | [`scores`] | accuracy, F1 and calibration |
//! | [`baselines`] | what a model has to beat, fitted on the same flows |
//!
//! The crate prints nothing; `fenxi model bench` does.

#![forbid(unsafe_code)]

pub mod answers;
pub mod baselines;
pub mod columns;
pub mod flows;
mod groups;
pub mod scores;
pub mod table;

use thiserror::Error;

/// Why a table cannot be used. Each message names the file, and the line where there is one.
#[derive(Debug, Error)]
pub enum TableError {
    /// There is no such file.
    #[error("{0}")]
    NoInput(String),
    /// It holds something else than it should.
    #[error("{0}")]
    Data(String),
    /// Reading failed.
    #[error("{0}")]
    Read(String),
}
