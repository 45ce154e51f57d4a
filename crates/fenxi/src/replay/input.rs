//! Where a flow manager's frames come from: straight from the captures, or, where there are several flow managers, from
//! the one thread that reads them.
//!
//! ```text
//! captures ─ reader ─ RSS hash ─┬─ parcels ─► lane 0
//!                ▲              └─ parcels ─► lane 1
//!                └── emptied parcels ───────────┘
//! ```
//!
//! A parcel is what one read had for one lane: its frames, with a copy of their bytes. Parcels go round, so that after the
//! first ones nothing is allocated; a reader that finds no empty one waits, and so does not run away from its lanes. No
//! lane waits for another one, so all parcels come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use flowmgr::Rss;
use packetio::{Burst, Frame};

use super::source::{Received, Source};
use crate::exit::Failure;

/// Parcels that a lane has, full and empty.
const PARCELS: usize = 32;

/// Frames that the reader takes at a time, at most.
const READ: usize = 512;

/// How long a lane waits for frames before it looks after its labels.
const SILENCE: Duration = Duration::from_millis(1);

/// The frames of one lane.
pub enum Input {
    /// The captures themselves: there is one lane.
    Captures(Box<Source>),
    /// Its share.
    Parcels(Parcels),
}

impl Input {
    /// The next frames, at most `max`.
    ///
    /// # Errors
    /// A capture is damaged or cannot be read; what came before was handed out.
    pub fn receive(&mut self, max: usize) -> Result<Received<'_>, Failure> {
        match self {
            Input::Captures(source) => source.receive(max),
            Input::Parcels(parcels) => Ok(parcels.receive(max)),
        }
    }
}

/// Frames with their bytes.
#[derive(Default)]
struct Parcel {
    data: Vec<u8>,
    frames: Vec<Frame>,
}

impl Parcel {
    fn push(&mut self, frame: Frame, bytes: &[u8]) {
        let at = self.data.len();
        self.data.extend_from_slice(bytes);
        self.frames.push(Frame { at, ..frame });
    }

    fn clear(&mut self) {
        self.data.clear();
        self.frames.clear();
    }
}

/// A lane's end of its parcels.
pub struct Parcels {
    full: Receiver<Parcel>,
    empty: Sender<Parcel>,
    parcel: Parcel,
    /// Frames of it that were handed out.
    taken: usize,
}

impl Parcels {
    fn receive(&mut self, max: usize) -> Received<'_> {
        if self.taken == self.parcel.frames.len() {
            let next = match self.full.recv_timeout(SILENCE) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) => return Received::Nothing,
                Err(RecvTimeoutError::Disconnected) => return Received::End,
            };
            let mut emptied = std::mem::replace(&mut self.parcel, next);
            emptied.clear();
            // There is room for all parcels; a reader that has ended needs none.
            let _ = self.empty.try_send(emptied);
            self.taken = 0;
        }
        let from = self.taken;
        self.taken = self.parcel.frames.len().min(from + max);
        let frames = &self.parcel.frames[from..self.taken];
        Received::Burst(Burst::new(&mut self.parcel.data, frames), 0)
    }
}

/// The reader's end of one lane's parcels.
struct Lane {
    full: Sender<Parcel>,
    empty: Receiver<Parcel>,
    /// What the current read has for the lane so far.
    filling: Option<Parcel>,
}

/// The lane has ended before its input.
struct LaneGone;

impl Lane {
    fn push(&mut self, frame: Frame, bytes: &[u8]) -> Result<(), LaneGone> {
        let parcel = match &mut self.filling {
            Some(parcel) => parcel,
            filling => filling.insert(self.empty.recv().map_err(|_| LaneGone)?),
        };
        parcel.push(frame, bytes);
        Ok(())
    }

    fn send(&mut self) -> Result<(), LaneGone> {
        match self.filling.take() {
            Some(parcel) => self.full.send(parcel).map_err(|_| LaneGone),
            None => Ok(()),
        }
    }
}

fn lane() -> (Lane, Parcels) {
    let (full, parcels) = bounded(PARCELS);
    let (emptied, empty) = bounded(PARCELS);
    for _ in 1..PARCELS {
        let _ = emptied.try_send(Parcel::default());
    }
    let ours = Lane {
        full,
        empty,
        filling: None,
    };
    let theirs = Parcels {
        full: parcels,
        empty: emptied,
        parcel: Parcel::default(),
        taken: 0,
    };
    (ours, theirs)
}

/// The thread that reads the captures for several lanes; it ends with them.
pub type Reader = JoinHandle<Result<(), Failure>>;

/// Inputs for so many lanes, and the thread that fills them if there is more than one. `stop` ends it early, and is raised
/// where a lane ends before its input.
///
/// # Errors
/// No thread.
pub fn inputs(
    source: Source,
    lanes: usize,
    stop: Arc<AtomicBool>,
) -> Result<(Vec<Input>, Option<Reader>), Failure> {
    if lanes == 1 {
        return Ok((vec![Input::Captures(Box::new(source))], None));
    }
    let (ours, theirs): (Vec<Lane>, Vec<Parcels>) = (0..lanes).map(|_| lane()).unzip();
    let reader = std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || read(source, ours, &stop))
        .map_err(|error| Failure::unavailable(format!("no thread for the captures: {error}")))?;
    Ok((
        theirs.into_iter().map(Input::Parcels).collect(),
        Some(reader),
    ))
}

/// Reads to the end, and spreads the frames over the lanes.
fn read(mut source: Source, mut lanes: Vec<Lane>, stop: &AtomicBool) -> Result<(), Failure> {
    let rss = Rss::new();
    while !stop.load(Ordering::Relaxed) {
        match source.receive(READ)? {
            Received::Burst(burst, shift_us) => {
                if spread(&burst, shift_us, &rss, &mut lanes).is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Received::Nothing => {}
            Received::End => break,
        }
    }
    Ok(())
}

fn spread(burst: &Burst<'_>, shift_us: i64, rss: &Rss, lanes: &mut [Lane]) -> Result<(), LaneGone> {
    let queues = lanes.len();
    for (i, frame) in burst.frames().iter().enumerate() {
        let bytes = burst.bytes(i);
        let hash = rss.hash(frame.link, bytes);
        let frame = Frame {
            time_us: frame.time_us.saturating_add(shift_us),
            rss: hash,
            ..*frame
        };
        lanes[Rss::queue(hash, queues)].push(frame, bytes)?;
    }
    // At once, for the next read may have to wait.
    lanes.iter_mut().try_for_each(Lane::send)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(time_us: i64) -> Frame {
        Frame {
            time_us,
            captured: 2,
            ..Frame::default()
        }
    }

    /// The frames that are there: times and bytes, and the sizes of the bursts.
    fn taken(parcels: &mut Parcels, max: usize) -> (Vec<(i64, Vec<u8>)>, Vec<usize>) {
        let (mut frames, mut sizes) = (Vec::new(), Vec::new());
        while let Received::Burst(burst, shift_us) = parcels.receive(max) {
            assert_eq!(shift_us, 0);
            sizes.push(burst.len());
            for (i, frame) in burst.frames().iter().enumerate() {
                frames.push((frame.time_us, burst.bytes(i).to_vec()));
            }
        }
        (frames, sizes)
    }

    #[test]
    fn parcels_carry_frames_in_order_and_go_round() {
        let (mut ours, mut theirs) = lane();
        for round in 0..3 * PARCELS as i64 {
            for i in 0..3 {
                assert!(
                    ours.push(frame(round * 3 + i), &[round as u8, i as u8])
                        .is_ok()
                );
            }
            assert!(ours.send().is_ok());
            let (frames, sizes) = taken(&mut theirs, 2);
            assert_eq!(sizes, [2, 1]);
            let expected = (0..3).map(|i| (round * 3 + i, vec![round as u8, i as u8]));
            assert!(frames.into_iter().eq(expected), "round {round}");
        }
        assert!(matches!(theirs.receive(1), Received::Nothing));
        drop(ours);
        assert!(matches!(theirs.receive(1), Received::End));
    }

    #[test]
    fn a_reader_learns_that_its_lane_has_gone() {
        let (mut ours, theirs) = lane();
        assert!(ours.push(frame(0), &[0, 0]).is_ok());
        drop(theirs);
        assert!(ours.send().is_err());
        // What is still on its way back is used up first.
        let pushed = (0..PARCELS).map(|_| {
            ours.filling = None;
            ours.push(frame(1), &[1, 1])
        });
        assert!(pushed.collect::<Result<Vec<_>, _>>().is_err());
    }
}
