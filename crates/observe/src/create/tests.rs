use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pwrite};

use super::*;
use crate::actions::{Actions, tests::egresses};
use crate::layout::{Field, Kind};
use crate::reader::Reader;

fn fields() -> [Field; 2] {
    [Field::new("n", "flows", Kind::Counter), Field::new("gap", "ns", Kind::Histogram)]
}

fn service(fields: &[Field]) -> Service<'_> {
    Service { name: "web", egresses: 4, fields, epoch_ns: 1, writer: (0, 1), seed: 0 }
}

/// Nobody but root may change rights or users.
pub(crate) fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let must = std::env::var_os("FENXI_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!must, "{test}: needs root, and FENXI_REQUIRE_ALL forbids to skip it");
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs root");
    }
    is_root
}

#[test]
fn sealed_memory_can_be_read_and_neither_written_nor_resized() {
    let fields = fields();
    let mut writer = Writer::in_memfd(&service(&fields)).unwrap();
    let reader = Reader::of(&writer).unwrap();
    let file = writer.file().unwrap();
    assert!(map_writable(file).is_err());
    assert_eq!(pwrite(file, &[1], 0), Err(Errno::PERM));
    assert_eq!(ftruncate(file, 4096), Err(Errno::PERM));
    assert_eq!(ftruncate(file, 1 << 30), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(file, hole, 0, 4096), Err(Errno::PERM));
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(again) = OpenOptions::new().read(true).write(true).open(again) {
        assert!(map_writable(&again).is_err(), "the seal holds for root as well");
        assert_eq!(pwrite(&again, &[1], 0), Err(Errno::PERM));
    }
    writer.publish(5);
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    assert_eq!(snapshot.time_ns(), 5);
}

#[test]
fn memory_for_actions_keeps_its_size() {
    let actions = Actions::create(&egresses(4), 7, 1).unwrap();
    let file = actions.file().unwrap();
    assert!(map_writable(file).is_ok());
    assert_eq!(ftruncate(file, 1 << 20), Err(Errno::PERM));
    assert_eq!(ftruncate(file, 0), Err(Errno::PERM));
}

#[test]
fn a_file_has_its_rights_when_it_appears_and_replaces_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web");
    let fields = fields();
    let access = Access { owner: None, group: None, mode: 0o666 };
    let mut first = Writer::in_file(&service(&fields), &path, access).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o644,
        "others only read"
    );
    assert!(map_writable(first.file().unwrap()).is_err(), "what is handed out is read-only");
    let mut second = Writer::in_file(&service(&fields), &path, access).unwrap();
    first.publish(1);
    second.publish(2);
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    assert_eq!(snapshot.time_ns(), 1);
    drop(first);
    assert!(reader.is_ended());
    let reader = Reader::open(&path).unwrap();
    reader.read(&mut snapshot).unwrap();
    assert_eq!((snapshot.time_ns(), reader.is_ended()), (2, false));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, "precious").unwrap();
    let path = folder.path().join("web");
    for name in ["web", "web.new"] {
        std::os::unix::fs::symlink(&target, folder.path().join(name)).unwrap();
    }
    let fields = fields();
    let access = Access { owner: None, group: None, mode: 0o600 };
    let _writer = Writer::in_file(&service(&fields), &path, access).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn a_truncated_or_foreign_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web");
    let fields = fields();
    let access = Access { owner: None, group: None, mode: 0o600 };
    let writer = Writer::in_file(&service(&fields), &path, access).unwrap();
    let whole = fs::read(&path).unwrap();
    drop(writer);
    let cut = folder.path().join("cut");
    for bytes in [0, 1, 8, 511, 512, 4096, 8192, whole.len() - 8, whole.len() - 1] {
        fs::write(&cut, &whole[..bytes]).unwrap();
        assert!(Reader::open(&cut).is_err(), "{bytes} bytes");
    }
    fs::write(&cut, &whole).unwrap();
    assert!(Reader::open(&cut).is_ok());
    assert!(Reader::open(folder.path()).is_err());
    assert!(Reader::from_fd(File::open("/dev/zero").unwrap()).is_err());
}

#[test]
fn another_user_cannot_open_a_file() {
    if !is_root("another_user_cannot_open_a_file") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("web");
    let fields = fields();
    let access = Access { owner: Some(0), group: Some(4242), mode: 0o640 };
    let _writer = Writer::in_file(&service(&fields), &path, access).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().gid(), 4242);
    let can = |user: &str, group: &str, test: &str| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid", user, "--regid", group, "--clear-groups", "test", test]);
        setpriv.arg(&path).status().unwrap().success()
    };
    assert!(can("65534", "4242", "-r"), "the group reads");
    assert!(!can("65534", "4242", "-w"), "and does not write");
    assert!(!can("65534", "65534", "-r"), "others get nothing");
    assert!(!can("65534", "65534", "-w"));
}
