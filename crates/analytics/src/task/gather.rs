//! How series come into a device's input: each is copied once, from where it waits.

use super::Task;
use super::look::in_turn;
use crate::batching::Fire;
use crate::dispatch::Dispatch;
use crate::ring_input::Queue;
use crate::rows::Row;
use cring::{Feature, Series};

impl Task {
    /// Copies the oldest series that wait into the device's input, and pads the rest of the batch with zeros.
    pub(super) fn gather(&mut self, device_slot: usize, fire: &Fire, now_ns: u64) {
        let row_len = self.row_len();
        let (input, rows) = self.dispatch.device_slots[device_slot].fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * row_len);
        let mut inputs = series.chunks_exact_mut(row_len);
        let phases = &mut self.counters.phases;
        // A policy takes no more than waits, so the rings do not end this early.
        while inputs.len() > 0
            && let Some((ring_input, seen_ns)) = oldest(&self.queues, self.turn)
        {
            let queue = &mut self.queues[ring_input];
            let mut labels = 0;
            // What one round saw in one ring input goes together.
            while queue.oldest_seen_ns() == Some(seen_ns)
                && let Some(input) = inputs.next()
                && let Some((audit, slot)) = queue.take()
            {
                write_row(input, self.k, &self.features, &slot.series);
                if audit.is_none() {
                    labels += 1;
                    phases.ring_waited(seen_ns.saturating_sub(slot.emitted_ns));
                }
                let row = Row {
                    ring_input,
                    flow: slot.flow,
                    emitted_ns: slot.emitted_ns,
                    audit,
                    is_retry: false,
                };
                rows.push(row, &slot.series);
            }
            phases.batch_waited(now_ns.saturating_sub(seen_ns), labels);
        }
        padding.fill(0.0);
        self.dispatch.device_slots[device_slot].fill_context(fire.size, &self.context);
        self.queues.iter_mut().for_each(Queue::release);
    }

    /// Copies series that wait for their second device into its input, and pads the rest of the batch with zeros.
    pub(super) fn gather_again(&mut self, device_slot: usize, fire: &Fire) {
        let row_len = self.row_len();
        let Dispatch {
            device_slots,
            retries,
            ..
        } = &mut self.dispatch;
        let (input, rows) = device_slots[device_slot].fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * row_len);
        let inputs = series.chunks_exact_mut(row_len);
        for (input, retry) in inputs.zip(retries.drain(..fire.take)) {
            write_row(input, self.k, &self.features, &retry.series);
            rows.push(retry.row, &retry.series);
        }
        padding.fill(0.0);
        device_slots[device_slot].fill_context(fire.size, &self.context);
    }
}

/// The ring input whose front has waited longest, and when that was seen. Of several seen in the same round the one that
/// comes first in turn.
fn oldest(queues: &[Queue], turn: usize) -> Option<(usize, u64)> {
    in_turn(turn, queues.len())
        .filter_map(|i| Some((i, queues[i].oldest_seen_ns()?)))
        .min_by_key(|(_, seen_ns)| *seen_ns)
}

/// The model's input for one series: a channel for each feature, in the model's order, and 0 where the series is shorter
/// than the channel.
fn write_row(mut row: &mut [f32], k: usize, features: &[Feature], series: &Series) {
    for &feature in features {
        let (channel, rest) = row.split_at_mut(k);
        row = rest;
        match feature {
            Feature::SignedLength => {
                write_channel(channel, series.signed_lengths().map(|length| length as f32));
            }
            Feature::InterArrival => {
                write_channel(channel, series.inter_arrivals_us().map(|us| us as f32));
            }
            Feature::PayloadLength | Feature::TcpFlags => {
                let values = series.channel(feature).iter();
                write_channel(channel, values.map(|&value| f32::from(value)));
            }
        }
    }
}

fn write_channel(channel: &mut [f32], values: impl ExactSizeIterator<Item = f32>) {
    let (elements, rest) = channel.split_at_mut(values.len().min(channel.len()));
    for (element, value) in elements.iter_mut().zip(values) {
        *element = value;
    }
    rest.fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cring::Features;

    #[test]
    fn channels_stand_in_the_order_of_the_model_and_end_in_zeros() {
        let mut series = Series::new(6, 2, Features::ALL);
        series.set_signed(0, 60);
        series.set_signed(1, -65_535);
        series
            .channel_mut(Feature::PayloadLength)
            .copy_from_slice(&[8, 9]);
        series
            .channel_mut(Feature::TcpFlags)
            .copy_from_slice(&[2, 18]);
        series.set_inter_arrival_us(1, 70_000);
        let mut row = [7.0; 12];
        let order = [
            Feature::TcpFlags,
            Feature::InterArrival,
            Feature::SignedLength,
            Feature::PayloadLength,
        ];
        write_row(&mut row, 3, &order, &series);
        let expected = [
            [2.0, 18.0, 0.0],
            [0.0, 70_000.0, 0.0],
            [60.0, -65_535.0, 0.0],
            [8.0, 9.0, 0.0],
        ];
        assert_eq!(row, expected.concat()[..]);
    }
}
