//! Streaming gzip. Source: RFC 1952.
//!
//! It handles members itself, on the inflater, because of the end: everything that can be unpacked
//! from a truncated or corrupt stream must come out before the error, and anything but another
//! member after a complete one is no error.
//!
//! The inflater is zlib-rs because it refuses exactly what zlib refuses; miniz_oxide accepts some
//! corrupt streams and returns wrong bytes.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// The first two bytes of every member.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Binary logarithm of the largest window a stream may use.
const WINDOW_BITS: u8 = 15;
/// Bytes per read.
const INPUT: usize = 64 * 1024;

/// Unpacks a file of one or more members.
#[derive(Debug)]
pub(super) struct Gunzip {
    input: Vec<u8>,
    /// Bytes of `input` already taken.
    taken: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Inside a member.
    Member(Decompress),
    /// After a member.
    Between,
    Ended,
    Broken,
}

impl Gunzip {
    /// An unpacker for a file whose first bytes, `input`, were read already.
    pub fn new(input: Vec<u8>) -> Self {
        Self { input, taken: 0, state: State::Between }
    }

    /// Unpacks into `out`, which must not be empty. Returns the bytes written, 0 at the end; `None`
    /// if the stream is truncated or corrupt.
    pub fn read(&mut self, source: &mut dyn Read, out: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match &mut self.state {
                State::Member(member) => {
                    let (taken, written) = (member.total_in(), member.total_out());
                    let input = &self.input[self.taken..];
                    let status = member.decompress(input, out, FlushDecompress::None);
                    self.taken += (member.total_in() - taken) as usize;
                    let written = (member.total_out() - written) as usize;
                    match status {
                        Ok(Status::StreamEnd) => self.state = State::Between,
                        Err(_) => self.state = State::Broken,
                        // `out` has room, so the input ran out.
                        Ok(_) if written == 0 && !self.refill(source)? => {
                            self.state = State::Broken;
                        }
                        Ok(_) => {}
                    }
                    if written > 0 {
                        return Ok(Some(written));
                    }
                }
                State::Between => self.state = self.next_member(source)?,
                State::Ended => return Ok(Some(0)),
                State::Broken => return Ok(None),
            }
        }
    }

    /// The state after a member: another member, or the end.
    fn next_member(&mut self, source: &mut dyn Read) -> io::Result<State> {
        while self.input.len() - self.taken < MAGIC.len() && self.refill(source)? {}
        Ok(if self.input[self.taken..].starts_with(&MAGIC) {
            State::Member(Decompress::new_gzip(WINDOW_BITS))
        } else {
            State::Ended
        })
    }

    /// Reads more input. `false` at the end of the source.
    fn refill(&mut self, source: &mut dyn Read) -> io::Result<bool> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let left = self.input.len();
        self.input.resize(left + INPUT, 0);
        let read = read_some(source, &mut self.input[left..]);
        self.input.truncate(left + *read.as_ref().unwrap_or(&0));
        read.map(|read| read > 0)
    }
}

/// Reads once, retrying interrupted calls.
pub(super) fn read_some(source: &mut dyn Read, room: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(room) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
