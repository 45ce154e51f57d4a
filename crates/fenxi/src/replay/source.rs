//! The captures of a replay, one after the other, as often as asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use packetio::{Burst, CaptureReader, FaultRates, Faults, Frame, OpenError, Port};

use crate::cli;
use crate::exit::Failure;

/// What a source of frames has.
pub enum Received<'a> {
    /// Frames, and what to add to their times, µs.
    Burst(Burst<'a>, i64),
    /// Nothing at the moment.
    Nothing,
    /// Nothing any more.
    End,
}

/// The captures, as one sequence of bursts.
pub struct Source {
    files: Vec<PathBuf>,
    /// Index of the file that is open.
    at: usize,
    /// It was read to its end.
    file_ended: bool,
    port: Faults<CaptureReader>,
    faults: Option<cli::FaultRates>,
    loops_left: u32,
    /// Added to every time of this pass, so that time goes on from pass to pass.
    shift_us: i64,
    /// Earliest and latest time of this pass, without the shift.
    span_us: Option<(i64, i64)>,
    /// Bytes of the files before this one, for the progress.
    read_before: u64,
    progress: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Source {
    /// Opens the first file and looks whether the others can be opened. `progress`
    /// gets the bytes read; `stop` ends a pipe that is silent.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(
        files: Vec<PathBuf>,
        loops: u32,
        faults: Option<cli::FaultRates>,
        progress: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
    ) -> Result<Source, Failure> {
        for file in files.iter().skip(1) {
            open(file)?;
        }
        Ok(Source {
            port: with_faults(stoppable(&files[0], &stop)?, faults),
            files,
            at: 0,
            file_ended: false,
            faults,
            loops_left: loops - 1,
            shift_us: 0,
            span_us: None,
            read_before: 0,
            progress,
            stop,
        })
    }

    /// The next burst; nothing where a file has ended and another one begins.
    ///
    /// # Errors
    /// A file is damaged or cannot be read; what came before was handed out.
    pub fn receive(&mut self, max: usize) -> Result<Received<'_>, Failure> {
        if self.file_ended {
            self.file_ended = false;
            return Ok(match self.advance()? {
                true => Received::Nothing,
                false => Received::End,
            });
        }
        let read = self.read_before + self.port.inner().position();
        self.progress.store(read, Ordering::Relaxed);
        match self.port.receive(max) {
            Ok(Some(burst)) => {
                if self.loops_left > 0 {
                    widen(&mut self.span_us, burst.frames());
                }
                return Ok(Received::Burst(burst, self.shift_us));
            }
            Ok(None) => {}
            // What was cut off by the stop is not the file's fault.
            Err(_) if self.stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(error.into()),
        }
        self.file_ended = true;
        Ok(Received::Nothing)
    }

    /// Opens the next file, or the first one again; false at the end of all.
    ///
    /// # Errors
    /// The file cannot be opened.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.read_before += self.port.inner().position();
        self.at += 1;
        if self.at == self.files.len() {
            if self.loops_left == 0 {
                return Ok(false);
            }
            self.loops_left -= 1;
            self.at = 0;
            if let Some((first_us, last_us)) = self.span_us {
                let pass_us = last_us.saturating_sub(first_us).saturating_add(1);
                self.shift_us = self.shift_us.saturating_add(pass_us);
            }
        }
        self.port = with_faults(stoppable(&self.files[self.at], &self.stop)?, self.faults);
        Ok(true)
    }
}

/// All bytes of the files, where that is known.
pub fn size_of(files: &[PathBuf], loops: u32) -> Option<u64> {
    let mut bytes = 0;
    for file in files {
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
        bytes += metadata.len();
    }
    Some(bytes * u64::from(loops))
}

fn open(file: &Path) -> Result<CaptureReader, Failure> {
    CaptureReader::open(file).map_err(|error: OpenError| Failure::no_input(error.to_string()))
}

fn stoppable(file: &Path, stop: &Arc<AtomicBool>) -> Result<CaptureReader, Failure> {
    let reader = open(file)?.stopped_by(stop.clone());
    reader.map_err(|error| Failure::unavailable(format!("no thread for the input: {error}")))
}

fn with_faults(reader: CaptureReader, faults: Option<cli::FaultRates>) -> Faults<CaptureReader> {
    let rates = faults.map_or(FaultRates::default(), |faults| FaultRates {
        loss: faults.loss,
        truncation: faults.truncate,
        corruption: faults.corrupt,
    });
    Faults::new(reader, rates, faults.map_or(0, |faults| faults.seed))
}

fn widen(span_us: &mut Option<(i64, i64)>, frames: &[Frame]) {
    for frame in frames {
        let (first_us, last_us) = span_us.unwrap_or((frame.time_us, frame.time_us));
        *span_us = Some((first_us.min(frame.time_us), last_us.max(frame.time_us)));
    }
}
