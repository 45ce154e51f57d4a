//! An analytics manager's thread: rounds and exchanges are steps of the recording.

use analytics::{Manager, Refused, Round, Standby};

use super::counts;
use super::event::{Counts, Event, encode_round};
use super::seat::Seat;
use super::settings::{DeviceFacts, Offer, SeriesConfig};

/// The thread's end.
pub struct SeriesSeat(Seat);

impl SeriesSeat {
    pub(super) fn new(seat: Seat) -> SeriesSeat {
        SeriesSeat(seat)
    }

    /// Whether steps are recorded: then a thread that polls leaves the lock to others in between.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// [`Manager::round`], of a manager that drains or does not.
    pub fn round(&mut self, manager: &mut Manager, now_ns: u64, draining: bool) -> Round {
        let number = self.0.number();
        self.0.body.clear();
        let act = |manager: &mut Manager| manager.round(now_ns);
        self.0.step_then(manager, of, act, |body, shared| {
            let mut calls = shared.calls();
            let encoded = (calls.count, calls.encoded.as_slice());
            encode_round(body, number, now_ns, draining, &calls.costs, encoded);
            calls.count = 0;
            calls.encoded.clear();
            calls.costs.clear();
        })
    }

    /// [`Manager::prepare`]; `change` is what the settings were made of.
    ///
    /// # Errors
    /// The manager's.
    pub fn stand_by(
        &mut self,
        manager: &mut Manager,
        mut standby: Standby,
        change: Option<&(analytics::Config, analytics::Config)>,
    ) -> Result<(), Refused> {
        if self.0.is_open() {
            let model = standby.model.as_mut().map(|model| {
                let devices = model.accelerators.iter_mut().map(DeviceFacts::of);
                (devices.collect(), model.generation)
            });
            let forms = |(old, new): &_| (SeriesConfig::of(old), SeriesConfig::of(new));
            let settings = standby.settings.is_some();
            let settings = change.filter(|_| settings).map(forms);
            let offer = Offer { model, settings };
            self.describe(|manager| Event::Offer { manager, offer });
        }
        self.0.step(manager, of, |manager| manager.prepare(standby))
    }

    /// [`Manager::commit`].
    pub fn change_over(&mut self, manager: &mut Manager) {
        self.describe(|manager| Event::ChangeOver { manager });
        self.0.step(manager, of, Manager::commit);
    }

    /// [`Manager::abort`].
    pub fn stand_down(&mut self, manager: &mut Manager) -> Option<Standby> {
        self.describe(|manager| Event::StandDown { manager });
        self.0.step(manager, of, Manager::abort)
    }

    /// The thread comes to its end.
    pub fn finish(mut self, manager: &Manager) {
        self.0.leave(|classes| of(manager, classes));
    }

    fn describe(&mut self, event: impl FnOnce(u32) -> Event) {
        self.0.body.clear();
        event(self.0.number()).encode(&mut self.0.body);
    }
}

fn of(manager: &Manager, _: &[String]) -> Counts {
    counts::of_series(manager.counters())
}
