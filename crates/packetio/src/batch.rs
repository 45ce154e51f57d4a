//! Frames that own their bytes, and a channel that spreads a port's frames over several threads.
//!
//! ```text
//! port ─ reader ─ which receiver? ─┬─ batches ─► BatchRx 0
//!           ▲                      └─ batches ─► BatchRx 1
//!           └─────── emptied batches ──────────────┘
//! ```
//!
//! A batch holds the frames of one read for one receiver, with a copy of their bytes. Batches are
//! recycled, so nothing is allocated after warm-up; a reader that finds no empty batch waits, so it
//! cannot outrun its receivers. Receivers never wait for each other, so all batches come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::burst::{Burst, Frame};
use crate::error::RxError;
use crate::rx::{Received, Rx, RxCounts, wait};

/// Batches of a channel, full and empty.
const BATCHES: usize = 32;

/// Maximum frames per read.
const READ: usize = 512;

/// How long a receiver waits for a batch before it returns to other work.
const SILENCE: Duration = Duration::from_millis(1);

/// How often a sleeping reader checks `stop`.
const STOP_WITHIN: Duration = Duration::from_millis(20);

/// Frames with their bytes. As a port it hands each out once.
#[derive(Clone, Debug, Default)]
pub struct FrameBatch {
    data: Vec<u8>,
    frames: Vec<Frame>,
    /// Frames handed out.
    taken: usize,
    counts: RxCounts,
}

impl FrameBatch {
    /// An empty batch, without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with memory for `frames` frames and `bytes` bytes in total.
    pub(crate) fn with_capacity(frames: usize, bytes: usize) -> Self {
        Self {
            data: Vec::with_capacity(bytes),
            frames: Vec::with_capacity(frames),
            ..Self::default()
        }
    }

    /// Adds a frame with these bytes; `frame.at` and `frame.captured` are ignored.
    pub fn push(&mut self, frame: &Frame, bytes: &[u8]) {
        self.frames.push(Frame {
            at: self.data.len(),
            captured: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            ..*frame
        });
        self.data.extend_from_slice(bytes);
    }

    /// Removes all frames; keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.frames.clear();
        self.taken = 0;
    }

    /// All frames, in order.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The frames that were not handed out.
    pub fn left(&self) -> &[Frame] {
        &self.frames[self.taken..]
    }

    /// All frames, as a burst.
    pub fn burst(&mut self) -> Burst<'_> {
        Burst::new(&mut self.data, &self.frames)
    }

    /// Hands out the next `max` frames, or as many as are left.
    pub fn take(&mut self, max: usize) -> Burst<'_> {
        let from = self.taken;
        self.taken = self.frames.len().min(from.saturating_add(max));
        let frames = &self.frames[from..self.taken];
        self.counts.count(frames);
        Burst::new(&mut self.data, frames)
    }
}

impl Rx for FrameBatch {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        Ok(match self.left().is_empty() {
            true => Received::End,
            false => Received::Burst(self.take(max.max(1))),
        })
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

/// The receiving end of a channel. Ends once its sender is gone and all frames were handed out.
#[derive(Debug)]
pub struct BatchRx {
    full: Receiver<FrameBatch>,
    empty: SyncSender<FrameBatch>,
    batch: FrameBatch,
    counts: RxCounts,
}

impl Rx for BatchRx {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.batch.left().is_empty() {
            let next = match self.full.recv_timeout(SILENCE) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) => return Ok(Received::Nothing),
                Err(RecvTimeoutError::Disconnected) => return Ok(Received::End),
            };
            let mut emptied = std::mem::replace(&mut self.batch, next);
            emptied.clear();
            // There is room for all batches; if the reader has ended, the batch is dropped.
            let _ = self.empty.try_send(emptied);
        }
        let burst = self.batch.take(max.max(1));
        self.counts.count(burst.frames());
        Ok(Received::Burst(burst))
    }

    fn name(&self) -> &str {
        "batches"
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

/// The sending end of a channel of batches.
#[derive(Debug)]
pub struct BatchSender {
    full: SyncSender<FrameBatch>,
    empty: Receiver<FrameBatch>,
    /// Frames pushed since the last send.
    filling: Option<FrameBatch>,
}

/// The receiving end was dropped before its input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody receives the frames any more")]
pub struct ReceiverGone;

impl BatchSender {
    /// Appends a frame to the current batch. Waits for an empty batch if necessary.
    ///
    /// # Errors
    /// The receiving end is gone.
    pub fn push(&mut self, frame: &Frame, bytes: &[u8]) -> Result<(), ReceiverGone> {
        let batch = match &mut self.filling {
            Some(batch) => batch,
            filling => filling.insert(self.empty.recv().map_err(|_| ReceiverGone)?),
        };
        batch.push(frame, bytes);
        Ok(())
    }

    /// Sends the pushed frames.
    ///
    /// # Errors
    /// The receiving end is gone.
    pub fn send(&mut self) -> Result<(), ReceiverGone> {
        match self.filling.take() {
            Some(batch) => self.full.send(batch).map_err(|_| ReceiverGone),
            None => Ok(()),
        }
    }
}

/// A channel of batches.
pub fn channel() -> (BatchSender, BatchRx) {
    let (full, batches) = sync_channel(BATCHES);
    let (emptied, empty) = sync_channel(BATCHES);
    for _ in 1..BATCHES {
        let _ = emptied.try_send(FrameBatch::new());
    }
    let sender = BatchSender { full, empty, filling: None };
    let receiver = BatchRx {
        full: batches,
        empty: emptied,
        batch: FrameBatch::new(),
        counts: RxCounts::default(),
    };
    (sender, receiver)
}

/// Reads a port to its end. `steer` chooses for each frame an index of `senders` and its
/// [`Frame::rss`]. Ends early once `stop` is raised, and raises `stop` if a receiver disappears.
///
/// # Errors
/// The port fails; the frames before were sent.
pub fn spread(
    rx: &mut dyn Rx,
    mut senders: Vec<BatchSender>,
    mut steer: impl FnMut(&Frame, &[u8]) -> (usize, Option<u32>),
    stop: &AtomicBool,
) -> Result<(), RxError> {
    while !stop.load(Ordering::Relaxed) {
        match rx.receive(READ)? {
            Received::Burst(burst) => {
                if spread_burst(&burst, &mut senders, &mut steer).is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Received::Nothing => wait([&*rx], None, STOP_WITHIN),
            Received::End => break,
        }
    }
    Ok(())
}

fn spread_burst(
    burst: &Burst<'_>,
    senders: &mut [BatchSender],
    steer: &mut impl FnMut(&Frame, &[u8]) -> (usize, Option<u32>),
) -> Result<(), ReceiverGone> {
    for (i, frame) in burst.frames().iter().enumerate() {
        let bytes = burst.bytes(i);
        let (receiver, rss) = steer(frame, bytes);
        senders[receiver].push(&Frame { rss, ..*frame }, bytes)?;
    }
    // Now, because the next read may block.
    senders.iter_mut().try_for_each(BatchSender::send)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(time_us: i64) -> Frame {
        Frame { time_us, captured: 2, ..Frame::default() }
    }

    /// The frames that are there: times and bytes, and the sizes of the bursts.
    fn taken(batches: &mut BatchRx, max: usize) -> (Vec<(i64, Vec<u8>)>, Vec<usize>) {
        let (mut frames, mut sizes) = (Vec::new(), Vec::new());
        while let Received::Burst(burst) = batches.receive(max).unwrap() {
            sizes.push(burst.len());
            for (i, frame) in burst.frames().iter().enumerate() {
                frames.push((frame.time_us, burst.bytes(i).to_vec()));
            }
        }
        (frames, sizes)
    }

    #[test]
    fn batches_carry_frames_in_order_and_go_round() {
        let (mut ours, mut theirs) = channel();
        for round in 0..3 * BATCHES as i64 {
            for i in 0..3 {
                assert!(ours.push(&frame(round * 3 + i), &[round as u8, i as u8]).is_ok());
            }
            assert!(ours.send().is_ok());
            let (frames, sizes) = taken(&mut theirs, 2);
            assert_eq!(sizes, [2, 1]);
            let expected = (0..3).map(|i| (round * 3 + i, vec![round as u8, i as u8]));
            assert!(frames.into_iter().eq(expected), "round {round}");
        }
        assert!(matches!(theirs.receive(1), Ok(Received::Nothing)));
        drop(ours);
        assert!(matches!(theirs.receive(1), Ok(Received::End)));
        assert_eq!(theirs.counts().received, 9 * BATCHES as u64);
    }

    #[test]
    fn a_reader_learns_that_its_receiver_has_gone() {
        let (mut ours, theirs) = channel();
        assert!(ours.push(&frame(0), &[0, 0]).is_ok());
        drop(theirs);
        assert!(ours.send().is_err());
        // What is still on its way back is used up first.
        let pushed = (0..BATCHES).map(|_| {
            ours.filling = None;
            ours.push(&frame(1), &[1, 1])
        });
        assert!(pushed.collect::<Result<Vec<_>, _>>().is_err());
    }

    #[test]
    fn each_frame_reaches_the_receiver_chosen_for_it() {
        let mut trace = FrameBatch::new();
        for i in 0..100 {
            trace.push(&frame(i), &[i as u8, 0]);
        }
        let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| channel()).unzip();
        let stop = AtomicBool::new(false);
        let steer = |_: &Frame, bytes: &[u8]| (usize::from(bytes[0]) % 3, Some(7));
        spread(&mut trace, senders, steer, &stop).unwrap();
        for (i, receiver) in receivers.iter_mut().enumerate() {
            let mut times = Vec::new();
            while let Received::Burst(burst) = receiver.receive(8).unwrap() {
                assert!(burst.frames().iter().all(|frame| frame.rss == Some(7)));
                times.extend(burst.frames().iter().map(|frame| frame.time_us));
            }
            assert!(times.into_iter().eq((0..100).filter(|time| time % 3 == i as i64)));
        }
        assert!(!stop.load(Ordering::Relaxed));
    }

    #[test]
    fn a_batch_hands_out_its_frames_in_order_and_in_bursts() {
        let mut batch = FrameBatch::new();
        for i in 0..5 {
            batch.push(&frame(10 * i), &vec![i as u8; i as usize]);
        }
        let (mut frames, mut sizes) = (Vec::new(), Vec::new());
        while let Received::Burst(burst) = batch.receive(2).unwrap() {
            sizes.push(burst.len());
            for (i, frame) in burst.frames().iter().enumerate() {
                frames.push((frame.time_us, burst.bytes(i).to_vec()));
            }
        }
        assert_eq!(sizes, [2, 2, 1]);
        assert!(frames.into_iter().eq((0..5).map(|i| (10 * i, vec![i as u8; i as usize]))));
        assert_eq!(Rx::counts(&mut batch).received, 5);
        batch.clear();
        assert!(matches!(batch.receive(1), Ok(Received::End)));
    }
}
