//! IPFIX messages as the tests read them: by RFC 7011, and by tshark.

use std::path::Path;
use std::process::Command;

use crate::common;

/// Bytes of a record of template 256 and 257, as the templates say, up to its last field, the
/// label, which begins with its length.
const RECORD: [(u16, usize); 2] = [(256, 92), (257, 116)];

/// A stream of messages, as far as it was read.
#[derive(Default)]
pub struct Messages(Vec<u8>);

impl Messages {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Those that are there as a whole.
    fn whole(&self) -> (Vec<&[u8]>, &[u8]) {
        let (mut messages, mut rest) = (Vec::new(), &self.0[..]);
        while rest.len() >= 16 {
            assert_eq!(u16_at(rest, 0), 10, "version");
            let length = usize::from(u16_at(rest, 2));
            if rest.len() < length {
                break;
            }
            messages.push(&rest[..length]);
            rest = &rest[length..];
        }
        (messages, rest)
    }

    /// Whether it ends with a whole message.
    pub fn is_whole(&self) -> bool {
        self.whole().1.is_empty()
    }

    /// Sequence number of the first message.
    pub fn first_sequence(&self) -> u32 {
        u32::from_be_bytes(self.0[8..12].try_into().unwrap())
    }

    /// Flow records in whole messages.
    pub fn flows(&self) -> usize {
        let (messages, _) = self.whole();
        messages.into_iter().map(flows_of).sum()
    }
}

fn flows_of(message: &[u8]) -> usize {
    let (mut flows, mut at) = (0, 16);
    while at < message.len() {
        let (set, length) = (u16_at(message, at), usize::from(u16_at(message, at + 2)));
        let end = at + length;
        if let Some((_, record)) = RECORD.iter().find(|(template, _)| *template == set) {
            at += 4;
            while at < end {
                at += record + 1 + usize::from(message[at + record]);
                flows += 1;
            }
            assert_eq!(at, end);
        }
        at = end;
    }
    flows
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// The values of these fields in each message of a file, as tshark prints them: several of one
/// field by commas. `None`, said on the terminal: no tshark.
pub fn tshark(test: &str, file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let Ok(output) = command.output() else {
        common::skip(test, "the program tshark");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| line.split('\t').map(str::to_owned).collect();
    Some(text.lines().map(line).collect())
}
