//! Any bytes as a capture file: the reader never panics, its frames lie inside their bursts, an
//! error and the end are final, and neither depends on the chunks in which the bytes come.
#![no_main]

use std::io::{Cursor, Read};

use libfuzzer_sys::fuzz_target;
use packetio::{CAPTURED_MAX, CaptureReader, Frame, Received, Rx};

/// All that a reader said: frames with their bytes, and how it ended.
type Heard = (Vec<(Frame, Vec<u8>)>, Option<String>);

fuzz_target!(|data: &[u8]| {
    let whole = Cursor::new(data.to_vec());
    let pieces = Pieces(whole.clone(), data.len() % 7 + 1);
    let at_once = hear(Box::new(whole), 256);
    assert_eq!(at_once, hear(Box::new(pieces), data.len() % 5 + 1));
});

fn hear(bytes: Box<dyn Read + Send>, burst_max: usize) -> Heard {
    let mut reader = CaptureReader::from_reader("fuzz", bytes);
    let mut frames = Vec::new();
    loop {
        match reader.receive(burst_max) {
            Ok(Received::Burst(burst)) => {
                assert!((1..=burst_max).contains(&burst.len()));
                for (i, frame) in burst.frames().iter().enumerate() {
                    assert!(frame.captured <= CAPTURED_MAX && frame.time_sub_ns < 1000);
                    // Where a frame lies depends on the chunks.
                    frames.push((Frame { at: 0, ..*frame }, burst.bytes(i).to_vec()));
                }
            }
            Ok(Received::Nothing) => panic!("a capture always has frames or ends"),
            Ok(Received::End) => {
                assert!(matches!(reader.receive(burst_max), Ok(Received::End)));
                return (frames, None);
            }
            Err(error) => {
                let again = reader.receive(burst_max).expect_err("an error is final");
                assert_eq!(again.to_string(), error.to_string());
                return (frames, Some(error.to_string()));
            }
        }
    }
}

/// A reader that gives at most this many bytes at a time.
struct Pieces(Cursor<Vec<u8>>, usize);

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let most = room.len().min(self.1);
        self.0.read(&mut room[..most])
    }
}
