//! How series come into a device's input: each is copied once, from where it waits.

use super::{Manager, in_turn};
use crate::batching::Fire;
use crate::dispatch::{Dispatch, Row};
use crate::inlet::{Queue, Taken};
use cring::Series;

impl Manager {
    /// Copies the oldest series that wait into the device's input, and pads the rest of the batch with zeros.
    pub(super) fn gather(&mut self, lane: usize, fire: &Fire, now_ns: u64) {
        let (input, rows) = self.dispatch.lanes[lane].fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.k);
        for lengths in series.chunks_exact_mut(self.k) {
            // A policy takes no more than waits, so this does not end the loop early.
            let Some((inlet, taken)) = take_oldest(&mut self.queues, self.turn) else {
                break;
            };
            let Taken {
                seen_ns,
                audit,
                slot,
            } = taken;
            write_row(lengths, &slot.series);
            if audit.is_none() {
                let phases = &mut self.counters.phases;
                phases.ring_waited(seen_ns.saturating_sub(slot.emitted_ns));
                phases.batch_waited(now_ns.saturating_sub(seen_ns));
            }
            rows.push(Row {
                inlet,
                flow: slot.flow,
                emitted_ns: slot.emitted_ns,
                series: slot.series,
                audit,
                is_retry: false,
            });
        }
        padding.fill(0.0);
        self.queues.iter_mut().for_each(Queue::release);
    }

    /// Copies series that wait for their second device into its input, and pads the rest of the batch with zeros.
    pub(super) fn gather_again(&mut self, lane: usize, fire: &Fire) {
        let Dispatch { lanes, retries, .. } = &mut self.dispatch;
        let (input, rows) = lanes[lane].fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.k);
        for (lengths, row) in series
            .chunks_exact_mut(self.k)
            .zip(retries.drain(..fire.take))
        {
            write_row(lengths, &row.series);
            rows.push(row);
        }
        padding.fill(0.0);
    }
}

/// The series that has waited longest in any ring, and its inlet. Of several seen in the same round the one that comes
/// first in turn.
fn take_oldest(queues: &mut [Queue], turn: usize) -> Option<(usize, Taken<'_>)> {
    let (_, inlet) = in_turn(turn, queues.len())
        .filter_map(|i| Some((queues[i].oldest_seen_ns()?, i)))
        .min_by_key(|(seen_ns, _)| *seen_ns)?;
    Some((inlet, queues[inlet].take()?))
}

/// The model's input for one series: signed lengths, and 0 where the series is shorter than the row.
fn write_row(row: &mut [f32], series: &Series) {
    row.fill(0.0);
    for (value, length) in row.iter_mut().zip(series.signed_lengths()) {
        *value = length as f32;
    }
}
