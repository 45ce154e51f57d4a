//! A port for the first packets: frames of a worker's ring, with the kernel's counts.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};

use super::FlowCounts;
use super::describe::{self, Clocks, ELEMENT_BYTES, TAG, describe, flow_counts, put};
use super::editions::KernelEditions;
use super::kfunc::marks_connections;
use super::layout::{
    ELEMENTS_MAX, HAS_COUNTS, IS_KEPT, IS_MARKED, IS_REPORT, Key, OPENS, Record, Reported,
};
use super::program::{self, Loaded, Program};
use super::round::{COUNTS, Found, PORTION_EVERY, Round};
use super::table::{Enough, Table};
use super::written::{KernelMark, WrittenMarks};
use crate::backend::Opened;
use crate::burst::{Burst, Frame, FrameAnswer};
use crate::error::{InterfaceErrorKind, OpenError, RxError, renamed};
use crate::interface::{ETHERNET, Interface};
use crate::rx::{LinkEvent, Notice, Received, Rx, RxCounts, WaitHandle};
use crate::settings::{FirstPackets, PortSettings};

/// Bytes of a burst's memory, and the maximum per frame with its tag put back.
const BURST_BYTES: usize = 1 << 16;
const FRAME_BYTES: usize = 2048 + TAG;
/// Frames of a record, at most, and their bytes.
const RECORD_FRAMES: usize = ELEMENTS_MAX + 1;
const RECORD_BYTES: usize = FRAME_BYTES + ELEMENTS_MAX * ELEMENT_BYTES;
/// A worker that does not reach the end of its ring for this long reads the table anyway: flows
/// must not seem silent.
const PATIENCE: Duration = Duration::from_millis(250);
/// Interval of link checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// After frames, the worker polls again after this pause, and only sleeps on the ring if it finds
/// none: a busy interface causes no more wake-ups than that.
const PAUSE: Duration = Duration::from_millis(1);
/// Where the kernel labels flows nothing is urgent: the worker polls at this interval, and sleeps
/// on the ring once it has been empty for this long.
const LABELS_PAUSE: Duration = Duration::from_millis(3);
const LABELS_STAY: Duration = Duration::from_millis(100);

/// State shared by the ports of an interface.
struct Shared {
    program: Mutex<Program>,
    table: Arc<Table>,
}

/// The port of one worker.
pub struct Receiver {
    settings: PortSettings,
    worker: u32,
    interface: Interface,
    shared: Arc<Shared>,
    ring: RingBuf<MapData>,
    /// Keeps the interface promiscuous.
    promiscuous: Option<OwnedFd>,
    bytes: Box<[u8]>,
    frames: Vec<Frame>,
    counts: Vec<FlowCounts>,
    /// Keys and versions of `counts`, for [`Notice::Forget`].
    keys: Vec<(Key, u32)>,
    round: Round,
    /// Bytes of the burst in use.
    filled: usize,
    /// A frame that belongs to the next burst, its bytes and where they are.
    opening: Option<(Record, usize)>,
    opening_at: usize,
    /// Where the kernel labels flows.
    editions: Option<Arc<KernelEditions>>,
    /// What its network answered at frames of the burst.
    answers: Vec<FrameAnswer>,
    written: Option<Arc<WrittenMarks>>,
    /// Elements taken from the table.
    taken: u64,
    /// Since when frames have waited in the ring behind those taken; `None`: it was empty.
    behind: Option<Instant>,
    /// Time of the last frames.
    busy: Option<Instant>,
    received: RxCounts,
    link: Link,
    checked: Instant,
    event: Option<LinkEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Gone,
}

/// Opens the ports of an interface, one per worker.
pub fn open(
    settings: &PortSettings,
    first: &FirstPackets,
    workers: u16,
) -> Result<Vec<Opened>, OpenError> {
    settings.check()?;
    let workers = u32::from(workers.max(1));
    let interface = Interface::open(&settings.interface)?;
    let Loaded { mut program, rings, table } = program::load(settings, first, &interface, workers)?;
    program.attach(&interface)?;
    if let (Some(labels), Some(written)) = (&first.labels, &first.written)
        && labels.first().marks.is_some()
        && marks_connections().is_ok()
    {
        written.begin_with_ports();
    }
    let how = program.how(&interface);
    let shared = Arc::new(Shared { program: Mutex::new(program), table });
    let ports = rings.into_iter().zip(0..).map(|(ring, worker)| {
        let enough = Some(Enough(shared.table.clone()));
        let rx = Box::new(Receiver::open(settings, shared.clone(), ring, worker)?);
        Ok(Opened { rx, tx: None, enough, how: how.clone() })
    });
    ports.collect()
}

impl Receiver {
    fn open(
        settings: &PortSettings,
        shared: Arc<Shared>,
        ring: RingBuf<MapData>,
        worker: u32,
    ) -> Result<Receiver, OpenError> {
        let interface = Interface::open(&settings.interface)?;
        let now = Instant::now();
        Ok(Receiver {
            promiscuous: match settings.is_promiscuous && worker == 0 {
                true => Some(interface.hold_promiscuous()?),
                false => None,
            },
            link: match interface.link.is_up {
                true => Link::Up,
                false => Link::Down,
            },
            settings: settings.clone(),
            worker,
            interface,
            shared,
            ring,
            bytes: vec![0; BURST_BYTES].into_boxed_slice(),
            frames: Vec::with_capacity(BURST_BYTES / 64),
            counts: Vec::with_capacity(BURST_BYTES / 64 + COUNTS),
            keys: Vec::with_capacity(BURST_BYTES / 64 + COUNTS),
            round: Round::new(worker, now),
            filled: 0,
            opening: None,
            opening_at: 0,
            editions: settings.first.as_ref().and_then(|it| it.labels.clone()),
            answers: Vec::with_capacity(BURST_BYTES / 64),
            written: settings.first.as_ref().and_then(|it| it.written.clone()),
            taken: 0,
            behind: None,
            busy: None,
            received: RxCounts::default(),
            checked: now,
            event: None,
        })
    }

    /// Takes frames and their counts from the ring; `true` if the ring is empty then.
    fn fill(&mut self, max: usize, clocks: Clocks) -> bool {
        let mut at = 0;
        if let Some((record, captured)) = self.opening.take() {
            // Its frame is in place already.
            self.frames.push(describe(
                &record,
                self.opening_at,
                captured,
                self.interface.link_type,
                clocks,
            ));
            at = self.opening_at + captured;
        }
        self.filled = at;
        while self.has_room(max) {
            let Some(item) = self.ring.next() else {
                return true;
            };
            let Some((record, frame)) = Record::read(&item, self.editions.is_some()) else {
                continue;
            };
            let link = self.interface.link_type;
            let us = record.time_ns / 1000;
            if let Some(written) = &self.written {
                note_mark(&record.key, &record.reported, written);
            }
            for (number, &element) in
                (record.reported.from.into()..).zip(record.reported.elements())
            {
                if element.is_of(record.counts.version) {
                    let room = &mut self.bytes[self.filled..];
                    let of = (&record.key, element);
                    let frame = describe::element(room, self.filled, of, us, (link, clocks));
                    self.filled += frame.captured as usize;
                    self.frames.push(frame);
                    let editions = self.editions.as_ref();
                    let answer =
                        |it: &Arc<KernelEditions>| it.answer(&record.reported, number, frame.at);
                    self.answers.extend(editions.and_then(answer));
                }
            }
            if record.flags & HAS_COUNTS != 0 {
                self.counts.push(flow_counts(&record.key, &record.counts, clocks));
                self.keys.push((record.key, record.counts.version));
            }
            let at = self.filled;
            if record.flags & IS_REPORT == 0 {
                let room = &mut self.bytes[at..at + FRAME_BYTES];
                let captured = put(room, frame, record.tag, link == ETHERNET);
                self.filled += captured;
                if record.flags & OPENS != 0 {
                    self.opening = Some((record, captured));
                    self.opening_at = at;
                } else {
                    self.frames.push(describe(&record, at, captured, link, clocks));
                }
            }
            if record.flags & OPENS != 0 {
                // The counts are of the previous flow and precede this frame, which begins the next
                // burst.
                return false;
            }
        }
        false
    }

    /// Whether the frames of another record fit. It may have more than a burst should.
    fn has_room(&self, max: usize) -> bool {
        match self.editions.is_some() {
            false => self.frames.len() < max && self.filled + FRAME_BYTES <= self.bytes.len(),
            true => self.records_left(max) != 0,
        }
    }

    /// Records with elements for which there is room, at least one in an empty burst.
    fn records_left(&self, max: usize) -> usize {
        let left = (self.bytes.len() - self.filled) / RECORD_BYTES;
        let left = left.min(max.saturating_sub(self.frames.len()) / RECORD_FRAMES);
        left.max(usize::from(self.frames.is_empty()))
    }

    /// Takes frames and, if due, a portion of the table. The portion may count a flow whose first
    /// frame still waits in the ring. So it is read before the frames, and used only if these were
    /// the last: then every frame from before the portion precedes it.
    fn gather(&mut self, max: usize, now: Instant, clocks: Clocks) {
        let table = &self.shared.table;
        let is_late = |behind: Instant| now.duration_since(behind) > PATIENCE;
        let is_late = self.behind.is_some_and(is_late);
        let may_be_used = self.behind.is_none() || is_late || self.round.is_reading(now);
        let is_due = self.round.is_due(now) && may_be_used;
        if is_due {
            self.round.read(table, clocks);
        }
        let is_empty = self.fill(max, clocks);
        self.behind = match is_empty {
            true => None,
            false => self.behind.or(Some(now)),
        };
        if is_due && (is_empty || is_late) {
            let room = self.records_left(max);
            let (table, link) = (&self.shared.table, self.interface.link_type);
            for Found { number, key, counts, has_elements } in
                self.round.take(table, now, clocks, room)
            {
                let reported = match has_elements {
                    true => table.take_unreported(self.worker, *number, counts.version),
                    false => None,
                };
                let reported = reported.unwrap_or_default();
                if let Some(written) = &self.written {
                    note_mark(key, &reported, written);
                }
                for (number, &element) in (reported.from.into()..).zip(reported.elements()) {
                    let room = &mut self.bytes[self.filled..];
                    let (of, us) = ((key, element), clocks.boot_us());
                    let frame = describe::element(room, self.filled, of, us, (link, clocks));
                    self.filled += frame.captured as usize;
                    self.frames.push(frame);
                    let editions = self.editions.as_ref();
                    let answer = |it: &Arc<KernelEditions>| it.answer(&reported, number, frame.at);
                    self.answers.extend(editions.and_then(answer));
                    self.taken += 1;
                }
                self.counts.push(flow_counts(key, counts, clocks));
                self.keys.push((*key, counts.version));
            }
        }
    }

    fn program(&self) -> std::sync::MutexGuard<'_, Program> {
        let program = self.shared.program.lock();
        program.unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the interface is there and up; reattaches the program to one that is back.
    fn check_link(&mut self) {
        let link = match self.interface.refresh() {
            Ok(link) if link.is_up => Link::Up,
            Ok(_) => Link::Down,
            Err(_) => self.reopen(),
        };
        let before = std::mem::replace(&mut self.link, link);
        if before == link || self.worker != 0 {
            return;
        }
        let name = &self.interface.name;
        self.event = match link {
            Link::Up => Some(LinkEvent::Up(format!("{name}: the interface is back"))),
            Link::Gone if before != Link::Gone => {
                Some(LinkEvent::Down(match self.interface.new_name() {
                    Some(new) => renamed(name, &new),
                    None => self.interface.error(InterfaceErrorKind::Gone).line,
                }))
            }
            Link::Down if before == Link::Up => {
                Some(LinkEvent::Down(self.interface.error(InterfaceErrorKind::Down).line))
            }
            _ => None,
        };
    }

    /// Opens the interface that now has the name; the first port attaches the program to it.
    fn reopen(&mut self) -> Link {
        let Ok(interface) = Interface::open(&self.settings.interface) else {
            return Link::Gone;
        };
        if self.worker == 0 {
            if self.program().attach(&interface).is_err() {
                return Link::Gone;
            }
            if self.promiscuous.is_some() {
                self.promiscuous = interface.hold_promiscuous().ok();
            }
        }
        let is_up = interface.link.is_up;
        self.interface = interface;
        match is_up {
            true => Link::Up,
            false => Link::Down,
        }
    }
}

/// Notes the mark of a flow's label, if the program has seen to it.
fn note_mark(key: &Key, reported: &Reported, written: &WrittenMarks) {
    let mark = match reported.marked {
        IS_MARKED => KernelMark::Written,
        IS_KEPT => KernelMark::Kept,
        _ => return,
    };
    written.note(key.protocol, key.ends(), reported.class.into(), mark);
}

impl Rx for Receiver {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        let (now, clocks) = (Instant::now(), Clocks::read());
        self.frames.clear();
        self.counts.clear();
        self.keys.clear();
        self.answers.clear();
        self.gather(max.max(1), now, clocks);
        if self.frames.is_empty() && self.counts.is_empty() && !self.round.is_reading(now) {
            return Ok(Received::Nothing);
        }
        if !self.frames.is_empty() {
            self.busy = Some(now);
        }
        self.received.count(&self.frames);
        let merged = self.frames.iter().filter(|frame| !frame.gso.is_none());
        self.received.merged += merged.count() as u64;
        let burst = Burst::new(&mut self.bytes, &self.frames);
        Ok(Received::Burst(burst.with_kernel(&self.counts, &self.answers)))
    }

    fn name(&self) -> &str {
        &self.interface.name
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        if self.checked.elapsed() >= CHECK_EVERY {
            self.checked = Instant::now();
            self.check_link();
        }
        self.event.take()
    }

    fn notify(&mut self, notice: Notice<'_>) -> bool {
        match notice {
            Notice::Drain => self.round.be_last(),
            // An entry that began anew has another version and stays.
            Notice::Forget(unknown) => unknown
                .iter()
                .filter_map(|i| self.keys.get(*i as usize))
                .for_each(|(key, version)| self.shared.table.free(key, *version)),
            Notice::Leave => return false,
        }
        true
    }

    fn counts(&mut self) -> RxCounts {
        let counters = self.program().counters(self.worker);
        let handed_out = self.received.received;
        RxCounts {
            offered: counters.sent + counters.dropped + self.taken,
            dropped: counters.dropped,
            waiting: (counters.sent + self.taken).saturating_sub(handed_out),
            is_away: self.link != Link::Up,
            counted: counters.counted,
            counted_bytes: counters.counted_bytes,
            forgotten: counters.evicted,
            counts_in_kernel: true,
            labels_in_kernel: self.editions.is_some(),
            ..self.received
        }
    }

    fn is_lost(&self) -> bool {
        self.link == Link::Gone
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        if self.round.is_under_way() {
            return WaitHandle::Within(PORTION_EVERY);
        }
        let (stay, pause) = match self.editions.is_some() {
            true => (LABELS_STAY, LABELS_PAUSE),
            false => (PAUSE, PAUSE),
        };
        if let Some(busy) = self.busy
            && busy.elapsed() < stay
        {
            return WaitHandle::Within(pause);
        }
        self.shared.table.set_asleep(self.worker);
        WaitHandle::Fd(self.ring.as_fd())
    }
}
