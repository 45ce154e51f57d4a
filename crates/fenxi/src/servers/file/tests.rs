use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::super::merge::merged;
use super::*;

const HOUR_US: i64 = 60 * MINUTE_US;
/// Any moment of these years.
const NOW_US: i64 = 1_790_000_000_000_000;

fn cell(flows: u8, unused_minutes: u16) -> ServerCell {
    let minute = minute(NOW_US).wrapping_sub(unused_minutes);
    ServerCell { begun_us: NOW_US - 5, means: [1e6, 20.0, 23.5], flows, minute }
}

fn known() -> ServerCells {
    let cells = vec![(7, cell(32, 0)), (u64::MAX, cell(1, 90)), (9, cell(4, 6 * 24 * 60))];
    ServerCells { secret: [1, 2, 3, u64::MAX], all: cell(20, 0), cells }
}

/// What is read of the file that holds `known`, after this time.
fn after(known: &ServerCells, passed_us: i64) -> ServerCells {
    parse(&bytes(known, NOW_US), NOW_US + passed_us).unwrap()
}

#[test]
fn one_instance_at_a_time_has_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    let held = lock(&path).unwrap();
    write(&path, &known(), NOW_US).unwrap();
    assert_eq!(lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop(held);
    assert!(lock(&path).is_ok());
}

#[test]
fn a_file_says_what_was_written_and_only_its_user_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    assert!(read(&path, 3, NOW_US).unwrap().is_none(), "none yet");
    for _ in 0..2 {
        write(&path, &known(), NOW_US).unwrap();
        assert_eq!(read(&path, 3, NOW_US).unwrap().unwrap(), known());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A run was killed in the middle of the next.
        fs::write(dir.path().join("servers.new"), "half").unwrap();
    }
    write(&path, &known(), NOW_US).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn what_it_knows_fades_and_ends() {
    // A minute is nothing, and neither is a clock that was set back.
    assert_eq!(after(&known(), MINUTE_US), known());
    assert_eq!(after(&known(), -1000 * HOUR_US), known());
    let flows = |hours: i64| {
        let faded = after(&known(), hours * HOUR_US);
        let cells: Vec<(u64, u8)> =
            faded.cells.iter().map(|(hash, it)| (*hash, it.flows)).collect();
        (faded.all.flows, cells)
    };
    // The last was six days old already.
    assert_eq!(flows(23), (10, vec![(7, 16), (u64::MAX, 1), (9, 2)]));
    assert_eq!(flows(24), (10, vec![(7, 16), (u64::MAX, 1)]));
    assert_eq!(flows(72), (3, vec![(7, 4)]));
    assert_eq!(flows(7 * 24), (0, vec![]));
    assert_eq!(after(&known(), i64::MAX - NOW_US).cells, []);
}

#[test]
fn a_file_that_is_not_whole_or_not_ours_is_refused() {
    let whole = bytes(&known(), NOW_US);
    let said = |bytes: &[u8]| parse(bytes, NOW_US).unwrap_err().to_string();
    for at in MAGIC.len() + 4..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        assert_eq!(said(&damaged), "it is damaged", "byte {at}");
        assert_eq!(said(&whole[..at]), "it is damaged", "{at} bytes");
    }
    assert_eq!(said(&[whole.as_slice(), &[0]].concat()), "it is damaged");
    assert_eq!(said(b""), "it is no memory of servers");
    assert_eq!(said(b"{\"type\":\"flow\"}"), "it is no memory of servers");
    let mut newer = whole.clone();
    newer[MAGIC.len()] = 2;
    assert!(said(&newer).contains("version 2 of the format"), "{}", said(&newer));
    // A sum that is right makes no cells that are not there.
    let mut short = whole[..whole.len() - TAIL - CELL].to_vec();
    short.extend_from_slice(&Sha256::digest(&short));
    assert_eq!(said(&short), "it is damaged");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    fs::write(&path, &whole).unwrap();
    let larger = read(&path, 2, NOW_US).unwrap_err().to_string();
    assert!(larger.contains("larger than"), "{larger}");
    assert!(read(dir.path(), 3, NOW_US).unwrap_err().to_string().contains("a folder"));
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("servers");
    write(&path, &known(), NOW_US).unwrap();
    // Root may write anywhere, but not over a folder that is not empty.
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    assert!(write(&folder, &known(), NOW_US).is_err());
    assert!(write(&dir.path().join("none/servers"), &known(), NOW_US).is_err());
    assert_eq!(read(&path, 3, NOW_US).unwrap().unwrap(), known());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn workers_memories_become_one_and_do_not_grow_by_being_read() {
    let of = |cells: &[(u64, ServerCell)]| ServerCells { cells: cells.to_vec(), ..known() };
    let light = ServerCell { means: [1000.0, 10.0, 17.5], ..cell(8, 5) };
    let a = of(&[(1, cell(24, 0)), (2, light)]);
    let b = of(&[(3, cell(8, 0)), (1, light)]);
    let both = merged([&a, &b].into_iter(), 10, NOW_US).unwrap();
    let hashes: Vec<u64> = both.cells.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(hashes, [1, 3, 2], "by falling worth");
    let means = [750_250.0, 17.5, 22.0];
    assert_eq!(both.cells[0].1, ServerCell { means, ..cell(24, 0) });
    assert_eq!(merged([&both, &both, &both].into_iter(), 10, NOW_US).unwrap(), both);
    assert_eq!(merged([&a, &b].into_iter(), 2, NOW_US).unwrap().cells, both.cells[..2]);
    assert!(merged([].into_iter(), 2, NOW_US).is_none());
}

proptest! {
    /// Whatever is in the file, reading ends, and what is read can be worked with.
    #[test]
    fn nothing_in_a_file_does_harm(content in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &content].concat();
        bytes.extend_from_slice(&Sha256::digest(&bytes));
        if let Ok(known) = parse(&bytes, NOW_US) {
            for (_, cell) in known.cells {
                prop_assert!(cell.flows <= 32 && cell.means.iter().all(|it| *it >= 0.0));
            }
        }
    }
}
