//! A model's input, and how series are copied into it: once each, from where they wait.

use super::rings::Rings;
use crate::Config;
use crate::batching::Fire;
use crate::counters::Phases;
use crate::device_slot::DeviceSlot;
use crate::dispatch::Dispatch;
use crate::rows::Row;
use cring::{Context, Feature, Series};

/// The rows of a device's input.
pub(super) struct RowLayout {
    pub k: usize,
    /// One channel each, in this order.
    pub features: Vec<Feature>,
    /// One number of a row's context each, in this order.
    pub context: Vec<Context>,
    /// The row that failed devices are probed with, and the context behind it.
    probe: Vec<f32>,
}

impl RowLayout {
    pub fn new(config: &Config) -> Self {
        let mut probe = config.probe.clone();
        probe.resize(config.row_len() + config.context.len(), 0.0);
        Self {
            k: config.k,
            features: config.features.clone(),
            context: config.context.clone(),
            probe,
        }
    }

    /// Numbers in one row, without context.
    fn len(&self) -> usize {
        self.k * self.features.len()
    }

    /// The row that failed devices are probed with, and its context.
    pub fn probe(&self) -> (&[f32], &[f32]) {
        self.probe.split_at(self.len())
    }

    /// Copies the oldest series that wait into the device's input, and pads the rest of the batch
    /// with zeros.
    pub fn gather(
        &self,
        device_slot: &mut DeviceSlot,
        rings: &mut Rings,
        fire: &Fire,
        now_ns: u64,
        phases: &mut Phases,
    ) {
        let (input, rows) = device_slot.fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.len());
        let mut inputs = series.chunks_exact_mut(self.len());
        // A policy takes no more than waits, so the rings do not end this early.
        while inputs.len() > 0
            && let Some((ring_input, seen_ns)) = rings.oldest()
        {
            let queue = &mut rings.queues[ring_input];
            let mut labels = 0;
            // What one round saw in one ring input goes together.
            while queue.oldest_seen_ns() == Some(seen_ns)
                && let Some(input) = inputs.next()
                && let Some((audit, slot)) = queue.take()
            {
                write_series(input, self.k, &self.features, &slot.series);
                if audit.is_none() {
                    labels += 1;
                    phases.ring_waited(seen_ns.saturating_sub(slot.emitted_ns));
                }
                rows.push(Row { audit, ..Row::new(ring_input, slot) }, &slot.series);
            }
            phases.batch_waited(now_ns.saturating_sub(seen_ns), labels);
        }
        debug_assert_eq!(inputs.len(), 0, "a batch takes more series than wait");
        padding.fill(0.0);
        device_slot.fill_context(fire.size, &self.context);
        rings.release();
    }

    /// Copies series that wait for their second device into its input, and pads the rest of the
    /// batch with zeros.
    pub fn gather_again(&self, dispatch: &mut Dispatch, device_slot: usize, fire: &Fire) {
        let device_slot = &mut dispatch.device_slots[device_slot];
        let (input, rows) = device_slot.fill(fire.size);
        let (series, padding) = input.split_at_mut(fire.take * self.len());
        let inputs = series.chunks_exact_mut(self.len());
        for (input, retry) in inputs.zip(dispatch.retries.drain(..fire.take)) {
            write_series(input, self.k, &self.features, &retry.series);
            rows.push(retry.row, &retry.series);
        }
        padding.fill(0.0);
        device_slot.fill_context(fire.size, &self.context);
    }
}

/// Writes one series into a row of the model's input: a channel of `k` numbers for each feature, in
/// the model's order, and 0 where the series is shorter than the channel.
pub fn write_series(mut row: &mut [f32], k: usize, features: &[Feature], series: &Series) {
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
        series.channel_mut(Feature::PayloadLength).copy_from_slice(&[8, 9]);
        series.channel_mut(Feature::TcpFlags).copy_from_slice(&[2, 18]);
        series.set_inter_arrival_us(1, 70_000);
        let mut row = [7.0; 12];
        let layout = RowLayout {
            k: 3,
            features: vec![
                Feature::TcpFlags,
                Feature::InterArrival,
                Feature::SignedLength,
                Feature::PayloadLength,
            ],
            context: Vec::new(),
            probe: Vec::new(),
        };
        write_series(&mut row, layout.k, &layout.features, &series);
        let expected =
            [[2.0, 18.0, 0.0], [0.0, 70_000.0, 0.0], [60.0, -65_535.0, 0.0], [8.0, 9.0, 0.0]];
        assert_eq!(row, expected.concat()[..]);
    }
}
