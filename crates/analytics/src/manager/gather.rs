//! How series come into a device's input: each is copied once, from where it waits.

use super::{Manager, in_turn};
use crate::batching::Fire;
use crate::dispatch::{Dispatch, Row};
use crate::inlet::Queue;
use cring::Series;

impl Manager {
    /// Copies the oldest series that wait into the device's input, and pads the rest of the batch with zeros.
    pub(super) fn gather(&mut self, lane: usize, fire: &Fire, now_ns: u64) {
        let (input, rows) = self.dispatch.lanes[lane].fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.k);
        let mut inputs = series.chunks_exact_mut(self.k);
        let phases = &mut self.counters.phases;
        // A policy takes no more than waits, so the rings do not end this early.
        while inputs.len() > 0
            && let Some((inlet, seen_ns)) = oldest(&self.queues, self.turn)
        {
            let queue = &mut self.queues[inlet];
            let mut labels = 0;
            // What one round saw in one inlet goes together.
            while queue.oldest_seen_ns() == Some(seen_ns)
                && let Some(input) = inputs.next()
                && let Some((audit, slot)) = queue.take()
            {
                write_row(input, &slot.series);
                if audit.is_none() {
                    labels += 1;
                    phases.ring_waited(seen_ns.saturating_sub(slot.emitted_ns));
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
            phases.batch_waited(now_ns.saturating_sub(seen_ns), labels);
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

/// The inlet whose front has waited longest, and when that was seen. Of several seen in the same round the one that
/// comes first in turn.
fn oldest(queues: &[Queue], turn: usize) -> Option<(usize, u64)> {
    in_turn(turn, queues.len())
        .filter_map(|i| Some((i, queues[i].oldest_seen_ns()?)))
        .min_by_key(|(_, seen_ns)| *seen_ns)
}

/// The model's input for one series: signed lengths, and 0 where the series is shorter than the row.
fn write_row(row: &mut [f32], series: &Series) {
    let lengths = series.signed_lengths();
    let (packets, rest) = row.split_at_mut(lengths.len().min(row.len()));
    for (value, length) in packets.iter_mut().zip(lengths) {
        *value = length as f32;
    }
    rest.fill(0.0);
}
