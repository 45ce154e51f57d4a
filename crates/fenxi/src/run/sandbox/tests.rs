//! Each test runs in a thread of its own, because a thread cannot regain its rights.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use super::*;
use crate::run::ports;
use crate::sinks;
use config::Sources;
use config::checked::IoMode;

/// Runs `work` in a thread inside the sandbox.
fn sandboxed<T: Send>(needs: &Needs<'_>, work: impl FnOnce() -> T + Send) -> T {
    let needs = Needs {
        written: needs.written.clone(),
        sockets: needs.sockets.clone(),
        connects: needs.connects.clone(),
        read: needs.read.clone(),
        ..*needs
    };
    std::thread::scope(|scope| {
        let sandboxed = scope.spawn(move || {
            enter(&needs).unwrap();
            work()
        });
        sandboxed.join().unwrap()
    })
}

fn needs<'a>(written: &'a Path) -> Needs<'a> {
    Needs {
        capabilities: CapabilitySet::empty(),
        has_accelerator: false,
        written: vec![written],
        sockets: Vec::new(),
        connects: Connects::default(),
        read: Vec::new(),
    }
}

/// Whether this kernel has Landlock.
fn is_enforced() -> bool {
    let status = Ruleset::default()
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    status.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}

#[test]
fn files_are_written_beneath_their_folder_and_nowhere_else() {
    if !std::thread::spawn(is_enforced).join().unwrap() {
        eprintln!(
            "SKIPPED files_are_written_beneath_their_folder_and_nowhere_else: needs Landlock"
        );
        return;
    }
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = inside.path().join("flows.jsonl");
    fs::write(&file, "old").unwrap();
    let sockets = tempfile::tempdir().unwrap();
    let socket = sockets.path().join("ctl.sock");
    fs::write(&socket, "").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let needs = Needs { sockets: vec![&socket], ..needs(&file) };
    sandboxed(&needs, || {
        fs::remove_file(&socket).unwrap();
        assert!(fs::write(&socket, "").is_err());
        fs::rename(&file, inside.path().join("flows.jsonl.1")).unwrap();
        fs::write(&file, "new").unwrap();
        fs::remove_file(inside.path().join("flows.jsonl.1")).unwrap();
        fs::write("/dev/null", "").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let denied = std::io::ErrorKind::PermissionDenied;
        let other = outside.path().join("x");
        assert_eq!(fs::write(&other, "").unwrap_err().kind(), denied);
        let moved = fs::rename(&file, &other);
        assert!(moved.is_err() && file.exists());
        assert_eq!(Command::new("/bin/true").status().unwrap_err().kind(), denied);
        let mut own = Command::new("/proc/self/exe");
        assert!(own.arg("--list").output().unwrap().status.success());
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), denied);
        assert_eq!(TcpListener::bind("127.0.0.1:0").unwrap_err().kind(), denied);
    });
    // Other threads are as they were.
    fs::write(outside.path().join("x"), "").unwrap();
}

#[test]
fn a_pipe_is_written_and_nothing_beside_it() {
    if !std::thread::spawn(is_enforced).join().unwrap() {
        eprintln!("SKIPPED a_pipe_is_written_and_nothing_beside_it: needs Landlock");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    sandboxed(&needs(&pipe), || {
        let open = |path: &Path| fs::File::options().read(true).write(true).open(path);
        open(&pipe).unwrap();
        assert!(fs::write(folder.path().join("x"), "").is_err());
    });
}

#[test]
fn only_what_the_mode_needs_is_left() {
    let before = capabilities(None).unwrap().permitted;
    let file = tempfile::NamedTempFile::new().unwrap();
    for (mode, accelerator, expected) in [
        (IoMode::Tap, false, CapabilitySet::NET_RAW),
        (IoMode::Inline, true, CapabilitySet::NET_RAW | CapabilitySet::IPC_LOCK),
        (IoMode::Mark, false, CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN),
    ] {
        let mut config = Sources::named(None, &[]).load().unwrap().config;
        config.io.mode = mode;
        let needs = Needs {
            capabilities: sinks::rights(&config, None).capabilities
                | ports::capabilities(&config.io),
            has_accelerator: accelerator,
            ..needs(file.path())
        };
        let status = sandboxed(&needs, || fs::read_to_string("/proc/thread-self/status"));
        let status = status.unwrap();
        let value = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
        };
        let kept = (before & expected).bits();
        for set in ["CapPrm", "CapEff"] {
            assert_eq!(value(set), kept, "{set} in mode {}", mode.name());
        }
        assert_eq!((value("CapInh"), value("CapAmb")), (0, 0));
        assert_eq!(value("NoNewPrivs"), 1);
        if before.contains(CapabilitySet::SETPCAP) {
            assert_eq!(value("CapBnd"), kept);
        }
    }
}

#[test]
fn another_users_files_are_found() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    fs::write(&file, "").unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    assert!(is_readable(folder.path(), 1) && is_open(folder.path(), 3));
    set(&file, 0o000).unwrap();
    assert!(!is_readable(folder.path(), 1) && is_open(folder.path(), 3));
    set(folder.path(), 0o500).unwrap();
    assert!(!is_open(folder.path(), 3));
    assert!(is_open(&folder.path().join("not there"), 3));
}
