//! Whether the prefix cache is worth its cost, and when it turns itself off.
//!
//! A look-up costs time on the manager's thread for every series, as entering a result does for
//! every miss; a hit saves the device the time of one series, unless it is audited. Both are
//! measured, look-up by look-up and batch by batch, and compared over *windows* of [`WINDOW`]
//! look-ups:
//!
//! ```text
//!           a window costs more than it saves            enough series passed by      
//!     On ─────────────────────────────────────► Off ─────────────────────────────────► Trial
//!      ▲                                         ▲                                    │  │
//!      │                                         └─────── not worth a quarter more ───┘  │
//!      └──────────────────── worth a quarter more than it costs ─────────────────────────┘
//! ```
//!
//! The hysteresis is twofold, so that a cache on the edge does not flutter: to come back, it must
//! save [`MARGIN`] times its cost; and each trial that fails doubles the time to the next one, from
//! [`REST_MIN`] windows to [`REST_MAX`], so that trials cost little in the long run. A trial, like
//! the start, begins with windows that are not judged, because a cache must fill before it can hit.
//!
//! Nothing is judged before the first batch has shown what a series costs on the device. If the
//! clock for costs stands still, the cache costs nothing and never turns itself off, for runs that
//! must not depend on time.

/// Look-ups that are judged together. Some milliseconds under load.
const WINDOW: u64 = 4096;
/// A cache must save this many times its cost to come back.
const MARGIN: f64 = 1.25;
/// How many windows pass by before the first trial.
const REST_MIN: u64 = 16;
/// The most windows that pass by before a trial.
const REST_MAX: u64 = 256;
/// The weight of one batch in the device's mean time.
const DEVICE_WEIGHT: f64 = 1.0 / 16.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On,
    /// Series that still pass by before the trial.
    Off(u64),
    Trial,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Off,
    On,
}

/// The account of one cache.
pub(crate) struct CacheGovernor {
    state: State,
    /// Look-ups still to come that are not judged.
    fills: u64,
    lookups: u64,
    /// Hits that spared the device a series.
    spared: u64,
    cost_ns: u64,
    /// What one series costs on the device.
    device_ns: Option<f64>,
    /// How many windows the next rest lasts.
    rest: u64,
}

impl CacheGovernor {
    /// For an empty cache with room for `entries`.
    pub fn new(entries: usize) -> Self {
        Self {
            state: State::On,
            fills: (entries as u64).clamp(WINDOW, REST_MIN * WINDOW),
            lookups: 0,
            spared: 0,
            cost_ns: 0,
            device_ns: None,
            rest: REST_MIN,
        }
    }

    /// Whether series are looked up and results entered now.
    pub fn is_in_use(&self) -> bool {
        !matches!(self.state, State::Off(_))
    }

    /// A batch of `series` took the device `device_ns`.
    pub fn inferred(&mut self, series: usize, device_ns: u64) {
        let each_ns = device_ns as f64 / series.max(1) as f64;
        let mean_ns = self.device_ns.get_or_insert(each_ns);
        *mean_ns += DEVICE_WEIGHT * (each_ns - *mean_ns);
    }

    /// Results were entered.
    pub fn entered(&mut self, cost_ns: u64) {
        self.cost_ns += cost_ns;
    }

    /// Series passed by without a look-up.
    pub fn passed_by(&mut self, series: u64) {
        if let State::Off(left) = &mut self.state {
            *left = left.saturating_sub(series);
            if *left == 0 {
                self.state = State::Trial;
                self.fills = WINDOW;
                self.begin_window();
            }
        }
    }

    /// Series were looked up, and `spared` of them need no device.
    pub fn looked_up(&mut self, series: u64, spared: u64, cost_ns: u64) -> Option<Transition> {
        self.lookups += series;
        self.spared += spared;
        self.cost_ns += cost_ns;
        if self.fills > 0 {
            self.fills = self.fills.saturating_sub(series);
            self.begin_window();
            return None;
        }
        if self.lookups < WINDOW {
            return None;
        }
        let device_ns = self.device_ns?;
        let (saved, cost) = (self.spared as f64 * device_ns, self.cost_ns as f64);
        self.begin_window();
        match self.state {
            State::On if saved < cost => {
                self.step_aside();
                Some(Transition::Off)
            }
            State::Trial if saved >= MARGIN * cost => {
                self.state = State::On;
                self.rest = REST_MIN;
                Some(Transition::On)
            }
            State::Trial => {
                self.rest = (self.rest * 2).min(REST_MAX);
                self.step_aside();
                None
            }
            State::On | State::Off(_) => None,
        }
    }

    fn step_aside(&mut self) {
        self.state = State::Off(self.rest * WINDOW);
    }

    fn begin_window(&mut self) {
        (self.lookups, self.spared, self.cost_ns) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One look-up costs this, and a series on the device ten times as much.
    const COST_NS: u64 = 100;
    const DEVICE_NS: u64 = 10 * COST_NS;

    fn governor() -> CacheGovernor {
        let mut governor = CacheGovernor::new(WINDOW as usize);
        governor.inferred(8, 8 * DEVICE_NS);
        governor
    }

    /// A window in which `per_mille` of a thousand look-ups spare an inference.
    fn window(governor: &mut CacheGovernor, per_mille: u64) -> Option<Transition> {
        governor.looked_up(WINDOW, WINDOW * per_mille / 1000, WINDOW * COST_NS)
    }

    /// Lets series pass by until the next trial, and tells how many windows that took.
    fn rest(governor: &mut CacheGovernor) -> u64 {
        let windows = (1..).find(|_| {
            governor.passed_by(WINDOW);
            governor.is_in_use()
        });
        windows.unwrap()
    }

    #[test]
    fn it_steps_aside_when_it_costs_more_than_it_saves() {
        let mut governor = governor();
        assert_eq!(window(&mut governor, 0), None, "it fills first");
        assert_eq!(window(&mut governor, 110), None);
        assert_eq!(window(&mut governor, 90), Some(Transition::Off));
        assert!(!governor.is_in_use());
    }

    #[test]
    fn entering_counts_as_a_cost() {
        let mut governor = governor();
        window(&mut governor, 0);
        governor.entered(WINDOW * COST_NS / 5);
        assert_eq!(window(&mut governor, 110), Some(Transition::Off));
    }

    #[test]
    fn it_comes_back_only_with_a_margin() {
        let mut governor = governor();
        window(&mut governor, 0);
        window(&mut governor, 0);
        assert_eq!(rest(&mut governor), REST_MIN);
        assert_eq!(window(&mut governor, 900), None, "it fills first");
        assert_eq!(window(&mut governor, 120), None);
        assert!(!governor.is_in_use(), "120 would do to stay, not to come back");
        assert_eq!(rest(&mut governor), 2 * REST_MIN);
        window(&mut governor, 0);
        assert_eq!(window(&mut governor, 130), Some(Transition::On));
        assert_eq!(window(&mut governor, 110), None);
    }

    #[test]
    fn trials_that_fail_become_rare() {
        let mut governor = governor();
        window(&mut governor, 0);
        window(&mut governor, 0);
        let mut rests = Vec::new();
        for _ in 0..8 {
            rests.push(rest(&mut governor));
            window(&mut governor, 0);
            window(&mut governor, 0);
        }
        assert_eq!(rests[..5], [16, 32, 64, 128, 256]);
        assert_eq!(rests[5..], [REST_MAX; 3]);
    }

    #[test]
    fn without_a_measure_of_the_device_or_the_clock_it_stays() {
        let mut unmeasured = CacheGovernor::new(1);
        let mut free = governor();
        for _ in 0..10 {
            assert_eq!(window(&mut unmeasured, 0), None);
            assert_eq!(free.looked_up(WINDOW, 0, 0), None);
        }
        assert!(unmeasured.is_in_use() && free.is_in_use());
    }
}
