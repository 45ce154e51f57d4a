//! Threaded devices whose inner device answers, panics or hangs.

use std::sync::mpsc;

use super::*;
use crate::device::Shape;
use crate::profile::Profile;
use crate::simulated::SimulatedDevice;

const SHAPE: Shape = Shape { channels: 1, k: 3, context: 0, classes: 7 };

fn simulated(t0_us: f64) -> SimulatedDevice {
    SimulatedDevice::new(Profile { t0_us, t1_us: 0.0 }, Sizes::Fixed(vec![2, 4]), SHAPE)
}

fn threaded(device: impl Device + 'static) -> ThreadedDevice {
    ThreadedDevice::new(Box::new(device), |_| {}).unwrap()
}

fn finished(device: &mut ThreadedDevice) -> Result<Vec<u16>, DeviceError> {
    loop {
        if let Some(outcome) = device.poll() {
            return outcome.map(|results| results.iter().map(|result| result.class).collect());
        }
        thread::yield_now();
    }
}

/// Panics in its second run if `panics`, else hangs in it. Sends a message when it is dropped.
struct Bad {
    inner: SimulatedDevice,
    panics: bool,
    runs: u32,
    dropped: mpsc::Sender<()>,
}

impl Bad {
    fn new(panics: bool) -> (Bad, mpsc::Receiver<()>) {
        let (dropped, received) = mpsc::channel();
        let (inner, runs) = (simulated(0.0), 0);
        (Bad { inner, panics, runs, dropped }, received)
    }
}

impl Drop for Bad {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

impl Device for Bad {
    fn requested(&self) -> &str {
        "bad"
    }
    fn effective(&self) -> &str {
        "bad"
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
    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        self.runs += 1;
        assert!(self.runs == 1 || !self.panics, "worn out");
        self.inner.submit(rows)
    }
    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        if self.runs > 1 { None } else { self.inner.poll() }
    }
}

#[test]
fn it_answers_as_the_inner_device_does_on_a_thread_of_its_own() {
    let (sent, received) = mpsc::channel();
    let start = move |name: &str| {
        sent.send((name.to_owned(), thread::current().id())).unwrap();
    };
    let mut device = ThreadedDevice::new(Box::new(simulated(100.0)), start).unwrap();
    let (name, id) = received.recv().unwrap();
    assert_eq!((name.as_str(), device.requested()), ("simulated", "simulated"));
    assert_ne!(id, thread::current().id());
    for round in 0..3_u16 {
        assert!(device.is_idle() && device.poll().is_none());
        let first = f32::from(round);
        device.input(2).copy_from_slice(&[first, 0.0, 0.0, 0.0, 2.0, 0.0]);
        device.submit(2).unwrap();
        assert_eq!(finished(&mut device).unwrap(), [round, 4]);
    }
}

#[test]
fn busy_and_wrong_sizes_are_refused_before_the_thread() {
    let mut device = threaded(simulated(3.6e9)); // an hour
    assert!(matches!(device.submit(3), Err(DeviceError::Rows { rows: 3, .. })));
    assert!(device.is_idle());
    device.submit(2).unwrap();
    assert!(!device.is_idle() && device.poll().is_none());
    assert!(matches!(device.submit(2), Err(DeviceError::Busy { .. })));
    // Dropped here with the batch in flight: a join would take the hour.
}

#[test]
#[should_panic(expected = "in flight")]
fn there_is_no_input_while_a_batch_is_in_flight() {
    let mut device = threaded(simulated(3.6e9));
    device.submit(2).unwrap();
    device.input(2);
}

#[test]
fn a_device_that_panics_is_gone_for_good_and_its_memory_stays() {
    let mut device = threaded(Bad::new(true).0);
    device.submit(2).unwrap();
    finished(&mut device).unwrap();
    device.submit(2).unwrap();
    let error = finished(&mut device).unwrap_err();
    assert!(
        matches!(
            &error,
            DeviceError::Gone { device, cause }
                if device == "bad" && cause.contains("worn out")
        ),
        "{error}"
    );
    assert_eq!(device.input(2).len(), 6);
    assert!(matches!(device.submit(2), Err(DeviceError::Gone { .. })));
    assert!(device.is_idle() && device.poll().is_none());
}

#[test]
fn a_thread_that_ends_is_told() {
    let mut device = ThreadedDevice::new(Box::new(simulated(0.0)), |_| panic!("no core")).unwrap();
    // The thread may end before or after it is handed the batch.
    if device.submit(2).is_ok() {
        let error = finished(&mut device).unwrap_err();
        assert!(matches!(error, DeviceError::Gone { .. }), "{error}");
    }
    assert!(matches!(device.submit(2), Err(DeviceError::Gone { .. })));
    assert!(device.poll().is_none());
}

#[test]
fn a_dropped_front_takes_its_device_along() {
    let (device, dropped) = Bad::new(false);
    let mut device = threaded(device);
    device.submit(2).unwrap();
    finished(&mut device).unwrap();
    device.submit(2).unwrap();
    drop(device);
    dropped.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn the_context_travels_with_the_input() {
    let profile = Profile { t0_us: 0.0, t1_us: 0.0 };
    let shape = Shape { context: 1, ..SHAPE };
    let inner = SimulatedDevice::new(profile, Sizes::Any { cap: 2 }, shape);
    let mut device = threaded(inner);
    device.input(2).fill(0.0);
    device.context(2).copy_from_slice(&[1.0, 2.0]);
    device.submit(2).unwrap();
    assert_eq!(finished(&mut device).unwrap(), [4, 1]);
    assert_eq!(threaded(simulated(0.0)).context(2), [0.0_f32; 0]);
}
