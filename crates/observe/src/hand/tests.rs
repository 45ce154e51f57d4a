use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::*;
use crate::actions::{Actions, ActionsWriter, tests::egresses};
use crate::create::tests::is_root;
use crate::layout::{Field, Kind};
use crate::reader::Reader;
use crate::writer::{Service, Writer};

fn writer() -> Writer {
    let fields = [Field::new("n", "flows", Kind::Counter)];
    let service =
        Service { name: "web", egresses: 4, fields: &fields, epoch_ns: 1, writer: (0, 1), seed: 0 };
    Writer::in_memfd(&service).unwrap()
}

/// The user who runs the tests.
fn ours() -> Allowed {
    Allowed { users: vec![rustix::process::geteuid().as_raw()], groups: Vec::new() }
}

#[test]
fn a_file_arrives_and_can_be_read() {
    let mut writer = writer();
    writer.publish(3);
    let (ours_end, theirs) = UnixStream::pair().unwrap();
    hand_out(&ours_end, writer.file().unwrap(), &ours()).unwrap();
    let reader = Reader::from_fd(receive(&theirs).unwrap()).unwrap();
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot).unwrap();
    assert_eq!(snapshot.time_ns(), 3);
    drop(writer);
    assert!(reader.is_ended());
}

#[test]
fn actions_arrive_and_can_be_written() {
    let mut actions = Actions::create(&egresses(2), 7, 1).unwrap();
    let (ours_end, theirs) = UnixStream::pair().unwrap();
    hand_out(&ours_end, actions.file().unwrap(), &ours()).unwrap();
    let mut owner = ActionsWriter::from_fd(receive(&theirs).unwrap()).unwrap();
    let slot = crate::Slot { index: 1, incarnation: 1 };
    owner.set(slot, 0.25);
    owner.publish(10);
    let mut weights = [None];
    assert_eq!(actions.weights(1, &[slot], &mut weights), Ok(()));
    assert_eq!(weights, [Some(0.25)]);
}

#[test]
fn a_service_is_no_memory_for_actions_nor_the_other_way_round() {
    let (writer, actions) = (writer(), Actions::create(&egresses(2), 7, 1).unwrap());
    assert!(ActionsWriter::from_fd(writer.file().unwrap()).is_err());
    assert!(Reader::from_fd(actions.file().unwrap()).is_err());
}

#[test]
fn a_peer_that_hangs_up_or_does_not_read_is_an_error() {
    let writer = writer();
    let (ours_end, theirs) = UnixStream::pair().unwrap();
    // The socket's buffer fills, or the kernel's bound on files in flight.
    let refused =
        (0..100_000).any(|_| hand_out(&ours_end, writer.file().unwrap(), &ours()).is_err());
    assert!(refused);
    drop(theirs);
    assert!(hand_out(&ours_end, writer.file().unwrap(), &ours()).is_err());
    let (ours_end, theirs) = UnixStream::pair().unwrap();
    drop(ours_end);
    assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn another_user_gets_nothing_over_the_socket() {
    if !is_root("another_user_gets_nothing_over_the_socket") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, mode).unwrap();
    let (writer, actions) = (writer(), Actions::create(&egresses(2), 7, 1).unwrap());
    let nobody = 65534;
    let by_user = Allowed { users: vec![nobody], groups: Vec::new() };
    let by_group = Allowed { users: Vec::new(), groups: vec![nobody] };
    let others = Allowed { users: vec![1, 2, 3], groups: vec![0, 1] };
    for (allowed, may) in
        [(Allowed::default(), false), (others, false), (by_user, true), (by_group, true)]
    {
        for file in [writer.file().unwrap(), actions.file().unwrap()] {
            let path = path.clone();
            // Only this thread becomes nobody.
            let peer = std::thread::spawn(move || {
                let (nobody, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
                set_thread_res_gid(group, group, group).unwrap();
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
                receive(UnixStream::connect(path).unwrap())
            });
            let (socket, _) = listener.accept().unwrap();
            let handed = hand_out(&socket, file, &allowed);
            drop(socket);
            assert_eq!(peer.join().unwrap().is_ok(), may);
            let refusal = handed.err().map(|error| error.kind());
            assert_eq!(refusal, (!may).then_some(io::ErrorKind::PermissionDenied));
        }
    }
}
