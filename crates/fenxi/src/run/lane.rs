//! A flow manager's thread where traffic is live: from its rings through the packet's walk, out again where it forwards,
//! and on to marks and records.
//!
//! One loop: a burst from each ring, walked and sent on; then what is settled. It never waits for anything but packets, and
//! for [`REST_FOR_FRAMES`] at most, so that labels, time and those who watch get their turn.

mod settling;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowmgr::{Fate, Packet};
use packetio::af_packet::rest;
use packetio::{Port, Transmit};
use tokio::sync::mpsc::UnboundedSender;

use super::clock::{Clock, Reading, boot_us};
use super::ports::{LanePorts, News, Receiver};
use super::settings::SettingsPort;
use crate::control::sums::PortSums;
use crate::exit::Failure;
use crate::mark;
use crate::pipeline::worker::Run;
use crate::recording::Walker;
use crate::records::RecordSender;
use crate::replay::LaneEnd;

/// Rounds in vain before it rests until there are frames.
const ROUNDS_BEFORE_REST: u32 = 1;
/// The longest rest while labels are on their way that are to become marks: nothing else wakes it for them.
const REST_FOR_MARKS: Duration = Duration::from_micros(500);
/// The longest rest else.
const REST_FOR_FRAMES: Duration = Duration::from_millis(20);
/// By so much the clock of an idle flow manager is behind flow time: packets that are on their way through the kernel
/// were stamped earlier, and must not find that time has passed them by.
const LAG_US: i64 = 100_000;
/// Between two looks at whether packets come merged and whether the wall clock was set, µs.
const LOOK_EVERY_US: i64 = 1_000_000;
/// How long the end of a run goes on with frames that were received before it; under overload the rings are never empty.
const LAST_FRAMES_WITHIN: Duration = Duration::from_millis(500);

/// What the threads of a live run tell each other, beside what those of any run do.
pub struct Shared {
    /// What concerns the analytics threads.
    pub run: Arc<Run>,
    /// The most packets that a lane takes at a time.
    pub burst: usize,
    /// Frames are in a lane's hands so long after they were received, at the latest.
    pub block_timeout: Duration,
    /// What people know of packets that come merged.
    pub merged: Merged,
    /// A lane whose interfaces are all gone for so long ends the run.
    pub give_up_after: Duration,
    /// Raised by whoever wants the run to end.
    pub stop: AtomicBool,
    /// Rounds of each lane, which say that it moves.
    pub rounds: Vec<AtomicU64>,
    /// What people should know of interfaces, for the log: lanes do not write it themselves.
    pub news: UnboundedSender<News>,
}

/// Whether people know of packets that come merged.
pub struct Merged {
    /// By interface.
    pub is_known: Vec<AtomicBool>,
    /// That some of them are not sent on.
    pub is_known_unsplit: AtomicBool,
}

/// The parts of the thread.
pub struct Lane {
    /// Which one it is, from 0.
    pub number: usize,
    /// Its rings, by interface.
    pub receivers: Vec<Receiver>,
    /// Its ways out by interface, where it forwards between two; else none.
    pub senders: Vec<Transmit>,
    /// The walk.
    pub manager: Walker,
    /// Where labels become marks.
    pub marks: Option<Arc<mark::Writer>>,
    /// Where records go.
    pub records: RecordSender,
    /// By which it is watched.
    pub end: LaneEnd,
    /// By which it gets other settings.
    pub settings: SettingsPort,
    /// What it shares.
    pub shared: Arc<Shared>,
    work: Work,
    sums: Sums,
    clock: Clock,
    /// Flow time at the beginning of the round.
    now_us: i64,
    /// When it last looked, by that time.
    looked_us: i64,
    /// Since when no interface is there.
    alone_since: Option<Instant>,
}

/// Room for a burst.
struct Work {
    burst: usize,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
}

/// What it received and sent.
struct Sums {
    /// By interface.
    ports: Vec<PortSums>,
    /// Packets received from all of them.
    received: u64,
}

/// What the thread leaves behind.
pub struct LaneOutcome {
    /// Which one it is, from 0.
    pub number: usize,
    /// Of the walk.
    pub counters: flowmgr::Counters,
    /// By interface.
    pub ports: Vec<PortSums>,
    /// Records that found no room.
    pub records_dropped: u64,
    /// How often the wall clock was set.
    pub clock_steps: u64,
    /// Why it ended before its time.
    pub failure: Option<Failure>,
}

impl Lane {
    /// Puts it together.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the thread")]
    pub fn new(
        number: usize,
        ports: LanePorts,
        manager: Walker,
        marks: Option<Arc<mark::Writer>>,
        records: RecordSender,
        end: LaneEnd,
        settings: SettingsPort,
        shared: Arc<Shared>,
    ) -> Lane {
        let burst = shared.burst;
        let sums = Sums {
            ports: vec![PortSums::default(); ports.receivers.len()],
            received: 0,
        };
        let now = Reading::take();
        let clock = Clock::new(now);
        let now_us = clock.flow_time(now.boot_us);
        Lane {
            number,
            receivers: ports.receivers,
            senders: ports.senders,
            manager,
            marks,
            records,
            end,
            settings,
            shared,
            work: Work {
                burst,
                packets: Vec::with_capacity(burst),
                fates: Vec::with_capacity(burst),
            },
            sums,
            clock,
            now_us,
            looked_us: now_us,
            alone_since: None,
        }
    }

    /// Runs until told to stop, or until no interface is left; then ends all flows and settles what is left.
    pub fn run(mut self) -> LaneOutcome {
        let walked = self.walk_all();
        if walked.is_err() {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        self.shared.run.inputs_open.fetch_sub(1, Ordering::Release);
        self.finish(walked)
    }

    fn walk_all(&mut self) -> Result<(), Failure> {
        let mut idle = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            idle = if self.round() { 0 } else { idle + 1 };
            if idle > 0 {
                self.manager.pass(self.now_us - LAG_US);
                self.check_interfaces()?;
            }
            if idle > ROUNDS_BEFORE_REST {
                self.rest();
            }
            if self.now_us - self.looked_us >= LOOK_EVERY_US {
                self.looked_us = self.now_us;
                self.look_for_merged();
                self.look_at_clock();
            }
            self.settle();
            self.settings.take(&mut self.manager);
        }
        self.walk_last();
        Ok(())
    }

    /// A burst from each ring; whether there was any.
    fn round(&mut self) -> bool {
        let before = self.sums.received;
        self.now_us = self.clock.flow_time(boot_us());
        for i in 0..self.receivers.len() {
            self.walk(i);
        }
        self.shared.rounds[self.number].fetch_add(1, Ordering::Relaxed);
        self.sums.received != before
    }

    /// The frames that were received before the run was told to end.
    fn walk_last(&mut self) {
        let told = Instant::now();
        let handed_over = self.shared.block_timeout;
        while told.elapsed() < handed_over + LAST_FRAMES_WITHIN {
            if !self.round() {
                if told.elapsed() >= handed_over {
                    break;
                }
                self.rest();
            }
            self.settle();
        }
    }

    /// Until there are frames, or something else may be due.
    fn rest(&self) {
        let most = match self.marks.is_some() && self.manager.labels_awaited() > 0 {
            true => REST_FOR_MARKS,
            false => REST_FOR_FRAMES,
        };
        rest(self.receivers.iter().map(|it| &it.ring), most);
    }

    /// A burst from one ring.
    fn walk(&mut self, i: usize) {
        let Work {
            burst,
            packets,
            fates,
        } = &mut self.work;
        let was_lost = self.receivers[i].is_lost();
        if !self.receivers[i].is_there() {
            return;
        }
        if was_lost && let Some(sender) = self.senders.get_mut(i) {
            // Where it fails, it drops and counts, and says so.
            let _ = sender.reopen();
        }
        let mut received = match self.receivers[i].ring.receive(*burst) {
            Ok(Some(burst)) if !burst.is_empty() => burst,
            Ok(_) => {
                self.receivers[i].is_empty = true;
                return self.tell(i, None);
            }
            Err(error) => {
                let news = self.receivers[i].failed(error);
                return self.tell(i, news);
            }
        };
        let (data, frames) = received.parts();
        let now_us = self.now_us;
        if !frames.iter().all(|it| self.clock.fits(it.time_us, now_us)) {
            let set = self.clock.look(Reading::take());
            tell_of_clock(self.number, &self.shared, set);
        }
        packets.clear();
        packets.extend(frames.iter().map(|frame| Packet {
            at: frame.at,
            captured: frame.captured,
            link: frame.link,
            time_us: self.clock.flow_time_of(frame.time_us, now_us),
            rss: frame.rss,
        }));
        self.sums.received += frames.len() as u64;
        let port = &mut self.sums.ports[i];
        port.received += frames.len() as u64;
        port.bytes += frames
            .iter()
            .map(|frame| u64::from(frame.wire))
            .sum::<u64>();
        let now_ns = self.shared.run.now_ns();
        let emitted = self.manager.counters().series_emitted();
        self.manager.burst(data, packets, now_ns, fates);
        // Of two interfaces the other one; of none none.
        let other = self.senders.len().checked_sub(i + 1);
        if let Some(sender) = other.and_then(|other| self.senders.get_mut(other))
            && let Err(error) = sender.send(&received)
            // Of an interface that is down or gone, its receiver tells.
            && !error.kind.is_recoverable()
            && self.number == 0
        {
            let _ = self
                .shared
                .news
                .send(News::Trouble(format!("sending: {error}")));
        }
        // After the burst is on its way: this may be a system call, and the thread that it wakes may get this CPU.
        if self.manager.counters().series_emitted() != emitted {
            self.shared.run.bell.ring();
        }
    }

    /// Tells people, once for all lanes.
    fn tell(&mut self, i: usize, news: Option<News>) {
        let news = news.or_else(|| self.receivers[i].news());
        if let Some(news) = news.filter(|_| self.number == 0) {
            // Nobody listens at the very end.
            let _ = self.shared.news.send(news);
        }
    }

    /// Whether the wall clock was set, where no packet says so.
    fn look_at_clock(&mut self) {
        let set = self.clock.look(Reading::take());
        tell_of_clock(self.number, &self.shared, set);
    }

    /// Tells people of packets that come merged.
    fn look_for_merged(&mut self) {
        let (shared, merged) = (&self.shared, &self.shared.merged);
        for (receiver, is_known) in self.receivers.iter_mut().zip(&merged.is_known) {
            let news = receiver.merged_news();
            if let Some(news) = news.filter(|_| !is_known.swap(true, Ordering::Relaxed)) {
                let _ = shared.news.send(News::Trouble(news));
            }
            if let Some(news) = receiver.renamed_news().filter(|_| self.number == 0) {
                let _ = shared.news.send(news);
            }
        }
        let are_lost = self.senders.iter().any(|it| it.counts().unsplit > 0);
        if are_lost && !merged.is_known_unsplit.swap(true, Ordering::Relaxed) {
            let news = "merged packets that cannot be split again, as those of tunnels, are not sent on; keep both \
                        interfaces from merging: ethtool -K INTERFACE gro off lro off";
            let _ = shared.news.send(News::Trouble(news.to_owned()));
        }
    }

    /// Gives up where no interface is left.
    fn check_interfaces(&mut self) -> Result<(), Failure> {
        if !self.receivers.iter().all(Receiver::is_lost) {
            self.alone_since = None;
            return Ok(());
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        let is_hopeless = self.receivers.iter().all(Receiver::is_failed);
        if is_hopeless || since.elapsed() >= self.shared.give_up_after {
            let names = self
                .receivers
                .iter()
                .map(|it| it.ring.interface().to_owned());
            let names: Vec<String> = names.collect();
            return Err(Failure::unavailable(format!(
                "{}: no interface is left, and none has come back; start again when there is one",
                names.join(", ")
            )));
        }
        Ok(())
    }
}

/// Tells people that the wall clock was set, once for all lanes.
fn tell_of_clock(number: usize, shared: &Shared, set_us: Option<i64>) {
    if let Some(us) = set_us.filter(|_| number == 0) {
        let by_s = us.unsigned_abs() as f64 / 1e6;
        let direction = if us > 0 { "forward" } else { "back" };
        let news = format!(
            "the system clock was set {direction} by {by_s:.1} s; flows age as before, and records have the new time"
        );
        let _ = shared.news.send(News::Trouble(news));
    }
}
