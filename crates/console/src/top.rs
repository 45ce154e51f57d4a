//! `fenxi top`: the live view of a run in a terminal.
//!
//! `screen` draws one moment as lines, and knows no terminal; `terminal` shows the lines, reads
//! keys and asks again.

mod screen;
mod terminal;

pub use screen::{Pane, Screen, SortBy};
pub use terminal::{Options, moment, run};
