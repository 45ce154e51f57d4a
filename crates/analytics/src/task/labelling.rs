//! Where a series meets its answer.

use super::Measure;
use crate::cache::Answer;
use crate::ring_input::Queue;
use crate::{Accelerator, Counters};
use cring::{FlowRef, Label, Series, Source};

/// Sees each series with the label that its flow is offered, from a device or the cache. It runs on
/// the manager's thread, so it must not block, and should not allocate.
pub trait Observer: Send {
    /// A series was answered. Its flow may be gone.
    fn answered(&mut self, series: &Series, flow: FlowRef, label: Label);
}

/// Offers labels, and counts what becomes of them.
pub(super) struct Labelling {
    pub counters: Counters,
    /// For the controller, in this control period.
    pub measure: Measure,
    pub observer: Option<Box<dyn Observer>>,
}

impl Labelling {
    pub fn new(accelerators: &[Accelerator], measure: Measure) -> Self {
        Self { counters: Counters::new(accelerators), measure, observer: None }
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
        self.show(series, flow, label);
        time_ns
    }

    /// Shows a series and its label to the observer, if there is one.
    pub fn show(&mut self, series: &Series, flow: FlowRef, label: Label) {
        if let Some(observer) = &mut self.observer {
            observer.answered(series, flow, label);
        }
    }
}
