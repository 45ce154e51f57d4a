//! The loop of an analytics thread: rounds, and when to rest between them.
//!
//! Busy it polls. With nothing to do it spins and yields for some microseconds; then it sleeps: briefly while series are on
//! their way through a device, until a batch is due or may be full while series wait for that, and for [`NAP`] while there
//! are none; live it sleeps then until a flow manager rings ([`super::bell`]). So an idle thread costs little, and the first
//! series after a quiet time is seen at most a nap later. The system may add its timer slack to each sleep, by default
//! 50 µs; a thread that somebody waits for asks for less.
//!
//! A replay as fast as possible waits for no single label. There the thread gathers: it rests until a batch has come
//! together, rather than look at every series as it comes.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use analytics::{Counters, Manager, Round};
use crossbeam_utils::Backoff;

use super::bell::Bell;
use super::exchange::ExchangePort;
use crate::control::collector::AnalyticsSnapshot;
use crate::control::snapshot::Publisher;
use crate::recording::SeriesSeat;

/// Rest of a thread that waits for others, once spinning did not help.
pub const REST: Duration = Duration::from_micros(50);

/// Rest where no series is to be decided.
const NAP: Duration = Duration::from_micros(450);

/// The longest sleep: whoever else wants something, such as a look at the counters, waits for so long at most.
const SLEEP: Duration = Duration::from_millis(20);

/// Rest of a thread that gathers.
const GATHER: Duration = Duration::from_micros(500);

/// How much later than asked the system may wake a thread that naps, ns.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(5_000).unwrap();

/// What the threads of a run tell each other, beside rings and label words.
pub struct Run {
    /// The clock of the run: `emitted_ns` and `now_ns` count from here.
    pub started: Instant,
    /// Flow managers that have not emitted their last series yet.
    pub inputs_open: AtomicUsize,
    /// An analytics thread has died, and series will stay without labels.
    pub analytics_died: AtomicBool,
    /// Rung by flow managers that emitted series.
    pub bell: Bell,
}

impl Run {
    /// For a run of so many flow managers that begins now. Nobody rings.
    pub fn new(flow_managers: usize) -> Run {
        Run {
            started: Instant::now(),
            inputs_open: AtomicUsize::new(flow_managers),
            analytics_died: AtomicBool::new(false),
            bell: Bell::new(0),
        }
    }

    /// Nanoseconds since the run began.
    pub fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// Raises the alarm when the thread panics, so that nobody waits for it.
struct Alarm(Arc<Run>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.analytics_died.store(true, Ordering::Release);
        }
    }
}

/// By what others reach an analytics thread between two rounds.
#[derive(Default)]
pub struct Ends {
    /// Brings another model, or other settings.
    pub port: Option<ExchangePort>,
    /// Takes how the manager stands.
    pub publisher: Option<Publisher<AnalyticsSnapshot>>,
    /// Where its rounds are recorded.
    pub seat: Option<SeriesSeat>,
}

/// Rounds until the rings are closed and all is decided.
pub fn work(mut manager: Manager, gathers: bool, run: Arc<Run>, mut ends: Ends) -> Counters {
    let _alarm = Alarm(run.clone());
    if !gathers {
        // Without it naps are a little longer, no more.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
    }
    let seat = run.bell.seat();
    // Raised while it has its seat's flag up: it looks once more, and sleeps then.
    let (mut backoff, mut lies) = (Backoff::new(), false);
    while !manager.is_done() {
        let drains = run.inputs_open.load(Ordering::Acquire) == 0;
        if drains {
            manager.drain();
        }
        if let Some(port) = &ends.port {
            port.exchange(&mut manager, ends.seat.as_mut());
        }
        if let Some(publisher) = &ends.publisher {
            publisher.publish(|snapshot| snapshot.update(&manager));
        }
        let now_ns = run.now_ns();
        let round = match &mut ends.seat {
            Some(seat) => seat.round(&mut manager, now_ns, drains),
            None => manager.round(now_ns),
        };
        let spare = manager.time_until_due(now_ns);
        if round != Round::Idle || manager.counters().undecided() > 0 {
            lies = false;
        }
        let is_recorded = ends.seat.as_ref().is_some_and(SeriesSeat::is_open);
        match round {
            Round::Worked => backoff = Backoff::new(),
            Round::Seen if !gathers && spare.is_zero() => backoff = Backoff::new(),
            _ if gathers => std::thread::sleep(GATHER),
            // Rounds in vain would fill a recording, and keep others from their steps.
            _ if !backoff.is_completed() && !is_recorded => backoff.snooze(),
            _ if manager.counters().undecided() > 0 => std::thread::sleep(spare.max(REST)),
            _ => match seat {
                Some(seat) if lies => seat.sleep(SLEEP),
                Some(seat) => {
                    seat.lie_down();
                    lies = true;
                }
                None => std::thread::sleep(NAP),
            },
        }
    }
    if let Some(publisher) = ends.publisher {
        publisher.finish(|snapshot| snapshot.update(&manager));
    }
    if let Some(seat) = ends.seat {
        seat.finish(&manager);
    }
    manager.counters().clone()
}
