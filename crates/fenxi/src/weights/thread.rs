//! The thread: sleeps until a program wakes it, connects or goes, and looks at all tables then.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::balance::Balance;

/// Between two looks while a program is connected: by its heartbeat and deadline, static weights
/// apply within 1 s ([`observe::actions::SILENCE_MAX_NS`]).
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Between two checks of what others have changed in the maps.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Least pause after a wake-up.
const PAUSE_MIN: Duration = Duration::from_micros(250);

/// Pause after a wake-up in times of the look before, so that programs that wake the thread without
/// end take a fifth of a processor.
const PAUSE_TIMES: u32 = 4;

pub struct Server {
    balances: Vec<Balance>,
    /// Closed at the other end when the run ends.
    end: PipeReader,
}

impl Server {
    /// With what ends the thread when it is dropped.
    pub fn new(balances: Vec<Balance>) -> io::Result<(Server, PipeWriter)> {
        let (end, writer) = io::pipe()?;
        Ok((Server { balances, end }, writer))
    }

    pub fn run(mut self) {
        let mut check_at = Instant::now() + CHECK_EVERY;
        loop {
            let [is_over, is_woken] = self.wait(check_at);
            if is_over {
                return self.balances.into_iter().for_each(Balance::end);
            }
            let begun = Instant::now();
            let now = clock_gettime(ClockId::Monotonic);
            let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            self.balances.iter_mut().for_each(|balance| balance.look(now_ns));
            let took = begun.elapsed();
            if Instant::now() >= check_at {
                self.balances.iter_mut().for_each(Balance::check);
                check_at = Instant::now() + CHECK_EVERY;
            }
            if is_woken {
                std::thread::sleep(PAUSE_MIN.max(took * PAUSE_TIMES));
            }
        }
    }

    /// Sleeps until something happens, the next look or the next check. Whether the run is over,
    /// and whether a socket is ready.
    fn wait(&self, check_at: Instant) -> [bool; 2] {
        let sockets = self.balances.iter().flat_map(Balance::descriptors);
        let descriptors = [self.end.as_fd()].into_iter().chain(sockets);
        let polled = descriptors.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = polled.collect();
        let has_programs = self.balances.iter().any(Balance::has_program);
        let until_check = check_at.saturating_duration_since(Instant::now());
        let limit = if has_programs { LOOK_EVERY.min(until_check) } else { until_check };
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // A signal that interrupts it is no reason to stop.
        let ready = poll(&mut polled, Some(&limit)).unwrap_or(0);
        [!polled[0].revents().is_empty(), ready > 0]
    }
}
