//! Where a series meets its answer.

use super::Measure;
use crate::cache::Answer;
use crate::ring_input::Queue;
use crate::{Accelerator, Counters};
use cring::{FlowRef, Series, Source};

/// Offers labels, and counts what becomes of them.
pub(super) struct Labelling {
    pub counters: Counters,
    /// For the controller, in this control period.
    pub measure: Measure,
}

impl Labelling {
    pub fn new(accelerators: &[Accelerator], measure: Measure) -> Self {
        Self { counters: Counters::new(accelerators), measure }
    }

    /// Offers an answer to the flow that asked. Returns the time since its series was emitted, in
    /// ns.
    pub fn label(
        &mut self,
        queue: &Queue,
        (series, flow, emitted_ns): (&Series, FlowRef, u64),
        (answer, source): (Answer, Source),
        now_ns: u64,
    ) -> u64 {
        let label = answer.label(source);
        let taken = queue.decide(series.task, flow, label);
        let time_ns = now_ns.saturating_sub(emitted_ns);
        self.counters.labelled(source, taken, time_ns);
        self.measure.labelled(emitted_ns, time_ns);
        time_ns
    }
}
