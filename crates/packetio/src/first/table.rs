//! The table of what was counted, read in batches: entries are looked up by hundreds in one system call, round after round.
#![allow(
    unsafe_code,
    reason = "batches of the BPF system call, which aya does not have; each call passes arrays and their length"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::layout::{Entry, Key};

/// Entries that one call reads, at most. Above the length of any chain of the kernel's hash table.
pub const BATCH: usize = 256;

/// Commands of the BPF system call (`linux/bpf.h`).
const LOOKUP_BATCH: libc::c_long = 24;
const DELETE_BATCH: libc::c_long = 27;

/// `union bpf_attr`, as far as batches use it.
#[derive(Default)]
#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A round over the entries of a table.
#[derive(Debug)]
pub struct Round {
    /// Where the round is, in the kernel's terms; `None` at its beginning.
    at: Option<u32>,
    keys: Box<[Key; BATCH]>,
    entries: Box<[Entry; BATCH]>,
    found: usize,
}

impl Round {
    pub fn new() -> Round {
        Round {
            at: None,
            keys: Box::new([Key::default(); BATCH]),
            entries: Box::new([Entry::default(); BATCH]),
            found: 0,
        }
    }

    /// Reads the next entries, at most [`BATCH`]; whether the round is over with them. The next call then begins another one.
    pub fn go_on(&mut self, table: BorrowedFd<'_>) -> io::Result<bool> {
        let (from, mut to) = (self.at, 0_u32);
        let mut batch = Batch {
            in_batch: from.as_ref().map_or(0, |at| &raw const *at as u64),
            out_batch: &raw mut to as u64,
            keys: self.keys.as_mut_ptr() as u64,
            values: self.entries.as_mut_ptr() as u64,
            count: BATCH as u32,
            map_fd: table.as_raw_fd() as u32,
            ..Batch::default()
        };
        // SAFETY: the kernel reads four bytes at `in_batch`, writes four at `out_batch`, and at most `count` keys and values to
        // `keys` and `values`, which have room for them; any bytes make a key or an entry.
        let done = unsafe { call(LOOKUP_BATCH, &mut batch) };
        self.found = batch.count as usize;
        match done {
            Ok(()) => {
                self.at = Some(to);
                Ok(false)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.at = None;
                Ok(true)
            }
            Err(error) => {
                (self.at, self.found) = (None, 0);
                Err(error)
            }
        }
    }

    /// What the last call found.
    pub fn found(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.keys.iter().zip(&*self.entries).take(self.found)
    }
}

/// Removes entries; those that are not there any more count as removed. How many were there.
pub fn remove(table: BorrowedFd<'_>, mut keys: &[Key]) -> usize {
    let mut removed = 0;
    while !keys.is_empty() {
        let mut batch = Batch {
            keys: keys.as_ptr() as u64,
            count: keys.len() as u32,
            map_fd: table.as_raw_fd() as u32,
            ..Batch::default()
        };
        // SAFETY: the kernel reads `count` keys at `keys`, which has as many.
        let done = unsafe { call(DELETE_BATCH, &mut batch) };
        let before = (batch.count as usize).min(keys.len());
        removed += before;
        match done {
            Ok(()) => break,
            // It stops at a key that is not there.
            Err(_) => keys = keys.get(before + 1..).unwrap_or_default(),
        }
    }
    removed
}

/// # Safety
/// What `batch` points to must be valid for the command.
unsafe fn call(command: libc::c_long, batch: &mut Batch) -> io::Result<()> {
    let bytes = size_of::<Batch>();
    // SAFETY: the kernel reads and writes `bytes` bytes of `batch`, and the arrays as this function's condition says.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *batch, bytes) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
