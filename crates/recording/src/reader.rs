//! Reads the events of a recording, up to the last whole one.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use thiserror::Error;

use super::event::{BODY_MAX, Event, MAGIC, VERSION, checksum};

/// Why there are no more events.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("this is no recording: it does not begin with FENXIREC")]
    Magic,
    #[error("its format is version {0}; this fenxi reads version {VERSION}")]
    Version(u32),
    #[error(
        "damaged: event {number}, at byte {at}: {why}; copy the recording once more from where it \
         was made"
    )]
    Damaged { number: u64, at: u64, why: String },
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum Next {
    Event(Event<'static>),
    /// The file ends behind a whole event.
    End,
    /// It ends within one.
    Torn,
}

pub struct Reader<R> {
    input: R,
    /// Bytes read.
    offset: u64,
    /// Offset of the last event.
    pub at: u64,
    /// Its number, from 1.
    pub number: u64,
}

/// Opens the file and reads its head.
pub fn open(path: &Path) -> Result<Reader<BufReader<File>>, ReadError> {
    Reader::new(BufReader::with_capacity(1 << 16, File::open(path)?))
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> Result<Reader<R>, ReadError> {
        let mut reader = Reader { input, offset: 0, at: 0, number: 0 };
        let mut head = [0; 12];
        let read = reader.fill(&mut head)?;
        if read < head.len() || head[..8] != *MAGIC {
            return Err(ReadError::Magic);
        }
        match u32::from_le_bytes([head[8], head[9], head[10], head[11]]) {
            VERSION => Ok(reader),
            version => Err(ReadError::Version(version)),
        }
    }

    pub fn next(&mut self) -> Result<Next, ReadError> {
        self.at = self.offset;
        let Some(length) = self.length()? else {
            return Ok(if self.offset == self.at { Next::End } else { Next::Torn });
        };
        self.number += 1;
        if length == 0 || length > BODY_MAX as u64 {
            return Err(self.damaged(format!("it has {length} bytes")));
        }
        let mut body = Vec::new();
        let length = length + 4;
        let read = (&mut self.input).take(length).read_to_end(&mut body)?;
        self.offset += read as u64;
        if (read as u64) < length {
            self.number -= 1;
            return Ok(Next::Torn);
        }
        let sum = body.split_off(read - 4);
        if checksum(&body).to_le_bytes() != sum[..] {
            return Err(self.damaged("its checksum differs".to_owned()));
        }
        match Event::decode(&body) {
            Ok(event) => Ok(Next::Event(event)),
            Err(why) => Err(self.damaged(why)),
        }
    }

    /// An event's length; none where the file ends before or within it.
    fn length(&mut self) -> Result<Option<u64>, ReadError> {
        let mut length = 0;
        for shift in [0, 7, 14, 21, 28] {
            let mut byte = [0];
            if self.fill(&mut byte)? == 0 {
                return Ok(None);
            }
            length |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(Some(length));
            }
        }
        // Too long for any event.
        Ok(Some(u64::MAX))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, ReadError> {
        let mut read = 0;
        while read < bytes.len() {
            match self.input.read(&mut bytes[read..]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.offset += read as u64;
        Ok(read)
    }

    fn damaged(&self, why: String) -> ReadError {
        ReadError::Damaged { number: self.number, at: self.at, why }
    }
}
