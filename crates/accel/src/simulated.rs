//! The device `simulated`: takes the time that a profile says and runs no model.
//!
//! It serves tests and experiments on batching and scheduling, where a real accelerator's time
//! matters and its results do not. Its results are **not a classification of anything**: they are a
//! fixed function of the row and its context, so that they are the same in every batch and on every
//! machine, and a row that was swapped, padded or lost is noticed.

use std::time::Instant;

use crate::bundle::Bundle;
use crate::device::{Classification, Device, DeviceError, Shape, Sizes};
use crate::profile::Profile;
use crate::provider::{DeviceSpec, OpenError, Provider};

/// What [`Device::effective`] says, whatever name the configuration gives it.
const KIND: &str = "simulated";

/// A latency profile without a model.
pub(crate) const SIMULATED: Provider = Provider {
    name: KIND,
    computes: false,
    is_cpu: false,
    needs_fixed_sizes: false,
    needs_library: false,
    answers_at_once: false,
    needs_plugin: false,
    open,
    probe: None,
};

fn open(spec: &DeviceSpec, bundle: &Bundle) -> Result<Box<dyn Device>, OpenError> {
    let device = SimulatedDevice::new(spec.simulated, spec.sizes.clone(), bundle.shape());
    Ok(Box::new(device.with_name(&spec.name)))
}

/// A device that runs no model.
pub struct SimulatedDevice {
    name: String,
    profile: Profile,
    sizes: Sizes,
    shape: Shape,
    input: Vec<f32>,
    context: Vec<f32>,
    results: Vec<Classification>,
    /// When the batch in flight is ready.
    ready: Option<Instant>,
}

impl SimulatedDevice {
    /// A device with this profile and these batch sizes for input of this shape.
    pub fn new(profile: Profile, sizes: Sizes, shape: Shape) -> Self {
        let rows = sizes.largest();
        Self {
            name: KIND.to_owned(),
            profile,
            sizes,
            input: vec![0.0; rows * shape.row_len()],
            context: vec![0.0; rows * shape.context],
            results: Vec::with_capacity(rows),
            shape,
            ready: None,
        }
    }

    /// Sets the name that [`Device::requested`] returns.
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }
}

impl Device for SimulatedDevice {
    fn requested(&self) -> &str {
        &self.name
    }

    fn effective(&self) -> &str {
        KIND
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.ready.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.shape.row_len()]
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        &mut self.context[..rows * self.shape.context]
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.accepts(rows)?;
        self.ready = Some(Instant::now() + self.profile.latency(rows));
        let Shape { context, classes, .. } = self.shape;
        let filled = self.input[..rows * self.shape.row_len()].chunks_exact(self.shape.row_len());
        self.results.clear();
        self.results.extend(filled.enumerate().map(|(at, row)| Classification {
            class: class(row, &self.context[at * context..][..context], classes),
            confidence: 1.0,
        }));
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        self.ready.take_if(|ready| Instant::now() >= *ready)?;
        Some(Ok(&self.results))
    }

    fn ready_at(&self) -> Option<Instant> {
        self.ready
    }
}

/// Sum of position × |number| over the row and then its context, modulo the number of classes. The
/// position makes a changed order visible.
fn class(row: &[f32], context: &[f32], classes: usize) -> u16 {
    let sum: u64 =
        row.iter().chain(context).zip(1..).map(|(value, place)| place * value.abs() as u64).sum();
    (sum % classes as u64) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { channels: 1, k: 3, context: 0, classes: 7 };

    fn device(t0_us: f64, sizes: Sizes) -> SimulatedDevice {
        SimulatedDevice::new(Profile { t0_us, t1_us: 0.0 }, sizes, SHAPE)
    }

    #[test]
    fn the_class_is_a_function_of_the_row() {
        let mut device = device(0.0, Sizes::Any { cap: 2 });
        device.input(2).copy_from_slice(&[100.0, -50.0, 0.0, -50.0, 100.0, 0.0]);
        device.submit(2).unwrap();
        let classes: Vec<u16> =
            device.poll().unwrap().unwrap().iter().map(|result| result.class).collect();
        // 100 + 2·50 = 200 and 50 + 2·100 = 250, modulo 7.
        assert_eq!(classes, [4, 5]);
        assert!(device.is_idle() && device.poll().is_none());
    }

    #[test]
    fn the_class_is_a_function_of_the_context_too() {
        let shape = Shape { context: 2, ..SHAPE };
        let profile = Profile { t0_us: 0.0, t1_us: 0.0 };
        let mut device = SimulatedDevice::new(profile, Sizes::Any { cap: 2 }, shape);
        device.input(2).fill(0.0);
        device.context(2).copy_from_slice(&[6.0, 1.0, 1.0, 6.0]);
        device.submit(2).unwrap();
        let results = device.poll().unwrap().unwrap();
        // 4·6 + 5·1 = 29 and 4·1 + 5·6 = 34, modulo 7.
        assert_eq!([results[0].class, results[1].class], [1, 6]);
    }

    #[test]
    fn a_batch_is_not_ready_before_its_time() {
        let mut device = device(3.6e9, Sizes::Any { cap: 2 }); // an hour
        device.submit(1).unwrap();
        assert!(device.poll().is_none());
        assert!(!device.is_idle());
        assert!(matches!(device.submit(1), Err(DeviceError::Busy { .. })));
    }

    #[test]
    fn a_size_it_does_not_take_is_refused() {
        let mut device = device(0.0, Sizes::Fixed(vec![2, 4])).with_name("slow");
        assert_eq!((device.requested(), device.effective()), ("slow", "simulated"));
        let message = device.submit(3).unwrap_err().to_string();
        assert!(
            message.contains("slow")
                && message.contains("no batch of 3 rows")
                && message.contains("[2, 4]"),
            "{message}"
        );
        assert!(device.is_idle());
        device.submit(4).unwrap();
    }
}
