//! A device whose answers are recorded.

use std::sync::Arc;
use std::time::Instant;

use accel::{Classification, Device, DeviceError, Sizes};

use super::call::{encode_failed, encode_results, encode_submitted, hash_of};
use super::tape::{Recorder, Shared};

/// A wrapper around the device that does the work.
pub struct RecordedDevice {
    inner: Box<dyn Device>,
    shared: Arc<Shared>,
}

impl Recorder {
    /// Wraps a device so that its answers are recorded.
    pub fn device(&self, inner: Box<dyn Device>) -> Box<dyn Device> {
        let shared = self.0.clone();
        Box::new(RecordedDevice { inner, shared })
    }
}

/// Adds a call to those of the round.
fn note(shared: &Shared, encode: impl FnOnce(&mut Vec<u8>)) {
    if shared.is_on() {
        let mut calls = shared.calls();
        calls.count += 1;
        encode(&mut calls.encoded);
    }
}

impl Device for RecordedDevice {
    fn requested(&self) -> &str {
        self.inner.requested()
    }

    fn effective(&self) -> &str {
        self.inner.effective()
    }

    fn sizes(&self) -> &Sizes {
        self.inner.sizes()
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        self.inner.input(rows)
    }

    fn context(&mut self, rows: usize) -> &mut [f32] {
        self.inner.context(rows)
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        // Where it will be refused there may be no input to look at.
        let has_input = self.shared.is_on() && self.is_idle() && self.sizes().takes(rows);
        let input = match has_input {
            true => {
                hash_of(self.inner.input(rows)) ^ hash_of(self.inner.context(rows)).rotate_left(1)
            }
            false => 0,
        };
        let submitted = self.inner.submit(rows);
        let refused = submitted.as_ref().err();
        note(&self.shared, |out| {
            encode_submitted(out, rows, input, refused);
        });
        submitted
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let answer = self.inner.poll();
        note(&self.shared, |out| match &answer {
            None => out.push(0),
            Some(Ok(results)) => encode_results(out, results),
            Some(Err(error)) => encode_failed(out, error),
        });
        answer
    }

    fn ready_at(&self) -> Option<Instant> {
        self.inner.ready_at()
    }

    fn probabilities(&self) -> &[f32] {
        self.inner.probabilities()
    }
}
