//! Frames in memory that a generated port hands out as a burst.

use packetio::{Burst, Frame, Received, RxCounts};

use super::frame::ETHERNET;

/// The frames of the next burst, and what was handed out before.
#[derive(Debug, Default)]
pub struct Frames {
    data: Vec<u8>,
    frames: Vec<Frame>,
    pub counts: RxCounts,
}

impl Frames {
    /// Drops the last burst.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// Frames of the burst so far.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Appends a frame of `length` bytes in memory and `wire` on the wire; returns its bytes.
    pub fn push(&mut self, length: usize, wire: u32, time_us: i64, time_sub_ns: u16) -> &mut [u8] {
        let at = self.frames.last().map_or(0, |last| last.range().end);
        if self.data.len() < at + length {
            self.data.resize(at + length, 0);
        }
        self.frames.push(Frame {
            at,
            captured: length as u32,
            wire,
            time_us,
            time_sub_ns,
            link: ETHERNET,
            ..Frame::default()
        });
        &mut self.data[at..at + length]
    }

    /// Hands out the burst; an empty one is the end of the port.
    pub fn burst(&mut self) -> Received<'_> {
        if self.frames.is_empty() {
            return Received::End;
        }
        self.counts.received += self.frames.len() as u64;
        self.counts.bytes += self.frames.iter().map(|it| u64::from(it.wire)).sum::<u64>();
        Received::Burst(Burst::new(&mut self.data, &self.frames))
    }
}
