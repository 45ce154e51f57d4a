//! What the writer writes, read by other programs: `capinfos` and `tcpdump`. One that is not
//! installed is passed over.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use packetio::{CaptureFormat, CaptureWriter, Frame};

const FRAMES: usize = 25; // of 1514 bytes on the wire, 37850 in all

/// What a program prints; `None` if it is not there.
fn output(program: &str, arguments: &[&str], path: &Path) -> Option<String> {
    match Command::new(program).args(arguments).arg(path).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("{program} is not installed: not tested with it");
            None
        }
        Err(error) => panic!("{program}: {error}"),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program}: {complaint}");
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    }
}

#[test]
fn other_programs_read_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format, last_time) in [
        ("us.pcap", CaptureFormat::Pcap { nanosecond: false }, "1700000024.000007"),
        ("ns.pcap", CaptureFormat::Pcap { nanosecond: true }, "1700000024.000007008"),
        ("ns.pcapng", CaptureFormat::Pcapng, "1700000024.000007008"),
    ] {
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = CaptureWriter::create(format, file).unwrap();
        for i in 0..FRAMES {
            let frame = Frame {
                wire: 1514,
                time_us: 1_700_000_000_000_007 + 1_000_000 * i as i64,
                time_sub_ns: 8,
                link: 1,
                ..Frame::default()
            };
            writer.write(&frame, &vec![0x55; 40 + i]).unwrap();
        }
        writer.finish().unwrap();

        if let Some(text) = output("capinfos", &["-M", "-c", "-d", "-e", "-S"], &path) {
            for expected in ["packets:   25\n", " 37850 bytes", last_time] {
                assert!(text.contains(expected), "{name}: no {expected:?} in {text}");
            }
        }
        if let Some(text) = output("tcpdump", &["-n", "-tt", "-r"], &path) {
            let packets = text.lines().filter(|line| line.starts_with("17000000"));
            assert_eq!(packets.count(), FRAMES, "{name}: {text}");
        }
    }
}
