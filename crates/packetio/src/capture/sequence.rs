//! Several captures as one port: one after the other, repeated as requested.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::CaptureReader;
use crate::burst::Frame;
use crate::error::{OpenError, RxError, RxErrorKind};
use crate::faults::{FaultRates, Faults};
use crate::rx::{Received, Rx, RxCounts};

/// Settings of a [`Sequence`].
#[derive(Clone, Debug)]
pub struct SequenceSettings {
    /// The files, at least one; `-` is the standard input.
    pub files: Vec<PathBuf>,
    /// Passes over all files, at least one. Each pass begins one microsecond after the latest time
    /// in the pass before.
    pub loops: u32,
    /// Faults to inject, the same in each file.
    pub faults: FaultRates,
    /// Seed of the faults.
    pub seed: u64,
}

/// Captures, read as one sequence of bursts.
#[derive(Debug)]
pub struct Sequence {
    settings: SequenceSettings,
    /// Index of the open file.
    at: usize,
    /// The file was read to its end.
    file_ended: bool,
    port: Faults<CaptureReader>,
    loops_left: u32,
    /// Added to every time of this pass, µs.
    shift_us: i64,
    /// Earliest and latest time of the first pass.
    span_us: Option<(i64, i64)>,
    counts: RxCounts,
    /// Bytes of the previous files.
    read_before: u64,
    read: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Sequence {
    /// Opens the first file and checks that the others can be opened. `read` gets the bytes read so
    /// far; `stop`, once raised, ends a silent pipe.
    ///
    /// # Errors
    /// A file cannot be opened, there is none, or no thread can be started to read a pipe.
    pub fn open(
        settings: SequenceSettings,
        read: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, RxError> {
        let Some((first, others)) = settings.files.split_first() else {
            return Err(RxError::new(RxErrorKind::NoInput, "no capture is named"));
        };
        for file in others {
            CaptureReader::open(file)?;
        }
        let reader = stoppable(first, &stop)?;
        Ok(Self {
            port: Faults::new(reader, settings.faults, settings.seed),
            at: 0,
            file_ended: false,
            loops_left: settings.loops.saturating_sub(1),
            shift_us: 0,
            span_us: None,
            counts: RxCounts::default(),
            read_before: 0,
            read,
            stop,
            settings,
        })
    }

    /// Bytes of all files in all passes; `None` with pipes.
    pub fn size(settings: &SequenceSettings) -> Option<u64> {
        let mut bytes = 0;
        for file in &settings.files {
            let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
            bytes += metadata.len();
        }
        Some(bytes * u64::from(settings.loops))
    }

    /// Opens the next file, or the first one again; `false` at the end.
    fn open_next(&mut self) -> Result<bool, RxError> {
        self.read_before += self.port.inner().position();
        self.at += 1;
        if self.at == self.settings.files.len() {
            if self.loops_left == 0 {
                return Ok(false);
            }
            self.loops_left -= 1;
            self.at = 0;
            self.start_next_pass();
        }
        let file = &self.settings.files[self.at];
        let reader = stoppable(file, &self.stop)?.shifted_by(self.shift_us);
        self.port = Faults::new(reader, self.settings.faults, self.settings.seed);
        Ok(true)
    }

    fn start_next_pass(&mut self) {
        if let Some((first_us, last_us)) = self.span_us {
            let pass_us = last_us.saturating_sub(first_us).saturating_add(1);
            self.shift_us = self.shift_us.saturating_add(pass_us);
        }
    }
}

impl Rx for Sequence {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if self.file_ended {
            self.file_ended = false;
            return Ok(match self.open_next()? {
                true => Received::Nothing,
                false => Received::End,
            });
        }
        let read = self.read_before + self.port.inner().position();
        self.read.store(read, Ordering::Relaxed);
        match self.port.receive(max) {
            Ok(Received::Burst(burst)) => {
                self.counts.count(burst.frames());
                // Only the first pass, without a shift, measures; all have the same length.
                if self.loops_left > 0 && self.shift_us == 0 {
                    widen(&mut self.span_us, burst.frames());
                }
                return Ok(Received::Burst(burst));
            }
            Ok(Received::Nothing) => return Ok(Received::Nothing),
            Ok(Received::End) => {}
            // The stop may have truncated the file.
            Err(_) if self.stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(error),
        }
        self.file_ended = true;
        Ok(Received::Nothing)
    }

    /// The current file.
    fn name(&self) -> &str {
        self.port.name()
    }

    fn counts(&mut self) -> RxCounts {
        self.counts
    }
}

fn stoppable(file: &Path, stop: &Arc<AtomicBool>) -> Result<CaptureReader, RxError> {
    let reader = CaptureReader::open(file)?.stopped_by(stop.clone());
    reader.map_err(|error| {
        let message = format!("no thread for the input: {error}");
        RxError::new(RxErrorKind::Unavailable, message)
    })
}

impl From<OpenError> for RxError {
    fn from(error: OpenError) -> Self {
        Self::new(RxErrorKind::NoInput, error)
    }
}

fn widen(span_us: &mut Option<(i64, i64)>, frames: &[Frame]) {
    for frame in frames {
        let (first_us, last_us) = span_us.unwrap_or((frame.time_us, frame.time_us));
        *span_us = Some((first_us.min(frame.time_us), last_us.max(frame.time_us)));
    }
}
