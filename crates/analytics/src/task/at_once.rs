//! A series that is answered at once, on the thread of its flow manager, without ring, cache and
//! batch: for devices that take less time for a row than those would.
//!
//! Two looks at the clock and five histograms would take as long as half a row. So one answer in
//! [`TIMED_EVERY`] is timed, and those behind it count as if they had taken as long.

use super::Task;
use super::canary;
use super::row_layout::write_series;
use super::swap::Role;
use super::whose::Lesser;
use crate::batching::Fire;
use crate::cache::Answer;
use crate::device_slot::{DeviceSlot, Polled};
use crate::failure::Failure;
use crate::{Counters, Trigger};
use cring::{Label, Labels, Slot, Source};

/// A batch of the one series.
const ONE: Fire = Fire { take: 1, size: 1, trigger: Trigger::Idle, more: false };

/// How many answers there are for each that is timed.
const TIMED_EVERY: u64 = 8;

/// The last answer that was timed, and those behind it.
#[derive(Default)]
pub(super) struct Times {
    /// From emission to the device.
    waited_ns: u64,
    device_ns: u64,
    /// From emission to the label.
    label_ns: u64,
    /// Answers that count as it does, and are not counted yet.
    uncounted: u64,
    /// How many more are not timed.
    untimed: u64,
    /// Answers that took no time, and are not counted yet.
    given: u64,
}

impl Task {
    /// The label of a series: `given` if its model was asked elsewhere, or from the first device of
    /// the model that the flow began with (`kept`), which takes a single row and works
    /// inside [`accel::Device::submit`]. `clock` is the clock of [`Slot::emitted_ns`]. Counters
    /// know of it after [`Task::count_answers`].
    pub fn answer(
        &mut self,
        asked: &Slot,
        labels: &dyn Labels,
        given: Option<Label>,
        clock: impl Fn() -> u64,
    ) -> Label {
        let counters = &mut self.labelling.counters;
        counters.series += 1;
        if !self.rings.is_asked(labels, asked.flow) {
            counters.not_asked += 1;
            return Label::Unlabelled;
        }
        let lesser = match self.swaps.come {
            0 => Lesser::None,
            _ => Lesser::of(labels, (self.terms.word, asked.series.task), asked.flow),
        };
        if let Some(label) = given.filter(|label| lesser.agrees(*label)) {
            self.times.given += 1;
            return label;
        }
        let is_its_model = |slot: &DeviceSlot| match lesser {
            Lesser::By(generation) => slot.model().generation == generation,
            Lesser::None | Lesser::Pending => true,
        };
        let is_for_canary = self.swaps.canary.as_ref().is_some_and(|canary| match lesser {
            Lesser::By(generation) => canary.model.generation == generation,
            Lesser::None | Lesser::Pending => canary::takes(canary, self.terms.word, asked),
        });
        let role = match self.dispatch.device_slots.first() {
            _ if is_for_canary => Role::Canary,
            Some(slot) if !is_its_model(slot) => Role::Before,
            _ => Role::InUse,
        };
        let dispatch = self.swaps.dispatch_of(role, &mut self.dispatch);
        let slot = dispatch.and_then(|dispatch| dispatch.device_slots.first_mut());
        let Some(slot) = slot.filter(|slot| is_its_model(slot)) else {
            counters.not_asked += 1;
            return Label::Unlabelled;
        };
        if !slot.is_free() {
            counters.shed_no_device += 1;
            return Label::Unlabelled;
        }
        let is_timed = self.times.untimed == 0;
        let began_ns = if is_timed { clock() } else { asked.emitted_ns };
        let (input, _) = slot.fill(ONE.size);
        write_series(input, self.rows.k, &self.rows.features, &asked.series);
        slot.fill_context_of(&asked.series, &self.rows.context);
        let submitted = slot.submit(ONE.size, began_ns);
        let now_ns = if is_timed { clock() } else { began_ns + self.times.device_ns };
        let failure = match submitted.map(|()| slot.poll(now_ns)) {
            Ok(Polled::Results { answers, model, device_ns, late, .. }) => {
                let label = Answer::new(&answers[0], model).label(Source::Model);
                if is_timed {
                    self.times.count(counters);
                    self.times = Times {
                        waited_ns: began_ns.saturating_sub(asked.emitted_ns),
                        device_ns,
                        label_ns: now_ns.saturating_sub(asked.emitted_ns),
                        uncounted: 1,
                        untimed: TIMED_EVERY,
                        given: 0,
                    };
                    self.times.count(counters);
                } else {
                    self.times.uncounted += 1;
                }
                self.times.untimed -= 1;
                if let Some(failure) = late {
                    self.on_failure(role, &failure);
                }
                return label;
            }
            Ok(Polled::Failed(failure)) | Err(failure) => Some(failure),
            // Such a device has its answer when it has submitted.
            Ok(Polled::Nothing | Polled::Recovered) => {
                debug_assert!(false, "a device that does not work inside submit");
                None
            }
        };
        counters.fired(0, &ONE, 1);
        counters.failed_no_other_device += 1;
        if let Some(failure) = failure {
            self.on_failure(role, &failure);
        }
        Label::Unlabelled
    }

    /// Counts the answers that are not counted yet.
    pub fn count_answers(&mut self) {
        self.times.count(&mut self.labelling.counters);
    }

    fn on_failure(&mut self, role: Role, failure: &Failure) {
        self.times.untimed = 0;
        self.on_device_failure((role, 0), true, failure);
    }
}

impl Times {
    fn count(&mut self, counters: &mut Counters) {
        let answers = std::mem::take(&mut self.uncounted);
        if answers > 0 {
            counters.fired(0, &ONE, answers);
            counters.answered_at_once(answers, self.waited_ns, self.device_ns, self.label_ns);
        }
        let given = std::mem::take(&mut self.given);
        if given > 0 {
            counters.fired(0, &ONE, given);
            counters.answered_at_once(given, 0, 0, 0);
        }
    }
}
