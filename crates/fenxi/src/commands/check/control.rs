//! The addresses of the control plane: free, or in use by a running instance. Nothing is bound. A
//! connection to a Unix socket shows who listens, and is closed at once.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::finding::Finding;
use super::machine::Machine;
use crate::access::folder_of;
use crate::holder::{self, Holder};
use config::checked::{Control, HttpPlace};

const CHECK: &str = "control";

/// The instance that runs with this configuration, if any: the process that uses its socket or
/// port.
pub fn service(machine: &Machine, control: &Control) -> Option<u32> {
    let socket = control.socket.as_deref().map(holder_of_socket);
    let http = control.http.as_ref().map(|place| holder_of(machine, place));
    [socket, http].into_iter().flatten().find_map(|holder| match holder {
        Holder::Process(pid) => pid.filter(|pid| machine.program(*pid).as_deref() == Some("fenxi")),
        _ => None,
    })
}

pub fn findings(machine: &Machine, control: &Control) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(place) = &control.http {
        let name = "control.http";
        findings.push(match place {
            HttpPlace::Tcp(address) => port(machine, *address),
            HttpPlace::Unix(path) => socket(machine, name, path),
        });
    }
    if let Some(path) = &control.socket {
        findings.push(socket(machine, "control.socket", path));
    }
    findings
}

fn holder_of(machine: &Machine, place: &HttpPlace) -> Holder {
    match place {
        HttpPlace::Tcp(address) => holder::of_port(machine, *address),
        HttpPlace::Unix(path) => holder_of_socket(path),
    }
}

/// The address is in use by `pid`: fine if that is an instance of fenxi.
fn held(machine: &Machine, name: &str, place: &str, pid: Option<u32>, line: String) -> Finding {
    let program = pid.and_then(|pid| machine.program(pid));
    match (pid, program.as_deref()) {
        (Some(pid), Some("fenxi")) => Finding::ok(
            CHECK,
            name,
            format!(
                "{place}: in use by a running fenxi, process {pid}; another instance needs another \
                 address"
            ),
        ),
        (Some(pid), Some(program)) => {
            let cause = format!("{place}: in use by {program}, process {pid}");
            Finding::problem(CHECK, name, cause).cure(line)
        }
        _ => {
            let cause = format!("{place}: in use by another process; run as root to see which");
            Finding::warning(CHECK, name, cause).cure(format!("sudo {line}"))
        }
    }
}

fn port(machine: &Machine, address: SocketAddr) -> Finding {
    const NAME: &str = "control.http";
    let place = address.to_string();
    if let Holder::Process(pid) = holder::of_port(machine, address) {
        return held(machine, NAME, &place, pid, format!("ss -ltnp 'sport = :{}'", address.port()));
    }
    // Binding any free port on the address shows whether the address belongs to this machine.
    match UdpSocket::bind((address.ip(), 0)) {
        Ok(_) => Finding::ok(CHECK, NAME, format!("{place}: free")),
        Err(error) => {
            let cause = format!("{place}: not an address of this machine: {error}");
            Finding::problem(CHECK, NAME, cause).cure("ip -br addr")
        }
    }
}

fn socket(machine: &Machine, name: &str, path: &Path) -> Finding {
    let place = path.display().to_string();
    match holder_of_socket(path) {
        Holder::Process(pid) => held(machine, name, &place, pid, format!("ss -lxp src {place}")),
        Holder::File => {
            let cause = format!("{place}: exists and is not a socket");
            Finding::problem(CHECK, name, cause).cure(format!("ls -l {place}"))
        }
        Holder::Nobody => folder(machine, name, path),
    }
}

/// Who listens on a Unix socket.
fn holder_of_socket(path: &Path) -> Holder {
    match std::fs::symlink_metadata(path) {
        Err(_) => return Holder::Nobody,
        Ok(found) if !found.file_type().is_socket() => return Holder::File,
        Ok(_) => {}
    }
    let asked = || -> Result<u32, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get() as u32)
    };
    match asked() {
        Ok(pid) => Holder::Process(Some(pid)),
        // The next bind replaces a socket whose program has ended.
        Err(Errno::CONNREFUSED) => Holder::Nobody,
        Err(_) => Holder::Process(None),
    }
}

fn folder(machine: &Machine, name: &str, path: &Path) -> Finding {
    let folder = folder_of(path);
    let (place, shown) = (path.display(), folder.display());
    if machine.path(folder).is_dir() {
        return Finding::ok(CHECK, name, format!("{place}: free"));
    }
    let cause = format!("{place}: the folder {shown} does not exist");
    // The package makes it; a program that was installed without one has no tmpfiles.d/fenxi.conf.
    let line =
        match folder == Path::new("/run/fenxi") && machine.has("usr/lib/tmpfiles.d/fenxi.conf") {
            true => "systemd-tmpfiles --create fenxi.conf".to_owned(),
            false => format!("install -d -m 750 {shown}"),
        };
    Finding::problem(CHECK, name, cause).cure(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   \
                       0: 0100007F:24FD 00000000:0000 0A 00000000:00000000 00:00000000 \
                       00000000     0        0 4711 1 0 100 0 0 10 0\n   \
                       1: 0100007F:24FE 0100007F:0050 01 00000000:00000000 00:00000000 \
                       00000000     0        0 4712 1 0 100 0 0 10 0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_port_that_is_taken() {
        let judged = |files: &[(&str, &str)], address: &str| {
            port(&machine(files).1, address.parse().unwrap())
        };
        let theirs = [
            ("proc/net/tcp", TCP),
            ("proc/77/fd/3", "->socket:[4711]"),
            ("proc/77/comm", "nginx\n"),
        ];
        let taken = judged(&theirs, "127.0.0.1:9469");
        assert_eq!(
            (taken.level, taken.remedy.as_deref()),
            (Level::Problem, Some("ss -ltnp 'sport = :9469'"))
        );
        assert!(taken.cause.ends_with("in use by nginx, process 77"), "{taken:?}");
        let ours = [theirs[0], theirs[1], ("proc/77/comm", "fenxi\n")];
        assert_eq!(judged(&ours, "127.0.0.1:9469").level, Level::Ok);
        assert_eq!(judged(&theirs[..1], "127.0.0.1:9469").level, Level::Warning);
        // A connection is no listener, and another address is another place.
        assert_eq!(judged(&theirs, "127.0.0.1:9470").cause, "127.0.0.1:9470: free");
        assert_eq!(judged(&theirs, "[::1]:9469").level, judged(&[], "[::1]:9469").level);
        assert_eq!(judged(&[], "192.0.2.1:9469").level, Level::Problem);
        let control = Control {
            http: HttpPlace::parse("127.0.0.1:9469", |path| path.into()),
            ..Control::default()
        };
        assert_eq!(service(&machine(&ours).1, &control), Some(77));
        assert_eq!(service(&machine(&theirs).1, &control), None);
    }

    #[test]
    fn a_socket_free_stale_taken_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let us = std::process::id();
        assert_eq!(holder_of_socket(&path), Holder::Nobody);
        let listening = UnixListener::bind(&path).unwrap();
        assert_eq!(holder_of_socket(&path), Holder::Process(Some(us)));
        drop(listening);
        assert_eq!(holder_of_socket(&path), Holder::Nobody);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(socket(&Machine::here(), "control.socket", &path).level, Level::Problem);
    }

    #[test]
    fn a_missing_folder_has_a_cure() {
        let path = Path::new("/run/fenxi/ctl.sock");
        let missing = folder(&machine(&[]).1, "control.socket", path);
        assert_eq!(missing.remedy.as_deref(), Some("install -d -m 750 /run/fenxi"));
        let installed = [("usr/lib/tmpfiles.d/fenxi.conf", "d /run/fenxi")];
        let missing = folder(&machine(&installed).1, "control.socket", path);
        assert_eq!(missing.remedy.as_deref(), Some("systemd-tmpfiles --create fenxi.conf"));
        let there = [("run/fenxi/other", "")];
        assert_eq!(folder(&machine(&there).1, "control.socket", path).level, Level::Ok);
    }
}
