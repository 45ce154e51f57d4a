//! Files and other sources: what is no capture, what cannot be opened, and progress.

use std::path::Path;

use super::*;
use crate::error::OpenError;
use crate::rx::{Received, Rx};

#[test]
fn no_bytes_and_too_few() {
    let outcome = read(b"");
    assert_eq!(outcome.status(), "empty");
    assert_eq!(
        outcome.error.unwrap().to_string(),
        "test: the file is empty (byte 0, after 0 packets)"
    );
    for few in [&b"\x1f"[..], b"\xd4\xc3", b"\x0a\x0d\x0d", b"GET"] {
        read(few).assert_truncated(Part::FileHeader, 0);
    }
}

#[test]
fn another_kind_of_file() {
    let outcome = read(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(outcome.status(), "unknown_format");
    assert_eq!(
        outcome.error.unwrap().to_string(),
        "test: not a capture: it begins with [47, 45, 54, 20], which is neither pcap nor pcapng, \
         plain or in gzip (byte 0, after 0 packets)"
    );
}

#[test]
fn an_error_comes_again() {
    let mut capture = pcap_of(&[b"one"]);
    capture.extend([0xff; 20]);
    for (file, packets) in [(&capture[..], 1), (b"nonsense", 0), (b"", 0)] {
        let source = Cursor::new(file.to_vec());
        let mut reader = CaptureReader::from_reader("test", Box::new(source));
        for _ in 0..packets {
            assert_eq!(reader.receive(9).unwrap().burst().unwrap().len(), 1);
        }
        let first = reader.receive(9).unwrap_err().to_string();
        assert_eq!(reader.receive(9).unwrap_err().to_string(), first);
    }
}

#[test]
fn a_source_that_fails_gives_its_packets_first() {
    struct Failing(Cursor<Vec<u8>>);
    impl Read for Failing {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            match self.0.read(room)? {
                0 => Err(io::Error::other("the disk is gone")),
                count => Ok(count),
            }
        }
    }
    let outcome = read_from(Failing(Cursor::new(pcap_of(&[b"one", b"two"]))), 32);
    assert_eq!((outcome.status(), outcome.packets.len()), ("io", 2));
    assert_eq!(
        outcome.error.unwrap().to_string(),
        "test: cannot be read: the disk is gone (byte 62, after 2 packets)"
    );
}

#[test]
fn an_interrupted_read_is_made_again() {
    struct Interrupted(Cursor<Vec<u8>>, bool);
    impl Read for Interrupted {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.0.read(room)
        }
    }
    let source = Interrupted(Cursor::new(pcap_of(&[b"one"])), false);
    assert_eq!(read_from(source, 32).bytes(), [b"one"]);
}

#[test]
fn what_cannot_be_opened_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.pcap");
    let error = CaptureReader::open(&missing).unwrap_err();
    assert!(matches!(error, OpenError::File { .. }));
    assert_eq!(error.to_string(), format!("{}: no such file", missing.display()));
    let error = CaptureReader::open(folder.path()).unwrap_err();
    assert!(error.to_string().ends_with(": is a directory; name a capture file in it"));
    let error = CaptureReader::open(Path::new("\0")).unwrap_err();
    assert!(error.to_string().contains(": cannot be opened: "));
}

#[test]
fn a_file_tells_size_and_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no-suffix");
    let capture = pcap_of(&[b"one", b"two"]);
    std::fs::write(&path, &capture).unwrap();
    let mut reader = CaptureReader::open(&path).unwrap();
    assert_eq!((reader.size(), reader.position()), (Some(capture.len() as u64), 0));
    assert_eq!(reader.receive(1).unwrap().burst().unwrap().bytes(0), b"one");
    assert_eq!(reader.receive(1).unwrap().burst().unwrap().bytes(0), b"two");
    assert!(matches!(reader.receive(1), Ok(Received::End)));
    assert!(matches!(reader.receive(1), Ok(Received::End)));
    assert_eq!((reader.position(), reader.counts().received), (capture.len() as u64, 2));
}
