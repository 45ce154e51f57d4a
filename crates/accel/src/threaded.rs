//! A device on a thread of its own, for those that do their work inside [`Device::submit`] while somebody else drives them.
//!
//! The inner device itself moves: submit hands it to the thread, with the input that was written into its memory, and the
//! poll that finds the batch done takes it back. So nothing is shared and no input is copied; of the results, 8 bytes a
//! row, a copy travels along. Both hand-overs are channels of capacity 1 that are never full, because there is one device:
//! submit and poll neither wait nor allocate. Waking the thread, if it sleeps, costs submit one system call.
//!
//! Seen on two cores of a virtual AMD EPYC, from submit to the poll that has the results, without the batch itself: 1 µs in
//! a row of batches, 8 µs when the thread had gone to sleep; submit alone 0.1 and 2.2 µs.
//!
//! A device that hangs keeps the batch in flight until the owner gives up on it. Dropping the front then does not wait: the
//! thread is left behind and ends, with the device, if the device ever comes back. A device that panics is down for good;
//! its memory stays, so that the owner may go on calling.

use std::any::Any;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};

use crate::device::{Classification, Device, DeviceError, Sizes};

/// What a sleep lasts longer than asked for: the slack that Linux gives a thread's timers, 50 µs unless set otherwise.
const SLEEP_SLACK: Duration = Duration::from_micros(50);

/// Between two polls of a device that cannot say when it will be ready; with the slack some 70 µs.
const POLL_PAUSE: Duration = Duration::from_micros(20);

/// The longest sleep, so that a thread left behind ends soon after its front.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// What travels to the thread and back.
struct Batch {
    device: Box<dyn Device>,
    rows: usize,
    results: Vec<Classification>,
    outcome: Result<(), DeviceError>,
}

/// A device whose batches run on a thread of its own.
pub struct ThreadedDevice {
    requested: String,
    effective: String,
    sizes: Sizes,
    /// The inner device between two batches; none while one is in flight.
    home: Option<Batch>,
    /// The device panicked, or its thread is no more.
    gone: bool,
    to_thread: Sender<Batch>,
    from_thread: Receiver<Batch>,
}

impl ThreadedDevice {
    /// Starts the thread. It calls `start` once, with the device's name, before anything else: to pin itself, say.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(
        device: Box<dyn Device>,
        start: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let requested = device.requested().to_owned();
        let (to_thread, batches) = bounded(1);
        let (done, from_thread) = bounded(1);
        let name = requested.clone();
        thread::Builder::new()
            .name(format!("dev-{requested}"))
            .spawn(move || {
                start(&name);
                serve(&batches, &done);
            })?;
        Ok(Self {
            effective: device.effective().to_owned(),
            sizes: device.sizes().clone(),
            home: Some(Batch {
                rows: 0,
                results: Vec::with_capacity(device.sizes().largest()),
                outcome: Ok(()),
                device,
            }),
            gone: false,
            requested,
            to_thread,
            from_thread,
        })
    }

    fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            device: self.requested.clone(),
            cause: "it panicked or its thread ended".to_owned(),
        }
    }
}

impl Device for ThreadedDevice {
    fn requested(&self) -> &str {
        &self.requested
    }

    fn effective(&self) -> &str {
        &self.effective
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Also false for good, should the thread end with a batch in its hands.
    fn is_idle(&self) -> bool {
        self.home.is_some()
    }

    /// The inner device's own memory.
    ///
    /// # Panics
    /// When the device is not idle: the memory is with the thread then. And when `rows` is above the largest size. Both are
    /// faults of the caller.
    fn input(&mut self, rows: usize) -> &mut [f32] {
        match &mut self.home {
            Some(batch) => batch.device.input(rows),
            None => panic!(
                "device {}: no input while a batch is in flight",
                self.requested
            ),
        }
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        if self.gone {
            return Err(self.gone());
        }
        let Some(mut batch) = self.home.take() else {
            let device = self.requested.clone();
            return Err(DeviceError::Busy { device });
        };
        if !self.sizes.takes(rows) {
            self.home = Some(batch);
            return Err(DeviceError::Rows {
                device: self.requested.clone(),
                rows,
                sizes: self.sizes.clone(),
            });
        }
        batch.rows = rows;
        match self.to_thread.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(batch) | TrySendError::Full(batch)) => {
                self.home = Some(batch);
                self.gone = true;
                Err(self.gone())
            }
        }
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if self.home.is_some() {
            return None;
        }
        match self.from_thread.try_recv() {
            Ok(batch) => {
                let batch = self.home.insert(batch);
                let outcome = mem::replace(&mut batch.outcome, Ok(()));
                self.gone = matches!(outcome, Err(DeviceError::Gone { .. }));
                Some(outcome.map(|()| batch.results.as_slice()))
            }
            // Said once; from then on there is nothing in flight to tell of.
            Err(TryRecvError::Disconnected) if !self.gone => {
                self.gone = true;
                Some(Err(self.gone()))
            }
            Err(TryRecvError::Disconnected | TryRecvError::Empty) => None,
        }
    }

    fn probabilities(&self) -> &[f32] {
        self.home
            .as_ref()
            .map_or(&[], |batch| batch.device.probabilities())
    }
}

/// The thread: runs what comes until the front is dropped.
fn serve(batches: &Receiver<Batch>, done: &Sender<Batch>) {
    while let Ok(mut batch) = batches.recv() {
        // Whatever state a panic leaves in the device, it is not run again: the front refuses.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut batch, batches)));
        batch.outcome = outcome.unwrap_or_else(|panic| {
            Err(DeviceError::Gone {
                device: batch.device.requested().to_owned(),
                cause: format!("it panicked: {}", message(&*panic)),
            })
        });
        if done.send(batch).is_err() {
            return;
        }
    }
}

/// One batch from submit to results. Given up, should the front be dropped meanwhile.
fn run(batch: &mut Batch, batches: &Receiver<Batch>) -> Result<(), DeviceError> {
    batch.device.submit(batch.rows)?;
    loop {
        if let Some(outcome) = batch.device.poll() {
            batch.results.clear();
            batch.results.extend_from_slice(outcome?);
            return Ok(());
        }
        if let Err(TryRecvError::Disconnected) = batches.try_recv() {
            return Ok(());
        }
        pause(batch.device.ready_at());
    }
}

/// Until about the next time that a poll makes sense. The last 50 µs are polled through, since no sleep is that exact.
fn pause(ready_at: Option<Instant>) {
    let Some(ready_at) = ready_at else {
        return thread::sleep(POLL_PAUSE);
    };
    let left = ready_at.saturating_duration_since(Instant::now());
    match left.checked_sub(SLEEP_SLACK) {
        Some(sleep) => thread::sleep(sleep.min(SLEEP_MAX)),
        None => thread::yield_now(),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
