//! Who uses the addresses of the control plane.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::proc::Machine;

/// Who uses an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// A file that is not a socket.
    File,
    /// A process, with its number if that is visible.
    Process(Option<u32>),
}

/// `nginx, process 77`, or `another process` where the system does not tell.
pub fn named(machine: &Machine, pid: Option<u32>) -> String {
    let program = pid.and_then(|pid| Some((machine.program(pid)?, pid)));
    program
        .map_or("another process".to_owned(), |(program, pid)| format!("{program}, process {pid}"))
}

/// Who listens on a port, according to `/proc/net/tcp` and the open files of processes.
pub fn of_port(machine: &Machine, wanted: SocketAddr) -> Holder {
    let files = ["proc/net/tcp", "proc/net/tcp6"];
    let files = files.map(|file| machine.text(file).unwrap_or_default());
    let mut listeners = files.iter().flat_map(|text| text.lines().filter_map(listener));
    let found = listeners.find(|(address, _)| {
        let (ours, theirs) = (wanted.ip(), address.ip());
        address.port() == wanted.port()
            && (ours == theirs || ours.is_unspecified() || theirs.is_unspecified())
    });
    match found {
        Some((_, inode)) => Holder::Process(owner(machine, inode)),
        None => Holder::Nobody,
    }
}

/// Address and inode of a line of `/proc/net/tcp` that listens.
fn listener(line: &str) -> Option<(SocketAddr, u64)> {
    const LISTENS: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != LISTENS {
        return None;
    }
    // Words in the byte order of the machine.
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16);
        word.ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        _ => {
            let bytes = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()
        }
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip, port), fields.get(9)?.parse().ok()?))
}

/// The process that has a socket open; only root sees the processes of other users.
fn owner(machine: &Machine, inode: u64) -> Option<u32> {
    let link = format!("socket:[{inode}]");
    let holds = |pid: &u32| {
        let folder = format!("proc/{pid}/fd");
        let is_it = |fd: &String| machine.link(&format!("{folder}/{fd}")).as_ref() == Some(&link);
        machine.names(&folder).iter().any(is_it)
    };
    machine.processes().into_iter().find(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_both_families() {
        let line = " 0: 00000000000000000000000001000000:24FD 0:0 0A 0 0 0 0 0 9 1";
        let (address, inode) = listener(line).unwrap();
        assert_eq!((address.to_string().as_str(), inode), ("[::1]:9469", 9));
        assert_eq!(listener("sl local_address rem_address st"), None);
    }
}
