//! The rows of a batch: who asked, what, and what for.

use crate::cache::Audit;
use cring::{FlowRef, Series, Slot};

/// One row of a batch: who asked, and what for. Its series stands in [`Rows`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub ring_input: usize,
    pub flow: FlowRef,
    pub emitted_ns: u64,
    /// The flow has its label from the cache, with which the result is compared.
    pub audit: Option<Audit>,
    /// A device has failed on it.
    pub is_retry: bool,
}

impl Row {
    /// The row for a series that no device has seen yet.
    pub fn new(ring_input: usize, slot: &Slot) -> Row {
        Row {
            ring_input,
            flow: slot.flow,
            emitted_ns: slot.emitted_ns,
            audit: None,
            is_retry: false,
        }
    }

    /// Whether this flow asked.
    pub fn is_of(&self, ring_input: usize, flow: FlowRef) -> bool {
        self.ring_input == ring_input && self.flow == flow
    }
}

/// The rows of a batch, each with its series, for the cache's key and for a retry: the ring slot is
/// given back when the batch goes.
///
/// A series is large, and most use little of it. So the series are allocated once, and a row copies
/// only what is used.
#[derive(Default)]
pub(crate) struct Rows {
    rows: Vec<Row>,
    /// The series of the row at the same index; beyond the rows they have no meaning.
    series: Vec<Series>,
}

impl Rows {
    /// With room for `rows`.
    pub fn with_capacity(rows: usize) -> Self {
        let mut all = Self::default();
        all.reserve(rows);
        all
    }

    /// Makes room for `rows` in total, if there is less.
    pub fn reserve(&mut self, rows: usize) {
        self.rows.reserve(rows.saturating_sub(self.rows.len()));
        if self.series.len() < rows {
            self.series.resize(rows, Series::default());
        }
    }

    /// Adds a row. A batch never exceeds the reserved room; a row beyond it would allocate.
    pub fn push(&mut self, row: Row, series: &Series) {
        match self.series.get_mut(self.rows.len()) {
            Some(copy) => copy.copy_from(series),
            None => self.series.push(*series),
        }
        self.rows.push(row);
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// The rows with their series, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&Row, &Series)> {
        self.rows.iter().zip(&self.series)
    }
}

/// A series that waits for its second device.
pub(crate) struct Retry {
    pub row: Row,
    pub series: Series,
}
