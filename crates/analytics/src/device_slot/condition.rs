//! Whether a device is fit to be given batches: up, down, probing or hung, and how long it is left
//! alone.

use crate::DeviceState;
use std::time::Duration;

/// How long a device is left alone after its first failure.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest time that it is left alone.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A device's state, as in the diagram in [`device_slot`](super).
#[derive(Debug)]
pub(crate) struct Condition {
    pub state: DeviceState,
    /// Since when it is up, or not up.
    pub since_ns: u64,
    /// When it may be probed, while it is not up.
    until_ns: u64,
    /// How long it is left alone after the next failure.
    backoff: Duration,
}

impl Condition {
    pub fn up(since_ns: u64) -> Self {
        Self { state: DeviceState::Up, since_ns, until_ns: 0, backoff: BACKOFF_MIN }
    }

    /// A batch or a probe failed.
    pub fn fail(&mut self, now_ns: u64) {
        self.leave_alone(DeviceState::Down, now_ns);
    }

    /// A batch or a probe is overdue.
    pub fn hang(&mut self, now_ns: u64) {
        self.leave_alone(DeviceState::Hung, now_ns);
    }

    fn leave_alone(&mut self, state: DeviceState, now_ns: u64) {
        if self.state.is_up() {
            self.since_ns = now_ns;
        }
        self.state = state;
        self.until_ns = now_ns.saturating_add(self.backoff.as_nanos() as u64);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }

    /// A hung device has answered: it can be probed when its time has come.
    pub fn wake(&mut self) {
        self.state = DeviceState::Down;
    }

    pub fn is_probe_due(&self, now_ns: u64) -> bool {
        self.state == DeviceState::Down && now_ns >= self.until_ns
    }

    pub fn probing(&mut self) {
        self.state = DeviceState::Probing;
    }

    /// A probe went well.
    pub fn recover(&mut self, now_ns: u64) {
        self.state = DeviceState::Up;
        self.since_ns = now_ns;
    }

    /// A batch of series went well.
    pub fn succeed(&mut self) {
        self.backoff = BACKOFF_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// How long it is left alone after a failure at `now_ns`.
    fn fail(condition: &mut Condition, now_ns: u64) -> u64 {
        condition.fail(now_ns);
        let wait_ms = (0..20_000).find(|ms| condition.is_probe_due(now_ns + ms * MS));
        wait_ms.unwrap()
    }

    #[test]
    fn the_back_off_doubles_up_to_its_bound() {
        let mut condition = Condition::up(0);
        let waits = [(); 12].map(|()| fail(&mut condition, MS));
        let doubling = [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120];
        assert_eq!(waits[..10], doubling);
        assert_eq!(waits[10..], [10_000, 10_000]);
    }

    #[test]
    fn it_begins_anew_with_a_good_batch_not_with_a_good_probe() {
        let mut condition = Condition::up(0);
        assert_eq!(fail(&mut condition, 0), 10);
        condition.probing();
        condition.recover(10 * MS);
        assert_eq!(fail(&mut condition, 11 * MS), 20);
        condition.probing();
        condition.recover(40 * MS);
        condition.succeed();
        assert_eq!(fail(&mut condition, 41 * MS), 10);
    }

    #[test]
    fn a_hung_device_is_not_probed_before_it_has_answered() {
        let mut condition = Condition::up(0);
        condition.hang(5 * MS);
        assert!(!condition.is_probe_due(100 * MS));
        condition.wake();
        assert!(!condition.is_probe_due(14 * MS));
        assert!(condition.is_probe_due(15 * MS));
        assert_eq!(condition.since_ns, 5 * MS);
    }

    #[test]
    fn since_tells_when_it_went_down_whatever_came_after() {
        let mut condition = Condition::up(3);
        condition.fail(10);
        condition.probing();
        condition.fail(20);
        assert_eq!((condition.state, condition.since_ns), (DeviceState::Down, 10));
        condition.recover(30);
        assert_eq!((condition.state, condition.since_ns), (DeviceState::Up, 30));
    }
}
