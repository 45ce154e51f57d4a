//! The file: what it holds, how it is written in one step, and why one is not believed.
//!
//! ```text
//! "fenxisrv"  version u32  cells u32  written µs i64  key 4 × u64  cell of all flows
//! cells, by falling worth: hash u64, begun µs i64, means 3 × f32, flows u16, minute u16
//! SHA-256 of all before
//! ```
//!
//! All numbers are little endian.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use accel::{ReadError, read_regular};
use flowmgr::{MINUTE_US, ServerCell, ServerCells, minute};
use sha2::{Digest, Sha256};

use crate::access::folder_of;

const MAGIC: &[u8; 8] = b"fenxisrv";
const VERSION: u32 = 1;
/// Bytes of a cell with its hash.
pub const CELL: usize = 32;
/// Bytes before the cells, and behind them.
const HEAD: usize = 56 + CELL;
const TAIL: usize = 32;
/// What a cell says fades by half in this time without fenxi.
const HALF_LIFE_US: i64 = 24 * 3600 * 1_000_000;
/// Cells that no flow has used for so long are left out.
const OLDEST_US: i64 = 7 * HALF_LIFE_US;

/// Why a file is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("it is no memory of servers")]
    Foreign,
    #[error("it has version {0} of the format, and only version {VERSION} is read")]
    Version(u32),
    #[error("it is damaged")]
    Damaged,
}

/// What the file knows, faded by the time that has passed; `None` where there is no file.
pub fn read(path: &Path, entries: usize, now_us: i64) -> Result<Option<ServerCells>, Unusable> {
    let limit = HEAD + entries * CELL + TAIL;
    match read_regular(path, limit as u64) {
        Ok(bytes) => parse(&bytes, now_us).map(Some),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn parse(bytes: &[u8], now_us: i64) -> Result<ServerCells, Unusable> {
    if !bytes.starts_with(MAGIC) {
        return Err(Unusable::Foreign);
    }
    let mut rest = Reader(&bytes[MAGIC.len()..]);
    let version = rest.take().map(u32::from_le_bytes).ok_or(Unusable::Damaged)?;
    if version != VERSION {
        return Err(Unusable::Version(version));
    }
    let whole = bytes.len().checked_sub(TAIL).ok_or(Unusable::Damaged)?;
    let (content, sum) = bytes.split_at(whole);
    if Sha256::digest(content).as_slice() != sum {
        return Err(Unusable::Damaged);
    }
    rest.known(now_us).ok_or(Unusable::Damaged)
}

/// The bytes that are left.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, others) = self.0.split_first_chunk()?;
        self.0 = others;
        Some(*first)
    }

    fn known(&mut self, now_us: i64) -> Option<ServerCells> {
        let count = u32::from_le_bytes(self.take()?) as usize;
        let written_us = i64::from_le_bytes(self.take()?);
        let mut known = ServerCells::with_sets(0);
        for word in &mut known.secret {
            *word = u64::from_le_bytes(self.take()?);
        }
        let fades = Fading { passed_us: now_us.saturating_sub(written_us).max(0), written_us };
        let (_, all) = self.cell()?;
        known.all = fades.apply(all).unwrap_or(known.all);
        if self.0.len() != count * CELL + TAIL {
            return None;
        }
        for _ in 0..count {
            let (hash, cell) = self.cell()?;
            known.cells.extend(fades.apply(cell).map(|cell| (hash, cell)));
        }
        Some(known)
    }

    fn cell(&mut self) -> Option<(u64, ServerCell)> {
        let hash = u64::from_le_bytes(self.take()?);
        let begun_us = i64::from_le_bytes(self.take()?);
        let mut means = [0.0; 3];
        for mean in &mut means {
            *mean = f32::from_le_bytes(self.take()?);
        }
        let flows = u8::try_from(u16::from_le_bytes(self.take()?)).ok()?;
        let minute = u16::from_le_bytes(self.take()?);
        let cell = ServerCell { begun_us, means, flows, minute };
        cell.is_possible().then_some((hash, cell))
    }
}

/// How much less is known than when the file was written.
struct Fading {
    passed_us: i64,
    written_us: i64,
}

impl Fading {
    fn apply(&self, mut cell: ServerCell) -> Option<ServerCell> {
        let unused_us = i64::from(cell.age(minute(self.written_us))) * MINUTE_US;
        let half_lives = self.passed_us as f64 / HALF_LIFE_US as f64;
        cell.flows = (f64::from(cell.flows) * (-half_lives).exp2()).round() as u8;
        let is_known = cell.flows > 0 && self.passed_us.saturating_add(unused_us) < OLDEST_US;
        is_known.then_some(cell)
    }
}

/// Keeps other instances from the file, as long as this is open. A file beside it, because each
/// writing makes another one; its lock ends with the process, however that ends.
///
/// # Errors
/// It cannot be made, or another instance has it: [`io::ErrorKind::WouldBlock`].
pub fn lock(path: &Path) -> io::Result<File> {
    let mut beside = OsString::from(path);
    beside.push(".lock");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(beside)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        // Some network file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Writes the file anew. Whatever happens, there is the old one or the new one, whole.
pub fn write(path: &Path, known: &ServerCells, now_us: i64) -> io::Result<()> {
    let mut temporary = OsString::from(path);
    temporary.push(".new");
    // One that a run has left which was killed.
    let _ = fs::remove_file(&temporary);
    let written = create(&temporary, &bytes(known, now_us));
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    match renamed {
        Ok(()) => File::open(folder_of(path))?.sync_all(),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(error)
        }
    }
}

fn create(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn bytes(known: &ServerCells, now_us: i64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + known.cells.len() * CELL + TAIL);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(known.cells.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&now_us.to_le_bytes());
    known.secret.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    let all = (0, known.all);
    for (hash, cell) in std::iter::once(&all).chain(&known.cells) {
        bytes.extend_from_slice(&hash.to_le_bytes());
        bytes.extend_from_slice(&cell.begun_us.to_le_bytes());
        cell.means.iter().for_each(|mean| bytes.extend_from_slice(&mean.to_le_bytes()));
        bytes.extend_from_slice(&u16::from(cell.flows).to_le_bytes());
        bytes.extend_from_slice(&cell.minute.to_le_bytes());
    }
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

#[cfg(test)]
mod tests;
