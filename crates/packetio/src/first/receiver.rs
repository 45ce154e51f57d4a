//! The first packets of an interface as a port: frames out of the ring of a worker, and with them what was counted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};
use rustix::time::{ClockId, clock_gettime};

use super::layout::{Counts, HAS_COUNTS, IS_UDP, Key, OPENS, Record, ticks};
use super::program::{self, Loaded, Program};
use super::table::Table;
use super::{Enough, FlowCounts};
use crate::burst::{Burst, Frame, Gso};
use crate::error::{OpenError, RxError};
use crate::interface::{ETHERNET, Interface, system};
use crate::open::Opened;
use crate::rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle};
use crate::settings::{FirstPackets, PortSettings};
use crate::sys;

/// Bytes of a burst's memory, and the room that a frame may need in it, with the tag that is put back.
const BURST_BYTES: usize = 1 << 16;
const FRAME_BYTES: usize = 2048 + TAG;
const TAG: usize = 4;
/// Bytes of an Ethernet header's two addresses.
const ADDRESSES: usize = 12;
/// Between two rounds over the table, and between two portions of a round.
const ROUND_EVERY: Duration = Duration::from_secs(1);
const PORTION_EVERY: Duration = Duration::from_millis(1);
/// Entries of a portion: some ten microseconds' worth.
const PORTION: usize = 4096;
/// Counts that a portion adds, at most.
const COUNTS: usize = 1024;
/// Ticks by which the kernel's coarse clock may be behind, of the time of its timer interrupt.
const COARSE: u32 = 20;
/// Between two looks at the interface.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After frames the worker looks again once this has passed; only a worker that finds none waits to be woken. So a busy
/// interface wakes it no more often.
const PAUSE: Duration = Duration::from_millis(1);

/// What the ports of an interface share.
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
    /// The keys of the counts, for [`Rx::forget`].
    keys: Vec<Key>,
    round: Round,
    /// A frame that belongs to the next burst, how many bytes it has, and where they are.
    opening: Option<(Record, usize)>,
    opening_at: usize,
    /// When frames came last.
    busy: Option<Instant>,
    received: RxCounts,
    link: Link,
    looked: Instant,
    event: Option<LinkEvent>,
}

/// A round over the table: reads what changed since the round before.
struct Round {
    /// The next entry; 0 where no round is under way.
    at: usize,
    next: Instant,
    /// When the last round began, and this one, in ticks.
    before: u32,
    began: u32,
    /// The run is about to end: the round goes on without pauses.
    is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Gone,
}

/// Opens the ports of an interface, one for each worker.
pub fn open(
    settings: &PortSettings,
    first: &FirstPackets,
    workers: u16,
) -> Result<Vec<Opened>, OpenError> {
    settings.check()?;
    let workers = u32::from(workers.max(1));
    let interface = Interface::open(&settings.interface)?;
    let Loaded {
        mut program,
        rings,
        table,
    } = program::load(settings, first, &interface, workers)?;
    program.attach(&interface)?;
    let shared = Arc::new(Shared {
        program: Mutex::new(program),
        table,
    });
    let ports = rings.into_iter().zip(0..).map(|(ring, worker)| {
        let interface = Interface::open(&settings.interface)?;
        let receiver = Receiver::new(settings, interface, shared.clone(), ring, worker)?;
        Ok(Opened {
            rx: Box::new(receiver),
            tx: None,
            enough: Some(Enough(shared.table.clone())),
            how: None,
        })
    });
    ports.collect()
}

impl Receiver {
    fn new(
        settings: &PortSettings,
        interface: Interface,
        shared: Arc<Shared>,
        ring: RingBuf<MapData>,
        worker: u32,
    ) -> Result<Receiver, OpenError> {
        let now = Instant::now();
        Ok(Receiver {
            promiscuous: match settings.is_promiscuous && worker == 0 {
                true => Some(be_promiscuous(&interface)?),
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
            round: Round {
                at: 0,
                next: now + ROUND_EVERY,
                before: 0,
                began: now_ticks(),
                is_last: false,
            },
            opening: None,
            opening_at: 0,
            busy: None,
            received: RxCounts::default(),
            looked: now,
            event: None,
        })
    }

    /// Takes frames from the ring, with the counts that came with them.
    fn fill(&mut self, max: usize, clocks: Clocks) {
        let mut at = 0;
        if let Some((record, captured)) = self.opening.take() {
            // Its frame is where it was put.
            self.frames.push(describe(
                &record,
                self.opening_at,
                captured,
                self.interface.link_type,
                clocks,
            ));
            at = self.opening_at + captured;
        }
        while self.frames.len() < max && at + FRAME_BYTES <= self.bytes.len() {
            let Some(item) = self.ring.next() else {
                return;
            };
            let Some((record, frame)) = Record::read(&item) else {
                continue;
            };
            let room = &mut self.bytes[at..at + FRAME_BYTES];
            let link = self.interface.link_type;
            let captured = put(room, frame, record.tag, link == ETHERNET);
            if record.flags & HAS_COUNTS != 0 {
                self.counts
                    .push(flow_counts(&record.key, &record.counts, clocks));
                self.keys.push(record.key);
            }
            if record.flags & OPENS != 0 {
                // These counts are of the flow before, and count before this frame: it begins the next burst.
                self.opening = Some((record, captured));
                self.opening_at = at;
                return;
            }
            self.frames
                .push(describe(&record, at, captured, link, clocks));
            at += captured;
        }
    }

    /// Reads a portion of the table, if one is due; adds what has changed.
    fn read_table(&mut self, now: Instant, clocks: Clocks) {
        if now < self.round.next {
            return;
        }
        let Receiver {
            round,
            shared,
            counts,
            keys,
            worker,
            ..
        } = self;
        if round.at == 0 {
            (round.before, round.began) = (round.began, clocks.ticks);
        }
        // What changed while the last round was under way may not be known.
        let since = clocks.ticks.wrapping_sub(round.before).wrapping_add(COARSE);
        let table = &shared.table;
        let to = (round.at + PORTION).min(table.len());
        let room = counts.len() + COUNTS;
        while round.at < to && counts.len() < room {
            if let Some((key, found)) = table.read(*worker, round.at, clocks.ticks, since)
                && found.packets != [0; 2]
            {
                counts.push(flow_counts(&key, &found, clocks));
                keys.push(key);
            }
            round.at += 1;
        }
        round.next = match round.is_last {
            true => now,
            false => now + PORTION_EVERY,
        };
        if round.at == table.len() {
            (round.at, round.next) = (0, now + ROUND_EVERY);
        }
    }

    fn program(&self) -> std::sync::MutexGuard<'_, Program> {
        let program = self.shared.program.lock();
        program.unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether the interface is there and up, and attaches the program to one that is back.
    fn look(&mut self) {
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
                let renamed = self.interface.new_name();
                let gone = crate::error::InterfaceErrorKind::Gone;
                Some(LinkEvent::Down(match renamed {
                    Some(new) => crate::error::renamed(name, &new),
                    None => self.interface.error(gone).to_string(),
                }))
            }
            Link::Down if before == Link::Up => {
                let down = crate::error::InterfaceErrorKind::Down;
                Some(LinkEvent::Down(self.interface.error(down).to_string()))
            }
            _ => None,
        };
    }

    /// Opens the interface that has the name now; the first port attaches the program to it.
    fn reopen(&mut self) -> Link {
        let Ok(interface) = Interface::open(&self.settings.interface) else {
            return Link::Gone;
        };
        if self.worker == 0 {
            if self.program().attach(&interface).is_err() {
                return Link::Gone;
            }
            if self.promiscuous.is_some() {
                self.promiscuous = be_promiscuous(&interface).ok();
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

impl Rx for Receiver {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        let (now, clocks) = (Instant::now(), Clocks::read());
        self.frames.clear();
        self.counts.clear();
        self.keys.clear();
        self.fill(max.max(1), clocks);
        self.read_table(now, clocks);
        let is_reading = self.round.is_last && self.round.at != 0;
        if self.frames.is_empty() && self.counts.is_empty() && !is_reading {
            return Ok(Received::Nothing);
        }
        if !self.frames.is_empty() {
            self.busy = Some(now);
        }
        self.received.count(&self.frames);
        let merged = self.frames.iter().filter(|frame| !frame.gso.is_none());
        self.received.merged += merged.count() as u64;
        let burst = Burst::new(&mut self.bytes, &self.frames);
        Ok(Received::Burst(burst.with_counts(&self.counts)))
    }

    fn name(&self) -> &str {
        &self.interface.name
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.look();
        }
        self.event.take()
    }

    fn forget(&mut self, unknown: &[u32]) {
        let keys = unknown.iter().filter_map(|i| self.keys.get(*i as usize));
        keys.for_each(|key| self.shared.table.free(key));
    }

    fn drain(&mut self) {
        let round = &mut self.round;
        if round.at != 0 {
            // It begins again, from what was known before it.
            (round.at, round.began) = (0, round.before);
        }
        (round.is_last, round.next) = (true, Instant::now());
    }

    fn counts(&mut self) -> RxCounts {
        let counters = self.program().counters(self.worker);
        let handed_out = self.received.received;
        RxCounts {
            offered: counters.sent + counters.dropped,
            dropped: counters.dropped,
            waiting: counters.sent.saturating_sub(handed_out),
            is_away: self.link != Link::Up,
            counted: counters.counted,
            counted_bytes: counters.counted_bytes,
            forgotten: counters.evicted,
            counts_in_kernel: true,
            ..self.received
        }
    }

    fn is_lost(&self) -> bool {
        self.link == Link::Gone
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        if self.round.at != 0 {
            return WaitHandle::Within(PORTION_EVERY);
        }
        if let Some(busy) = self.busy
            && busy.elapsed() < PAUSE
        {
            return WaitHandle::Within(PAUSE);
        }
        self.shared.table.say_asleep(self.worker);
        WaitHandle::Fd(self.ring.as_fd())
    }
}

/// Copies a frame into `room`, with the tag that the kernel took off put back; how many bytes it has there.
fn put(room: &mut [u8], frame: &[u8], (protocol, tag): (u16, u16), is_ethernet: bool) -> usize {
    if protocol == 0 || !is_ethernet || frame.len() < ADDRESSES {
        room[..frame.len()].copy_from_slice(frame);
        return frame.len();
    }
    let (addresses, rest) = frame.split_at(ADDRESSES);
    room[..ADDRESSES].copy_from_slice(addresses);
    room[ADDRESSES..ADDRESSES + 2].copy_from_slice(&protocol.to_be_bytes());
    room[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&tag.to_be_bytes());
    room[ADDRESSES + TAG..frame.len() + TAG].copy_from_slice(rest);
    frame.len() + TAG
}

fn describe(record: &Record, at: usize, captured: usize, link: u16, clocks: Clocks) -> Frame {
    let wall_ns = record.time_ns as i64 + clocks.wall_ahead_ns;
    let tag = captured as u32 - record.captured;
    Frame {
        at,
        captured: captured as u32,
        wire: record.wire + tag,
        time_us: wall_ns.div_euclid(1000),
        time_sub_ns: wall_ns.rem_euclid(1000) as u16,
        link,
        interface: 0,
        rss: None,
        gso: match record.gso_size {
            0 => Gso::NONE,
            size => Gso::new(size, record.flags & IS_UDP != 0),
        },
    }
}

fn flow_counts(key: &Key, counts: &Counts, clocks: Clocks) -> FlowCounts {
    let silent = clocks.ticks.wrapping_sub(counts.last);
    // The clock of the thread may be behind that of the kernel's last packet.
    let silent = if silent > u32::MAX / 2 { 0 } else { silent };
    FlowCounts {
        protocol: key.protocol,
        ends: key.ends(),
        packets: counts.packets,
        bytes: counts.bytes,
        generation: counts.version,
        last_us: (clocks.wall_ns - (i64::from(silent) << 20)).div_euclid(1000),
    }
}

/// The clocks of the kernel, of the program and of people at one moment.
#[derive(Clone, Copy)]
struct Clocks {
    wall_ns: i64,
    /// Wall time less the time since the machine started, ns.
    wall_ahead_ns: i64,
    ticks: u32,
}

impl Clocks {
    fn read() -> Clocks {
        let wall_ns = nanoseconds(ClockId::Realtime);
        Clocks {
            wall_ns,
            wall_ahead_ns: wall_ns - nanoseconds(ClockId::Boottime),
            ticks: now_ticks(),
        }
    }
}

fn now_ticks() -> u32 {
    ticks(nanoseconds(ClockId::MonotonicCoarse) as u64)
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// A socket that keeps the interface promiscuous as long as it is open; it receives nothing.
fn be_promiscuous(interface: &Interface) -> Result<OwnedFd, OpenError> {
    let refused = system(&interface.name, "the promiscuous mode is refused");
    let socket = sys::packet_socket().map_err(&refused)?;
    sys::be_promiscuous(socket.as_fd(), interface.index).map_err(&refused)?;
    Ok(socket)
}
