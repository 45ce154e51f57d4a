//! The flow manager's thread: from its input through the packet's walk to the
//! writer and the records.
//!
//! One loop: make room, receive a burst, walk it, write it, settle. By packet time
//! nothing is shed, so the loop makes room first: a ring slot for every series and
//! an entry for every flow that the burst may bring. Paced, as live, it asks for
//! none and sheds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::Backoff;
use flowmgr::{Fate, Manager, Packet};
use packetio::Frame;

use super::input::Input;
use super::pace::Pace;
use super::plane::LaneEnd;
use super::source::Received;
use super::tagged::TaggedWriter;
use crate::control::collector::FlowSnapshot;
use crate::control::sums::PortSums;
use crate::exit::Failure;
use crate::pipeline::worker::{REST, Run};
use crate::records::RecordSender;

/// What the threads of a replay tell each other, beside what those of any run do.
pub struct Shared {
    /// What concerns the analytics threads.
    pub run: Arc<Run>,
    /// Raised by whoever wants the replay to end: a signal, an output that failed.
    pub stop: Arc<AtomicBool>,
    /// Packets walked, for the progress.
    pub packets: AtomicU64,
}

impl Shared {
    /// For a run of so many flow managers that begins now.
    pub fn new(flow_managers: usize, stop: Arc<AtomicBool>) -> Shared {
        Shared {
            run: Arc::new(Run::new(flow_managers)),
            stop,
            packets: AtomicU64::new(0),
        }
    }
}

/// The parts of the flow manager's thread.
pub struct Lane {
    pub manager: Manager,
    pub pace: Option<Pace>,
    pub tagged: Option<TaggedWriter>,
    pub records: RecordSender,
    pub shared: Arc<Shared>,
    /// Packets per burst; at most a quarter of the ring's slots.
    pub burst: usize,
    /// Packets taken from the input.
    pub received: u64,
    /// Bytes that they had on the wire.
    pub bytes: u64,
    /// By which the thread is watched.
    pub end: Option<LaneEnd>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
}

/// What the flow manager's thread leaves behind.
pub struct LaneOutcome {
    /// Packets taken from the input.
    pub received: u64,
    pub counters: flowmgr::Counters,
    pub bytes: u64,
    pub records_dropped: u64,
    /// Why it ended before its time.
    pub failures: Vec<Failure>,
}

impl Lane {
    pub fn new(
        manager: Manager,
        pace: Option<Pace>,
        tagged: Option<TaggedWriter>,
        records: RecordSender,
        shared: Arc<Shared>,
        burst: usize,
        end: Option<LaneEnd>,
    ) -> Lane {
        Lane {
            manager,
            pace,
            tagged,
            records,
            shared,
            burst,
            received: 0,
            bytes: 0,
            end,
            packets: Vec::with_capacity(burst),
            fates: Vec::with_capacity(burst),
        }
    }

    /// Runs to the end of its input, to an error, or until told to stop; then
    /// ends all flows and settles what is left.
    pub fn run(mut self, mut input: Input) -> LaneOutcome {
        let walked = self.walk_all(&mut input);
        if walked.is_err() {
            // What other lanes would do is of no use.
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        drop(input); // or its reader would wait for us
        self.shared.run.inputs_open.fetch_sub(1, Ordering::Release);
        self.manager.drain();
        let settled = self.settle_all();
        let written = self.tagged.take().map_or(Ok(()), TaggedWriter::finish);
        if let Some(end) = self.end.take() {
            end.publisher.finish(|snapshot| self.describe(snapshot));
        }
        LaneOutcome {
            received: self.received,
            counters: self.manager.counters().clone(),
            bytes: self.bytes,
            records_dropped: self.records.dropped(),
            failures: [walked, settled, written]
                .into_iter()
                .filter_map(Result::err)
                .collect(),
        }
    }

    fn walk_all(&mut self, input: &mut Input) -> Result<(), Failure> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.make_room()?;
            match input.receive(self.burst)? {
                Received::Burst(mut burst, shift_us) => {
                    let (data, frames) = burst.parts();
                    self.walk(data, frames, shift_us)?;
                }
                Received::Nothing => self.settle()?,
                Received::End => break,
            }
        }
        Ok(())
    }

    /// By packet time, waits until a burst can lose nothing.
    fn make_room(&mut self) -> Result<(), Failure> {
        if self.pace.is_some() {
            return Ok(());
        }
        let backoff = Backoff::new();
        loop {
            let writer_is_full = self.tagged.as_ref().is_some_and(TaggedWriter::is_full);
            if self.manager.has_room(self.burst) && !writer_is_full {
                return Ok(());
            }
            self.rest(&backoff)?;
            self.settle()?;
        }
    }

    /// One burst. Paced, it is cut where the next packet is not due yet.
    fn walk(&mut self, data: &mut [u8], frames: &[Frame], shift_us: i64) -> Result<(), Failure> {
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let due = match self.wait_for(first.time_us.saturating_add(shift_us))? {
                true => self.due(rest, shift_us),
                false => return Ok(()),
            };
            let (now, later) = rest.split_at(due);
            self.walk_now(data, now, shift_us)?;
            rest = later;
        }
        Ok(())
    }

    fn walk_now(
        &mut self,
        data: &mut [u8],
        frames: &[Frame],
        shift_us: i64,
    ) -> Result<(), Failure> {
        self.packets.clear();
        self.packets.extend(frames.iter().map(|frame| Packet {
            at: frame.at,
            captured: frame.captured,
            link: frame.link,
            time_us: frame.time_us.saturating_add(shift_us),
            rss: frame.rss,
        }));
        self.received += frames.len() as u64;
        self.bytes += frames
            .iter()
            .map(|frame| u64::from(frame.wire))
            .sum::<u64>();
        let now_ns = self.shared.run.now_ns();
        self.manager
            .burst(data, &self.packets, now_ns, &mut self.fates);
        self.shared
            .packets
            .fetch_add(frames.len() as u64, Ordering::Relaxed);
        if let Some(tagged) = &mut self.tagged {
            for ((frame, packet), fate) in frames.iter().zip(&self.packets).zip(&self.fates) {
                let time_us = packet.time_us;
                let pushed = tagged.push(Frame { time_us, ..*frame }, &data[frame.range()], *fate);
                if pushed.is_err() {
                    self.tagged = None;
                    return pushed;
                }
            }
        }
        self.settle()
    }

    /// Waits until packets of this time are due; false when told to stop.
    fn wait_for(&mut self, time_us: i64) -> Result<bool, Failure> {
        while let Some(rest) = self.pace.as_ref().and_then(|pace| pace.rest(time_us)) {
            if self.shared.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.settle()?;
            std::thread::sleep(rest);
        }
        Ok(true)
    }

    /// How many of `frames` are due; at least the first.
    fn due(&self, frames: &[Frame], shift_us: i64) -> usize {
        let Some(pace) = &self.pace else {
            return frames.len();
        };
        let is_due = |frame: &&Frame| pace.rest(frame.time_us.saturating_add(shift_us)).is_none();
        frames.iter().take_while(is_due).count().max(1)
    }

    /// Writes and says what is ready. A writer that fails is given up, so that the rest is settled
    /// all the same.
    fn settle(&mut self) -> Result<(), Failure> {
        let advanced = self.tagged.as_mut().map_or(Ok(()), TaggedWriter::advance);
        if advanced.is_err() {
            self.tagged = None;
        }
        let tagged = self.tagged.as_ref();
        let written = tagged.map_or(u64::MAX, TaggedWriter::written);
        let (records, now_ns) = (&mut self.records, self.shared.run.now_ns());
        match &self.end {
            Some(LaneEnd { tap, .. }) => self.manager.settle(written, now_ns, &mut |record| {
                tap.offer(&record);
                records.send(record);
            }),
            None if records.is_wanted() => self
                .manager
                .settle(written, now_ns, &mut |record| records.send(record)),
            None => self.manager.discard_records(written, now_ns),
        }
        if let Some(end) = &self.end {
            end.publisher.publish(|snapshot| self.describe(snapshot));
        }
        advanced
    }

    /// How the thread stands between two bursts.
    fn describe(&self, snapshot: &mut FlowSnapshot) {
        snapshot.counters.copy_from(self.manager.counters());
        snapshot.ports.clear();
        snapshot.ports.push(PortSums {
            received: self.received,
            bytes: self.bytes,
            ..PortSums::default()
        });
        snapshot.alive = self.manager.flows_alive() as u64;
        snapshot.half_open = self.manager.flows_half_open() as u64;
        snapshot.unrecorded = self.manager.flows_unrecorded() as u64;
        snapshot.records_dropped = self.records.dropped();
        snapshot.clock_steps = self.manager.counters().clock_rebased;
    }

    /// Waits for the last labels.
    fn settle_all(&mut self) -> Result<(), Failure> {
        let backoff = Backoff::new();
        let mut settled = Ok(());
        loop {
            settled = settled.and(self.settle());
            if self.manager.is_settled() {
                return settled;
            }
            self.rest(&backoff)?;
        }
    }

    fn rest(&self, backoff: &Backoff) -> Result<(), Failure> {
        if self.shared.run.analytics_died.load(Ordering::Acquire) {
            return Err(Failure::software(
                "the analytics thread died; its series have no labels",
            ));
        }
        if backoff.is_completed() {
            std::thread::sleep(REST);
        } else {
            backoff.snooze();
        }
        Ok(())
    }
}
