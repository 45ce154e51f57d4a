//! A source that can be stopped while it is silent. A read of a silent pipe cannot be interrupted,
//! so a separate thread reads, and is abandoned when the source is stopped.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use super::gunzip::read_some;

/// Bytes per read: a pipe's capacity.
const CHUNK: usize = 64 * 1024;
/// Chunks in the channel.
const CHUNKS: usize = 4;
/// How often `stop` is checked.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(50);

/// A reader that ends once `stop` is raised.
pub(super) struct Stoppable {
    /// A chunk without bytes is the end.
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    /// Bytes of the chunk already returned.
    taken: usize,
    stop: Arc<AtomicBool>,
}

impl Stoppable {
    /// Reads `source` until `stop` is raised.
    pub fn new(mut source: Box<dyn Read + Send>, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(CHUNKS);
        let reads = move || {
            loop {
                let mut chunk = vec![0; CHUNK];
                let read = read_some(&mut *source, &mut chunk).map(|count| {
                    chunk.truncate(count);
                    chunk
                });
                let is_last = read.as_ref().map_or(true, Vec::is_empty);
                if sender.send(read).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("input".to_owned()).spawn(reads)?;
        Ok(Self { chunks, chunk: Vec::new(), taken: 0, stop })
    }
}

impl Read for Stoppable {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.chunk.len() {
            match self.chunks.recv_timeout(STOP_CHECK_EVERY) {
                Ok(chunk) => (self.chunk, self.taken) = (chunk?, 0),
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::Relaxed) => continue,
                Err(_) => return Ok(0),
            }
            if self.chunk.is_empty() {
                return Ok(0);
            }
        }
        let left = &self.chunk[self.taken..];
        let count = left.len().min(room.len());
        room[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stoppable(source: impl Read + Send + 'static, is_stopped: bool) -> Stoppable {
        Stoppable::new(Box::new(source), Arc::new(AtomicBool::new(is_stopped))).unwrap()
    }

    #[test]
    fn gives_what_the_source_gives() {
        let bytes: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        let mut read = Vec::new();
        let mut reader = stoppable(io::Cursor::new(bytes.clone()), false);
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_silent_source_ends_when_told_to() {
        let (silent, _writer) = io::pipe().unwrap();
        assert_eq!(stoppable(silent, true).read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn an_error_is_handed_on() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let error = stoppable(Broken, false).read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
