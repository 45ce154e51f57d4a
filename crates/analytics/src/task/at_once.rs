//! A series that is answered at once, on the thread of its flow manager, without ring, cache and
//! batch: for devices that take less time for a row than those would.

use super::Task;
use crate::Trigger;
use crate::batching::Fire;
use crate::cache::Answer;
use crate::device_slot::Polled;
use crate::rows::Row;
use cring::{Label, Labels, Slot, Source};
use std::time::Duration;

/// A batch of the one series.
const ONE: Fire = Fire { take: 1, size: 1, trigger: Trigger::Idle, more: false };

impl Task {
    /// The label of a series, from the task's first device, which takes a single row and works
    /// inside [`accel::Device::submit`]. `clock` is the clock of [`Slot::emitted_ns`].
    pub fn answer(&mut self, asked: &Slot, labels: &dyn Labels, clock: impl Fn() -> u64) -> Label {
        let counters = &mut self.labelling.counters;
        counters.series += 1;
        if !self.rings.is_asked(labels, asked.flow) {
            counters.not_asked += 1;
            return Label::Unlabelled;
        }
        let slot = self.dispatch.device_slots.first_mut().filter(|slot| slot.is_free());
        let Some(slot) = slot else {
            counters.shed_no_device += 1;
            return Label::Unlabelled;
        };
        let began_ns = clock();
        let (input, rows) = slot.fill(ONE.size);
        self.rows.write(input, &asked.series);
        rows.push(row(asked), &asked.series);
        slot.fill_context(ONE.size, &self.rows.context);
        slot.rows.clear();
        counters.fired(0, &ONE);
        counters.phases.ring_waited(began_ns.saturating_sub(asked.emitted_ns));
        counters.phases.batch_waited(0, 1);
        let submitted = slot.submit(ONE.size, began_ns);
        let now_ns = clock();
        let (failure, label) = match submitted.map(|()| slot.poll(now_ns)) {
            Ok(Polled::Results { answers, model, device_ns, late, .. }) => {
                counters.devices[0].busy += Duration::from_nanos(device_ns);
                counters.phases.device_took(device_ns, 1);
                let label = Answer::new(&answers[0], model).label(Source::Model);
                let time_ns = now_ns.saturating_sub(asked.emitted_ns);
                counters.labelled(Source::Model, Ok(()), time_ns);
                (late, label)
            }
            Ok(Polled::Failed(failure)) | Err(failure) => {
                counters.failed_no_other_device += 1;
                (Some(failure), Label::Unlabelled)
            }
            // Such a device has its answer when it has submitted.
            Ok(Polled::Nothing | Polled::Recovered) => {
                debug_assert!(false, "a device that does not work inside submit");
                counters.failed_no_other_device += 1;
                (None, Label::Unlabelled)
            }
        };
        if let Some(failure) = failure {
            self.on_device_failure(0, true, &failure);
        }
        if label != Label::Unlabelled {
            self.labelling.show(&asked.series, asked.flow, label);
        }
        label
    }
}

fn row(asked: &Slot) -> Row {
    let Slot { flow, emitted_ns, .. } = *asked;
    Row { ring_input: 0, flow, emitted_ns, audit: None, is_retry: false }
}
