//! How the memory of servers leaves a running flow worker: in portions, which go to and fro as
//! [`super::snapshot`]s do, and as a whole at the worker's end.

use flowmgr::ServerCells;

use crate::opening::inline::FlowManager;

/// Sets of the memory that are copied between two bursts: 16 KiB, some microseconds' worth.
const SETS: usize = 64;

/// A portion.
pub struct Portion {
    /// The set to go on from. `None` in a question: from the beginning; in an answer: there are no
    /// more.
    pub next: Option<usize>,
    /// The cells.
    pub cells: ServerCells,
}

impl Default for Portion {
    fn default() -> Portion {
        Portion { next: None, cells: ServerCells::with_sets(SETS) }
    }
}

impl Portion {
    /// Fills it between two bursts.
    pub(super) fn fill(&mut self, manager: &FlowManager) {
        self.fill_with(manager, SETS);
    }

    /// Fills it with this many sets; it allocates for more than [`SETS`].
    pub(super) fn fill_with(&mut self, manager: &FlowManager, sets: usize) {
        self.cells.cells.clear();
        let from = self.next.unwrap_or_default();
        self.next = manager.read_servers(from, sets, &mut self.cells);
    }
}
