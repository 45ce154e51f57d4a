//! Frames sent, and what was received of them.

use super::super::reader::RingReader;
use super::super::transmit::Transmit;
use crate::burst::{Burst, Frame};
use crate::rx::{Received, Rx};
use crate::tests::frames::trace;
use crate::tx::Selection;

/// Sends all frames.
pub fn send<B: AsRef<[u8]>>(transmit: &mut Transmit, frames: impl IntoIterator<Item = B>) {
    let mut trace = trace(frames);
    while let Received::Burst(burst) = trace.receive(100).expect("memory does not fail") {
        transmit.send(&burst, Selection::All).expect("the interface is up");
    }
}

/// Receives until nothing has come for 100 calls, each of which waits for the port's time: on a
/// busy machine even the answer to an ARP request takes a while.
pub fn drain(port: &mut RingReader, mut each: impl FnMut(&Frame, &[u8])) {
    let mut idle = 0;
    while idle < 100 {
        let burst = receive(port);
        idle = if burst.is_empty() { idle + 1 } else { 0 };
        for (i, frame) in burst.frames().iter().enumerate() {
            each(frame, burst.bytes(i));
        }
    }
}

/// The bytes of all frames.
pub fn all(port: &mut RingReader) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    drain(port, |_, bytes| frames.push(bytes.to_vec()));
    frames
}

fn receive(port: &mut RingReader) -> Burst<'_> {
    port.receive(33).expect("the interface is up")
}
