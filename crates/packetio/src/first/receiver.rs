//! The first packets of an interface as a port: frames out of the ring of a worker, and with them what was counted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};
use rustix::time::{ClockId, clock_gettime};

use super::layout::{Entry, HAS_COUNTS, IS_UDP, Key, OPENS, Record};
use super::program::{self, Loaded, Program, WorkerMaps};
use super::table::{self, BATCH, Round};
use super::words::Words;
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
/// Between two rounds over the table, and between two batches of a round.
const ROUND_EVERY: Duration = Duration::from_secs(1);
const BATCH_EVERY: Duration = Duration::from_millis(1);
/// Between two looks at the interface.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An entry that was silent for so long is removed, where flows never end by silence.
const FORGET: Duration = Duration::from_secs(300);
/// After frames the worker looks again once this has passed; only a worker that finds none waits to be woken. So a busy
/// interface wakes it no more often.
const PAUSE: Duration = Duration::from_millis(1);

/// What the ports of an interface share.
struct Shared {
    program: Mutex<Program>,
    words: Arc<Words>,
}

/// The port of one worker.
pub struct Receiver {
    settings: PortSettings,
    worker: u32,
    interface: Interface,
    shared: Arc<Shared>,
    ring: RingBuf<MapData>,
    table: MapData,
    forget_ns: u64,
    /// Keeps the interface promiscuous.
    promiscuous: Option<OwnedFd>,
    bytes: Box<[u8]>,
    frames: Vec<Frame>,
    counts: Vec<FlowCounts>,
    /// The keys of the counts, for [`Rx::forget`].
    keys: Vec<Key>,
    gone: Vec<Key>,
    round: Rounds,
    /// When frames came last.
    busy: Option<Instant>,
    received: RxCounts,
    link: Link,
    looked: Instant,
    event: Option<LinkEvent>,
}

/// The rounds over the table.
struct Rounds {
    round: Round,
    /// A round is under way.
    is_open: bool,
    next: Instant,
    /// When the last round began, and this one: what changed before the former is known.
    before_ns: u64,
    began_ns: u64,
    /// Entries that this round has seen.
    seen: u64,
    /// Entries that are left after the last round, and those removed so far.
    present: u64,
    removed: u64,
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
        maps,
        words,
    } = program::load(settings, first, &interface, workers)?;
    program.attach(&interface)?;
    let shared = Arc::new(Shared {
        program: Mutex::new(program),
        words,
    });
    let ports = maps.into_iter().zip(0..).map(|(maps, worker)| {
        let interface = Interface::open(&settings.interface)?;
        let receiver = Receiver::new(settings, first, interface, shared.clone(), maps, worker)?;
        Ok(Opened {
            rx: Box::new(receiver),
            tx: None,
            enough: Some(Enough(shared.words.clone())),
        })
    });
    ports.collect()
}

impl Receiver {
    fn new(
        settings: &PortSettings,
        first: &FirstPackets,
        interface: Interface,
        shared: Arc<Shared>,
        maps: WorkerMaps,
        worker: u32,
    ) -> Result<Receiver, OpenError> {
        let forget = match first.forget.is_zero() {
            true => FORGET,
            false => first.forget,
        };
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
            ring: maps.ring,
            table: maps.table,
            forget_ns: forget.as_nanos() as u64,
            bytes: vec![0; BURST_BYTES].into_boxed_slice(),
            frames: Vec::with_capacity(BURST_BYTES / 64),
            counts: Vec::with_capacity(BURST_BYTES / 64 + BATCH),
            keys: Vec::with_capacity(BURST_BYTES / 64 + BATCH),
            gone: Vec::with_capacity(BATCH),
            round: Rounds {
                round: Round::new(),
                is_open: false,
                next: now + ROUND_EVERY,
                before_ns: 0,
                began_ns: boot_ns(),
                seen: 0,
                present: 0,
                removed: 0,
            },
            busy: None,
            received: RxCounts::default(),
            looked: now,
            event: None,
        })
    }

    /// Takes frames from the ring, with the counts that came with them.
    fn fill(&mut self, max: usize, ahead_ns: i64) {
        let Receiver {
            ring,
            bytes,
            frames,
            counts,
            keys,
            interface,
            ..
        } = self;
        let mut at = 0;
        while frames.len() < max && at + FRAME_BYTES <= bytes.len() {
            let Some(item) = ring.next() else {
                return;
            };
            let Some((record, frame)) = Record::read(&item) else {
                continue;
            };
            let room = &mut bytes[at..at + FRAME_BYTES];
            let captured = put(room, frame, record.tag, interface.link_type == ETHERNET);
            frames.push(describe(
                &record,
                at,
                captured,
                interface.link_type,
                ahead_ns,
            ));
            at += captured;
            if record.flags & HAS_COUNTS != 0 {
                let Record {
                    packets,
                    bytes,
                    last_ns,
                    ..
                } = record;
                counts.push(flow_counts(&record.key, packets, bytes, last_ns, ahead_ns));
                keys.push(record.key);
            }
            if record.flags & OPENS != 0 {
                // What follows may have counts of the flow that begins with this frame, which are for after it.
                return;
            }
        }
    }

    /// Reads a batch of the table, if one is due; adds what has changed, and removes entries of flows that are over.
    fn read_table(&mut self, now: Instant, ahead_ns: i64) {
        if now < self.round.next {
            return;
        }
        let rounds = &mut self.round;
        if !rounds.is_open {
            (rounds.is_open, rounds.seen) = (true, 0);
            (rounds.before_ns, rounds.began_ns) = (rounds.began_ns, boot_ns());
        }
        let is_over = rounds.round.go_on(self.table.fd().as_fd());
        self.gone.clear();
        for (key, entry) in rounds.round.found() {
            rounds.seen += 1;
            let silent_ns = rounds.began_ns.saturating_sub(entry.last_ns);
            if silent_ns > self.forget_ns {
                self.gone.push(*key);
            }
            // What changed while the last round was under way may not be known.
            if entry.last_ns >= rounds.before_ns && entry.packets != [0; 2] {
                let Entry {
                    packets,
                    bytes,
                    last_ns,
                    ..
                } = *entry;
                self.counts
                    .push(flow_counts(key, packets, bytes, last_ns, ahead_ns));
                self.keys.push(*key);
            }
        }
        rounds.next = now + BATCH_EVERY;
        self.remove_gone();
        if !matches!(is_over, Ok(false)) {
            self.round.is_open = false;
            self.round.next = now + ROUND_EVERY;
            self.round.present = self.round.seen;
        }
    }

    fn remove_gone(&mut self) {
        if !self.gone.is_empty() {
            let removed = table::remove(self.table.fd().as_fd(), &self.gone) as u64;
            self.round.removed += removed;
            self.round.seen = self.round.seen.saturating_sub(removed);
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
        let (now, ahead_ns) = (Instant::now(), wall_ahead_ns());
        self.frames.clear();
        self.counts.clear();
        self.keys.clear();
        self.fill(max.max(1), ahead_ns);
        self.read_table(now, ahead_ns);
        if self.frames.is_empty() && self.counts.is_empty() {
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
        self.gone.clear();
        let keys = &self.keys;
        let unknown = unknown.iter().filter_map(|i| keys.get(*i as usize));
        self.gone.extend(unknown.take(BATCH));
        self.remove_gone();
    }

    fn counts(&mut self) -> RxCounts {
        let counters = self.program().counters(self.worker);
        let handed_out = self.received.received;
        // Inexact by the entries that began since the last round.
        let kept = self.round.removed + self.round.present.max(self.round.seen);
        RxCounts {
            offered: counters.sent + counters.dropped,
            dropped: counters.dropped,
            waiting: counters.sent.saturating_sub(handed_out),
            is_away: self.link != Link::Up,
            counted: counters.counted,
            counted_bytes: counters.counted_bytes,
            forgotten: counters.begun.saturating_sub(kept),
            counts_in_kernel: true,
            ..self.received
        }
    }

    fn is_lost(&self) -> bool {
        self.link == Link::Gone
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        if self.round.is_open {
            return WaitHandle::Within(BATCH_EVERY);
        }
        if let Some(busy) = self.busy
            && busy.elapsed() < PAUSE
        {
            return WaitHandle::Within(PAUSE);
        }
        self.shared.words.say_asleep(self.worker as usize, true);
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

fn describe(record: &Record, at: usize, captured: usize, link: u16, ahead_ns: i64) -> Frame {
    let wall_ns = record.time_ns as i64 + ahead_ns;
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

fn flow_counts(
    key: &Key,
    packets: [u64; 2],
    bytes: [u64; 2],
    last_ns: u64,
    ahead_ns: i64,
) -> FlowCounts {
    FlowCounts {
        protocol: key.protocol,
        ends: key.ends(),
        packets,
        bytes,
        last_us: (last_ns as i64 + ahead_ns).div_euclid(1000),
    }
}

fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Wall time less the time since the machine started, ns.
fn wall_ahead_ns() -> i64 {
    let wall = clock_gettime(ClockId::Realtime);
    wall.tv_sec * 1_000_000_000 + wall.tv_nsec - boot_ns() as i64
}

/// A socket that keeps the interface promiscuous as long as it is open; it receives nothing.
fn be_promiscuous(interface: &Interface) -> Result<OwnedFd, OpenError> {
    let refused = system(&interface.name, "the promiscuous mode is refused");
    let socket = sys::packet_socket().map_err(&refused)?;
    sys::set_promiscuous(socket.as_fd(), interface.index).map_err(&refused)?;
    Ok(socket)
}
