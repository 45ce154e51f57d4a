//! The seam where records leave the data path.

use flowmgr::record::Record;

use crate::threads::rules::{Ruled, RulesInForce};

/// A consumer of labels and ended flows: a file of records, connection marks, a view of recent
/// flows.
///
/// Each flow worker has an instance of its own and calls it between two bursts. A sink neither
/// blocks, except for room once [`Sink::drain`] was called, nor writes itself: it hands over to a
/// thread and counts what it had to drop.
pub trait Sink: Send {
    /// A label was decided, or a flow ended or was reported. Times are wall time.
    fn record(&mut self, record: &Record);

    /// With rules: the rule of a flow was found, or its label decided; after this, [`Sink::record`]
    /// has the label, too.
    fn ruled(&mut self, _ruled: &Ruled) {}

    /// From now on these rules are in force: [`Sink::ruled`] and the rules in records use their
    /// numbers. A sink that keeps the rules must drop the previous ones at once, since they are on
    /// their way back.
    fn take_rules(&mut self, _rules: &RulesInForce) {}

    /// The worker reads no packet any more: from now on the sink may wait for room.
    fn drain(&mut self) {}

    /// Whether a label must reach this sink as soon as it is decided. The worker is then woken for
    /// labels; otherwise they may wait until the next packets come.
    fn is_urgent(&self) -> bool {
        false
    }
}
