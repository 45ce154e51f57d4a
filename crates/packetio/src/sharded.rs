//! Ports of one interface that pass frames to each other, where the source does not spread by flow.
//!
//! ```text
//! queue 0 ─ port 0 ─┬─ its own frames ──────► worker 0
//!                   └─ another's ─ batch ─┐
//! queue 1 ─ port 1 ───── its own ─────────┴─► worker 1
//! ```
//!
//! A network card spreads plain packets by addresses and ports, but what it cannot parse, such as
//! PPPoE, arbitrarily, so both directions of a flow may reach two workers. [`share`] wraps each
//! port: the wrapper finds each frame's worker and copies another worker's frames into a batch for
//! it. Frames of one queue stay in order. Batches are recycled, so nothing is allocated after
//! warm-up; if none is free, the frame stays with its port and counts as a
//! [stray](RxCounts::strays).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::batch::FrameBatch;
use crate::burst::Frame;
use crate::error::RxError;
use crate::rx::{LinkEvent, Notice, Received, Rx, RxCounts, WaitHandle};

/// Batches from each port to each other one.
const BATCHES: usize = 16;
/// Maximum frames per batch: one burst.
const BATCH_FRAMES: usize = 256;
/// Initial memory of a batch, bytes.
const BATCH_BYTES: usize = 512 * 1024;

/// Chooses the worker, of the given number, for a frame of a link type; `None`: the receiving one.
pub type Owner = Arc<dyn Fn(u16, &[u8], usize) -> Option<usize> + Send + Sync>;

/// Wraps the ports of one interface, in the order of their workers. A single port stays as it is.
///
/// # Errors
/// The system has no descriptors left.
pub fn share(ports: Vec<Box<dyn Rx>>, owner: &Owner) -> Result<Vec<Box<dyn Rx>>, std::io::Error> {
    let workers = ports.len();
    if workers < 2 {
        return Ok(ports);
    }
    let taken: Arc<Vec<AtomicU64>> = Arc::new((0..workers).map(|_| AtomicU64::new(0)).collect());
    let (full_to, full): (Vec<_>, Vec<_>) = (0..workers)
        // Room for all batches of all ports.
        .map(|_| sync_channel(BATCHES * workers * workers))
        .unzip();
    let (empty_to, empty): (Vec<_>, Vec<_>) =
        (0..workers).map(|_| sync_channel(BATCHES * workers)).unzip();
    let bells = (0..workers).map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
    let bells: Arc<Vec<OwnedFd>> = Arc::new(bells.collect::<Result<_, _>>()?);
    let ends = ports.into_iter().zip(full).zip(empty).enumerate();
    let wrapped = ends.map(|(number, ((inner, full), empty))| {
        let batches = (0..BATCHES * (workers - 1))
            .map(|_| FrameBatch::with_capacity(BATCH_FRAMES, BATCH_BYTES));
        Box::new(Sharded {
            inner,
            number,
            owner: owner.clone(),
            links: Links {
                full_to: full_to.clone(),
                full,
                empty_to: empty_to.clone(),
                empty,
                spare: batches.collect(),
                bells: bells.clone(),
            },
            filling: (0..workers).map(|_| None).collect(),
            current: None,
            frames: Vec::with_capacity(BATCH_FRAMES),
            others_first: BATCHES,
            strays: 0,
            handed_on: RxCounts::default(),
            given: RxCounts::default(),
            taken: taken.clone(),
        }) as Box<dyn Rx>
    });
    Ok(wrapped.collect())
}

/// A batch, and the port that filled it.
type From = (usize, FrameBatch);

/// The ends of the channels, by number of the port.
struct Links {
    full_to: Vec<SyncSender<From>>,
    full: Receiver<From>,
    empty_to: Vec<SyncSender<FrameBatch>>,
    empty: Receiver<FrameBatch>,
    /// Empty batches at hand.
    spare: Vec<FrameBatch>,
    /// Wakes each port's worker.
    bells: Arc<Vec<OwnedFd>>,
}

impl Links {
    fn empty_one(&mut self) -> Option<FrameBatch> {
        self.spare.pop().or_else(|| self.empty.try_recv().ok())
    }

    /// Sends a batch to another port and wakes its worker. The channel has room for all batches.
    fn give(&self, from: usize, to: usize, batch: FrameBatch) {
        if self.full_to[to].try_send((from, batch)).is_ok() {
            // Fails only if the counter is full, and then the worker is awake.
            let _ = rustix::io::write(&self.bells[to], &1_u64.to_ne_bytes());
        }
    }

    /// The next batch from another port.
    fn next(&self, number: usize) -> Option<From> {
        let found = match self.full.try_recv() {
            Err(TryRecvError::Empty) => {
                // Silence the bell, then retry for a batch sent in between.
                let _ = rustix::io::read(&self.bells[number], &mut [0_u8; 8]);
                self.full.try_recv()
            }
            found => found,
        };
        found.ok()
    }
}

/// A port that exchanges frames with the other ports of its interface.
struct Sharded {
    inner: Box<dyn Rx>,
    number: usize,
    owner: Owner,
    links: Links,
    /// Batches being filled from the current burst, by port.
    filling: Vec<Option<FrameBatch>>,
    /// The batch from another port that was handed out last.
    current: Option<From>,
    /// The port's own frames in the last burst.
    frames: Vec<Frame>,
    /// How many batches of others still precede the port's own burst, which must not starve.
    others_first: usize,
    /// Other workers' frames kept because no batch was free.
    strays: u64,
    /// Frames from other ports.
    handed_on: RxCounts,
    /// Frames given to other ports.
    given: RxCounts,
    /// By giving port, how many of these frames the others have handed out.
    taken: Arc<Vec<AtomicU64>>,
}

impl Sharded {
    /// Fetches a batch from another port; `false` if there is none.
    fn fetch(&mut self) -> bool {
        if let Some((from, mut batch)) = self.current.take() {
            batch.clear();
            // There is room for all batches of that port.
            let _ = self.links.empty_to[from].try_send(batch);
        }
        self.current = self.links.next(self.number);
        match &self.current {
            Some((from, batch)) => {
                self.taken[*from].fetch_add(batch.frames().len() as u64, Ordering::Relaxed);
                self.handed_on.count(batch.frames());
                true
            }
            None => false,
        }
    }

    /// Receives a burst of the port itself, without other workers' frames.
    fn own(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        let Sharded { inner, number, owner, links, filling, frames, strays, given, .. } = self;
        let mut burst = match inner.receive(max.clamp(1, BATCH_FRAMES))? {
            Received::Burst(burst) => burst,
            other => return Ok(other),
        };
        let workers = filling.len();
        frames.clear();
        for (i, frame) in burst.frames().iter().enumerate() {
            let bytes = burst.bytes(i);
            let to = owner(frame.link, bytes, workers).filter(|to| to != number && *to < workers);
            let batch = to.map(|to| {
                let batch = &mut filling[to];
                if batch.is_none() {
                    *batch = links.empty_one();
                }
                batch
            });
            match batch {
                None => frames.push(*frame),
                Some(Some(batch)) => batch.push(frame, bytes),
                Some(None) => {
                    *strays += 1;
                    frames.push(*frame);
                }
            }
        }
        if frames.len() == burst.len() {
            return Ok(Received::Burst(burst));
        }
        for (to, batch) in filling.iter_mut().enumerate() {
            if let Some(batch) = batch.take() {
                given.count(batch.frames());
                links.give(*number, to, batch);
            }
        }
        burst.keep(frames);
        match burst.is_empty() {
            true => Ok(Received::Nothing),
            false => Ok(Received::Burst(burst)),
        }
    }
}

impl Rx for Sharded {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.others_first > 0 && self.fetch() {
            self.others_first -= 1;
            return Ok(match &mut self.current {
                Some((_, batch)) => Received::Burst(batch.burst()),
                None => Received::Nothing,
            });
        }
        // The port's own queue has more room than the batches of others.
        self.others_first = BATCHES;
        self.own(max)
    }

    fn notify(&mut self, notice: Notice<'_>) -> bool {
        // Frames cannot be left to another process: some may be on their way to another port.
        !matches!(notice, Notice::Leave) && self.inner.notify(notice)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    /// Frames count where they are handed out; frames in between count as waiting at their
    /// receiver.
    fn counts(&mut self) -> RxCounts {
        let mut counts = self.inner.counts();
        let taken = self.taken[self.number].load(Ordering::Relaxed);
        counts.received = counts.received + self.handed_on.received - self.given.received;
        counts.bytes = counts.bytes + self.handed_on.bytes - self.given.bytes;
        // Other threads write `taken`, which may lag.
        counts.waiting += self.given.received.saturating_sub(taken);
        counts.strays = self.strays;
        counts
    }

    fn is_live(&self) -> bool {
        self.inner.is_live()
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        self.inner.link_event()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn is_failed(&self) -> bool {
        self.inner.is_failed()
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        match self.inner.wait_handle() {
            WaitHandle::Fd(fd) => WaitHandle::Either(fd, self.links.bells[self.number].as_fd()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::FrameBatch;

    const FLOWS: u32 = 50;

    /// Frames in any order on the ports: flow, number within the flow. Of odd flows the source does
    /// not see that they are one.
    fn traces(workers: usize, packets: u32, is_bursty: bool) -> Vec<FrameBatch> {
        let mut traces = vec![FrameBatch::new(); workers];
        let mut random = 7_u32;
        for number in 0..packets {
            for flow in 0..FLOWS {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // A card keeps a flow that it does not see on one queue in each direction.
                let on = match flow % 2 {
                    0 => flow as usize / 2 % workers,
                    _ if is_bursty => 0,
                    _ => (flow as usize + (number as usize & 1)) % workers,
                };
                let mut bytes = [flow.to_be_bytes(), number.to_be_bytes()].concat();
                bytes.resize(60 + (random >> 24) as usize, 0);
                let wire = bytes.len() as u32;
                traces[on].push(&Frame { wire, ..Frame::default() }, &bytes);
            }
        }
        traces
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(*bytes[at..].first_chunk().unwrap())
    }

    fn owner(_: u16, frame: &[u8], workers: usize) -> Option<usize> {
        let flow = word(frame, 0);
        (flow % 2 == 1).then_some(flow as usize % workers)
    }

    /// What each worker gets, in order.
    fn drained(workers: usize, packets: u32, is_bursty: bool) -> (Vec<Vec<(u32, u32)>>, RxCounts) {
        let traces = traces(workers, packets, is_bursty);
        let ports = traces.into_iter().map(|it| Box::new(it) as Box<dyn Rx>);
        let mut ports = share(ports.collect(), &(Arc::new(owner) as Owner)).unwrap();
        let mut got = vec![Vec::new(); workers];
        let all = (FLOWS * packets) as usize;
        while got.iter().map(Vec::len).sum::<usize>() < all {
            for (port, got) in ports.iter_mut().zip(&mut got) {
                if let Received::Burst(burst) = port.receive(33).unwrap() {
                    assert!(!burst.is_empty());
                    got.extend(
                        (0..burst.len())
                            .map(|i| (word(burst.bytes(i), 0), word(burst.bytes(i), 4))),
                    );
                }
            }
        }
        let mut sum = RxCounts::default();
        for (port, got) in ports.iter_mut().zip(&got) {
            let counts = port.counts();
            assert_eq!(counts.received, got.len() as u64);
            sum.merge(&counts);
        }
        (got, sum)
    }

    #[test]
    fn each_flow_reaches_one_worker() {
        for workers in [2, 3, 5] {
            let (got, sum) = drained(workers, 200, false);
            assert_eq!((sum.strays, sum.waiting), (0, 0));
            for (worker, got) in got.iter().enumerate() {
                for flow in 0..FLOWS {
                    let mut numbers: Vec<u32> =
                        got.iter().filter(|it| it.0 == flow).map(|it| it.1).collect();
                    let is_here = match flow % 2 {
                        0 => flow as usize / 2 % workers == worker,
                        _ => flow as usize % workers == worker,
                    };
                    assert_eq!(numbers.len(), if is_here { 200 } else { 0 }, "flow {flow}");
                    // Each direction, that is, what one queue had of the flow, keeps its order.
                    let (even, odd): (Vec<u32>, Vec<u32>) =
                        numbers.iter().partition(|it| *it % 2 == 0);
                    assert!(even.is_sorted() && odd.is_sorted());
                    numbers.sort_unstable();
                    numbers.dedup();
                    assert_eq!(numbers.len(), if is_here { 200 } else { 0 });
                }
            }
        }
    }

    #[test]
    fn a_single_port_is_left_alone() {
        let ports = share(vec![Box::new(FrameBatch::new())], &(Arc::new(owner) as Owner)).unwrap();
        assert!(matches!(ports[0].wait_handle(), WaitHandle::InReceive));
    }

    #[test]
    fn without_room_frames_stay_and_none_is_lost() {
        // The second worker takes nothing while the first one reads all that there is.
        let traces = traces(2, 4000, true);
        let ports = traces.into_iter().map(|it| Box::new(it) as Box<dyn Rx>);
        let mut ports = share(ports.collect(), &(Arc::new(owner) as Owner)).unwrap();
        let mut got = [0, 0];
        loop {
            match ports[0].receive(256).unwrap() {
                Received::Burst(burst) => got[0] += burst.len() as u64,
                Received::Nothing => {}
                Received::End => break,
            }
        }
        let counts = ports[0].counts();
        assert!(counts.strays > 0 && counts.waiting > 0, "{counts:?}");
        assert_eq!(counts.received, got[0]);
        let bell = ports[1].wait_handle();
        assert!(matches!(bell, WaitHandle::InReceive), "a port of memory waits by itself");
        let mut ended = 0;
        while ended < 3 {
            match ports[1].receive(256).unwrap() {
                Received::Burst(burst) => got[1] += burst.len() as u64,
                Received::Nothing => {}
                Received::End => ended += 1,
            }
        }
        assert_eq!(got[0] + got[1], u64::from(FLOWS) * 4000);
        assert_eq!(ports[0].counts().waiting + ports[1].counts().waiting, 0);
    }
}
