//! The history in a build without it: its keys alone, to be refused.

use config::{Keyed, Section};

use crate::exit::Failure;
use crate::history::Keys;
use crate::sinks::{SinkControl, SinkKind, Start};

pub struct History;

impl SinkKind for History {
    fn sections(&self) -> &'static [&'static Section] {
        &[Keys::SECTION]
    }

    fn start(&self, _: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        Ok(None)
    }
}
