//! Reads lines one at a time, so that memory is bounded by the longest line, not the file.

use std::io::{self, BufRead, BufReader, Read};

use crate::error::Problem;
use crate::limits::LINE_MAX;

pub struct Lines<R> {
    reader: BufReader<R>,
    buffer: Vec<u8>,
    number: u32,
}

/// Why there is no next line.
pub enum LineError {
    Io(io::Error),
    Wrong(Problem),
}

impl<R: Read> Lines<R> {
    pub fn new(file: R) -> Lines<R> {
        Lines { reader: BufReader::with_capacity(1 << 16, file), buffer: Vec::new(), number: 0 }
    }

    /// Number of the last line read, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The next line that is neither empty nor a comment, trimmed; `None` at the end.
    pub fn next(&mut self) -> Result<Option<&str>, LineError> {
        loop {
            self.buffer.clear();
            self.number = self.number.saturating_add(1);
            let mut limited = (&mut self.reader).take(LINE_MAX as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.buffer);
            match read.map_err(LineError::Io)? {
                0 => return Ok(None),
                length if length > LINE_MAX => return Err(LineError::Wrong(Problem::LineTooLong)),
                _ => {}
            }
            if self.number == 1 && self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.drain(..3);
            }
            let line = self.buffer.trim_ascii();
            if !line.is_empty() && !line.starts_with(b"#") {
                break;
            }
        }
        let line = std::str::from_utf8(self.buffer.trim_ascii());
        line.map(Some).map_err(|_| LineError::Wrong(Problem::NotUtf8))
    }

    /// The first non-space byte, without consuming it.
    pub fn peek(&mut self) -> io::Result<Option<u8>> {
        let buffered = self.reader.fill_buf()?;
        Ok(buffered.iter().copied().find(|byte| !byte.is_ascii_whitespace()))
    }

    /// The remaining bytes, at most `most` + 1.
    pub fn rest(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        (&mut self.reader).take(most + 1).read_to_end(&mut all)?;
        Ok(all)
    }
}
