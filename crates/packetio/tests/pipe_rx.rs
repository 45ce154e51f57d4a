//! A port that is no interface and no file: frames out of a Unix socket, waited for, received and
//! spread over two receivers like any other.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use packetio::batch::{channel, spread};
use packetio::{Frame, Received, Rx, RxErrorKind, StreamRx, wait};

/// Frame `i`: 60 bytes and a few more, filled with its number.
fn frame(i: u8) -> Vec<u8> {
    vec![i; 60 + usize::from(i)]
}

fn write(stream: &mut impl Write, frame: &[u8]) {
    stream.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

fn pair() -> (UnixStream, StreamRx<UnixStream>) {
    let (far, near) = UnixStream::pair().unwrap();
    (far, StreamRx::new("frames.sock", near).unwrap())
}

#[test]
fn a_thread_sleeps_until_frames_come_and_reads_to_the_end() {
    let (mut far, mut rx) = pair();
    assert!(matches!(rx.receive(8), Ok(Received::Nothing)));
    let writer = std::thread::spawn(move || {
        for i in 0..200 {
            write(&mut far, &frame(i));
        }
    });
    let (mut next, began) = (0_u8, Instant::now());
    loop {
        match rx.receive(7).unwrap() {
            Received::Burst(burst) => {
                assert!(burst.len() <= 7);
                for (i, received) in burst.frames().iter().enumerate() {
                    assert_eq!(burst.bytes(i), frame(next));
                    assert_eq!((received.link, received.wire), (1, 60 + u32::from(next)));
                    next += 1;
                }
            }
            Received::Nothing => wait([&rx as &dyn Rx], None, Duration::from_secs(10)),
            Received::End => break,
        }
    }
    writer.join().unwrap();
    assert_eq!((next, rx.counts().received), (200, 200));
    assert!(rx.is_live() && began.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_is_no_frame_is_an_error_after_all_frames() {
    let (mut far, mut rx) = pair();
    write(&mut far, &frame(1));
    far.write_all(&u32::MAX.to_be_bytes()).unwrap();
    assert_eq!(rx.receive(8).unwrap().burst().unwrap().len(), 1);
    let error = rx.receive(8).unwrap_err();
    assert_eq!(error.kind, RxErrorKind::Damaged);
    assert!(error.to_string().starts_with("frames.sock: a frame of 4294967295 bytes"), "{error}");

    let (mut far, mut rx) = pair();
    far.write_all(&[0, 0, 0, 60, 1, 2]).unwrap();
    drop(far);
    let error = std::iter::repeat_with(|| rx.receive(8).err()).take(3).flatten().next().unwrap();
    assert_eq!(error.to_string(), "frames.sock: truncated: the stream ends 6 bytes into a frame");
}

#[test]
fn frames_of_a_pipe_are_spread_over_receivers() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut rx = StreamRx::new("pipe", reader).unwrap();
    for i in 0..100 {
        write(&mut writer, &frame(i));
    }
    drop(writer);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
    let steer = |_: &Frame, bytes: &[u8]| (usize::from(bytes[0] % 2), None);
    spread(&mut rx, senders, steer, &AtomicBool::new(false)).unwrap();
    for (parity, receiver) in receivers.into_iter().enumerate() {
        // As a worker holds them, whatever they are.
        let mut receiver: Box<dyn Rx> = Box::new(receiver);
        let mut count = 0;
        while let Received::Burst(burst) = receiver.receive(16).unwrap() {
            count += burst.len();
            assert!((0..burst.len()).all(|i| usize::from(burst.bytes(i)[0] % 2) == parity));
        }
        assert_eq!(count, 50);
    }
}
