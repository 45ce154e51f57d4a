//! What happens to batches that come back, and to batches that never will.
//!
//! A batch of a device that fails, or is overdue, is taken apart: each of its series is retried
//! once on another device that is up. If there is none, or it was retried before, the series is
//! given up and counted as failed, and its flow is told that no label will come. With one device
//! there is no other, so one transient error costs one batch, and what comes until the first probe,
//! 10 ms later, is shed. Audits are not retried: their flows have their labels.

use super::Task;
use super::labelling::Labelling;
use super::rings::TimedCache;
use super::swap::Role;
use crate::Counters;
use crate::cache::Answer;
use crate::device_slot::{DeviceSlot, Model, Polled};
use crate::dispatch::Dispatch;
use crate::executors::Executors;
use crate::failure::Failure;
use crate::ring_input::Queue;
use crate::rows::{Retry, Row, Rows};
use accel::Classification;
use cring::{Label, Series, Source};
use std::time::Duration;

impl Task {
    /// Turns finished batches into labels. Returns whether a batch came back, or is given up.
    pub(super) fn collect(&mut self, now_ns: u64) -> bool {
        let mut collected = false;
        for role in Role::ALL {
            for i in 0..self.devices(role) {
                collected |= self.collect_from(role, i, now_ns);
            }
        }
        collected
    }

    fn collect_from(&mut self, role: Role, i: usize, now_ns: u64) -> bool {
        let number = self.swaps.number(role, i);
        let Some(dispatch) = self.swaps.dispatch_of(role, &mut self.dispatch) else {
            return false;
        };
        let device_slot = &mut dispatch.device_slots[i];
        let was_up = device_slot.is_up();
        let failure = match device_slot.poll(now_ns) {
            Polled::Nothing => return false,
            Polled::Recovered => {
                self.labelling.counters.devices[i].came_back += u64::from(role == Role::InUse);
                return false;
            }
            Polled::Failed(failure) => Some(failure),
            Polled::Results { answers, rows, model, device_ns, late } => {
                let batch = Batch { rows, answers, model };
                let labelling = &mut self.labelling;
                labelling.counters.devices[number].busy += Duration::from_nanos(device_ns);
                let labels = batch.settle(now_ns, &self.rings.queues, labelling);
                labelling.counters.phases.device_took(device_ns, labels);
                batch.remember(&mut self.cache, device_ns, labelling);
                batch.rows.clear();
                late
            }
        };
        if let Some(failure) = failure {
            self.on_device_failure((role, i), was_up, &failure);
        }
        true
    }

    /// Sends probes to devices whose time has come and whose executor is free; like a batch, each
    /// takes its executor. Probes come before the round's batches; otherwise a device whose
    /// executor others always fill would never be back.
    pub(crate) fn probe(&mut self, now_ns: u64, executors: &mut Executors) {
        for i in 0..self.dispatch.device_slots.len() {
            let executor = self.dispatch.device_slots[i].executor();
            if !executors.is_free(executor) {
                continue;
            }
            let device_slot = &mut self.dispatch.device_slots[i];
            let Some(sent) = device_slot.probe(self.rows.probe(), now_ns) else {
                continue;
            };
            self.labelling.counters.devices[i].probes += 1;
            if let Err(failure) = sent {
                self.on_device_failure((Role::InUse, i), false, &failure);
            }
            executors.take(executor);
        }
    }

    /// A device failed: its series are retried, by the same model, or given up.
    pub(super) fn on_device_failure(
        &mut self,
        (role, i): (Role, usize),
        was_up: bool,
        failure: &Failure,
    ) {
        let counters = &mut self.labelling.counters;
        let in_use = self.swaps.model;
        let number = self.swaps.number(role, i);
        let device = &mut counters.devices[number];
        match self.swaps.kept_as(role) {
            None => device.failed(failure),
            Some(kept) => {
                device.kept_failures += 1;
                kept.failure = Some(failure.to_string());
            }
        }
        let Some(dispatch) = self.swaps.dispatch_of(role, &mut self.dispatch) else {
            return;
        };
        let device_slot = &mut dispatch.device_slots[i];
        let went_down = role == Role::InUse && was_up && !device_slot.is_up();
        device.went_down += u64::from(went_down);
        let model = device_slot.model();
        let mut rows = std::mem::take(&mut device_slot.rows);
        let mut slots = dispatch.device_slots.iter();
        let mut is_another_up = slots.any(|slot| slot.is_up() && slot.model() == model);
        // While the model is being swapped, devices of the one before have been replaced.
        let is_before = role == Role::InUse && model != in_use;
        let retry_by = if is_before { Role::Before } else { role };
        let Some(Dispatch { device_slots, retries, .. }) =
            self.swaps.dispatch_of(retry_by, &mut self.dispatch)
        else {
            return;
        };
        is_another_up |= is_before && device_slots.iter().any(DeviceSlot::is_up);
        for (&row, series) in rows.iter() {
            if row.audit.is_some() {
                continue;
            }
            if is_another_up && !row.is_retry {
                let row = Row { is_retry: true, ..row };
                counters.retried += 1;
                let series = *series;
                retries.push_back(Retry { row, series });
                continue;
            }
            // If the flow is gone, nobody is left to tell.
            let queue = &self.rings.queues[row.ring_input];
            let _ = queue.decide(series.task, row.flow, Label::Unlabelled);
            if row.is_retry {
                counters.failed_after_retry += 1;
            } else {
                counters.failed_no_other_device += 1;
            }
        }
        rows.clear();
        if let Some(device_slot) = self.device_slot(role, i) {
            device_slot.rows = rows;
        }
    }

    /// Gives up what is for a model that is in use no more, and has no device that is up. Returns
    /// whether there was anything.
    pub(super) fn shed_kept(&mut self) -> bool {
        let counters = &mut self.labelling.counters;
        let before = counters.undecided();
        for role in Role::KEPT {
            // Others of its devices may yet come.
            if role == Role::Before && self.swaps.is_exchanging() {
                continue;
            }
            let dispatch = self.swaps.dispatch_of(role, &mut self.dispatch);
            let Some(dispatch) = dispatch.filter(|dispatch| dispatch.up() == 0) else {
                continue;
            };
            give_up(dispatch, &self.rings.queues, counters);
        }
        counters.undecided() < before
    }

    /// No device is up: gives up the waiting series, so that the rings have room. Returns whether
    /// there were any.
    pub(super) fn shed(&mut self) -> bool {
        let counters = &mut self.labelling.counters;
        let before = counters.undecided();
        give_up(&mut self.dispatch, &self.rings.queues, counters);
        counters.shed_no_device += self.rings.shed();
        counters.undecided() < before
    }
}

/// Gives up the series that wait for another device, or for the first of a kept model.
fn give_up(dispatch: &mut Dispatch, queues: &[Queue], counters: &mut Counters) {
    for Retry { row, series } in dispatch.retries.drain(..) {
        let queue = &queues[row.ring_input];
        let _ = queue.decide(series.task, row.flow, Label::Unlabelled);
        match row.is_retry {
            true => counters.failed_no_other_device += 1,
            false => counters.shed_no_device += 1,
        }
    }
}

/// A batch that came back without a failure.
struct Batch<'a> {
    rows: &'a mut Rows,
    /// One for each row, and more for the padding.
    answers: &'a [Classification],
    model: Model,
}

impl Batch<'_> {
    fn answered(&self) -> impl Iterator<Item = (&Row, &Series, Answer)> {
        let answers = self.answers.iter();
        self.rows
            .iter()
            .zip(answers.map(|answer| Answer::new(answer, self.model)))
            .map(|((row, series), answer)| (row, series, answer))
    }

    /// Gives each flow its label, and each audit its verdict. Returns how many labels that were.
    fn settle(&self, now_ns: u64, queues: &[Queue], labelling: &mut Labelling) -> u64 {
        debug_assert!(self.answers.len() >= self.rows.len(), "a row has no answer");
        let before = labelling.counters.inferred;
        for (row, series, answer) in self.answered() {
            if let Some(audit) = row.audit {
                if let Some(agrees) = audit.agrees(answer) {
                    labelling.counters.cache.audited(agrees);
                }
                continue;
            }
            let queue = &queues[row.ring_input];
            let asked = (series, row.flow, row.emitted_ns);
            labelling.label(queue, asked, (answer, Source::Model), now_ns);
        }
        labelling.counters.inferred - before
    }

    /// Enters the answers in the cache, after the labels, because somebody waits for the labels.
    fn remember(&self, timed: &mut TimedCache, device_ns: u64, labelling: &mut Labelling) {
        let Some(cache) = &mut timed.cache else {
            return;
        };
        cache.governor.inferred(self.rows.len(), device_ns);
        if !cache.governor.is_in_use() {
            return;
        }
        let began_ns = (timed.clock)();
        for (row, series, answer) in self.answered() {
            // An audit only compares: its answer must not replace the one that is audited.
            if row.audit.is_none() {
                cache.insert(series, answer);
            }
        }
        let counters = &mut labelling.counters.cache;
        counters.entries = cache.len() as u64;
        let cost_ns = (timed.clock)().saturating_sub(began_ns);
        cache.governor.entered(cost_ns);
        counters.insert_time += Duration::from_nanos(cost_ns);
    }
}
