//! The record file: whether it can be written, and whether the disk has room for its maximum size;
//! the file of the memory of servers; and collectors of records in the network.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat, statvfs};

use super::finding::Finding;
use super::machine::Machine;
use crate::access::{folder_of, is_dash};
use crate::service_unit;
use crate::sinks::ipfix::{Destination, Endpoint, IpfixKeys, first};
use crate::sinks::records::Kafka;
use config::Config;
use config::checked::{Records, Rotate, Servers};

const CHECK: &str = "records";
const SERVERS: &str = "servers";
const HISTORY: &str = "history";

/// A record file without rotation should have at least this much free space, bytes.
const ENOUGH: u64 = 1 << 30;

/// The only folder that the service's unit lets it write to.
const OF_SERVICE: &str = "/var/lib/fenxi";

pub fn findings(machine: &Machine, records: &Records) -> Vec<Finding> {
    let Some(path) = records.path.as_deref().filter(|path| !is_dash(path)) else {
        return Vec::new();
    };
    let folder = folder_of(path);
    let mut findings = vec![
        writable(CHECK, path, folder, machine.unit().is_some())
            .unwrap_or_else(|| room(path, folder, records.rotate())),
    ];
    findings.extend(in_reach(CHECK, machine, folder));
    findings
}

/// The file of the memory of servers: whether it can be written, and what is there can be read.
pub fn of_servers(machine: &Machine, servers: &Servers) -> Vec<Finding> {
    let Some(path) = servers.path.as_deref() else {
        return Vec::new();
    };
    let folder = folder_of(path);
    let unusable = || {
        let cause = format!("{}; the memory is empty at first", crate::servers::unusable(servers)?);
        Some(Finding::warning(SERVERS, &path.display().to_string(), cause))
    };
    let found = writable(SERVERS, path, folder, machine.unit().is_some()).or_else(unusable);
    found.into_iter().chain(in_reach(SERVERS, machine, folder)).collect()
}

/// The file of the history: whether it can be written.
pub fn of_history(machine: &Machine, path: Option<&Path>) -> Vec<Finding> {
    let Some(path) = path else { return Vec::new() };
    let folder = folder_of(path);
    let found = writable(HISTORY, path, folder, machine.unit().is_some());
    found.into_iter().chain(in_reach(HISTORY, machine, folder)).collect()
}

fn writable(check: &'static str, path: &Path, folder: &Path, is_service: bool) -> Option<Finding> {
    let name = path.display().to_string();
    let problem = |cause: &str| Some(Finding::problem(check, &name, cause));
    if !folder.is_dir() {
        let owner = if is_service { "-o fenxi " } else { "" };
        let line = format!("install -d {owner}-m 750 {}", folder.display());
        return problem("the folder does not exist").map(|found| found.cure(line));
    }
    if path.is_dir() {
        return problem("this is a folder, but a file is needed");
    }
    let touched = if path.exists() { path } else { folder };
    accessat(CWD, touched, Access::WRITE_OK, AtFlags::EACCESS).err().map(|error| {
        let cause = format!("{}: not writable: {error}", touched.display());
        let line = format!("ls -ld {} {}", folder.display(), touched.display());
        Finding::problem(check, &name, cause).cure(line).for_permission()
    })
}

fn room(path: &Path, folder: &Path, rotate: Option<Rotate>) -> Finding {
    let name = path.display().to_string();
    let Ok(system) = statvfs(folder) else {
        return Finding::warning(CHECK, &name, "the file system does not report its free space");
    };
    let free = system.f_bavail * system.f_frsize;
    let (needed, why) = match rotate {
        Some(rotate) => {
            let most = rotate.bytes * (rotate.files as u64 + 1);
            let files = rotate.files + 1;
            (
                most.saturating_sub(taken(path, rotate.files)),
                format!("{files} files of {} need", mib(rotate.bytes)),
            )
        }
        None => (ENOUGH, "its size is not limited, and it should have at least".to_owned()),
    };
    let cause = format!("{} free; {why} {}", mib(free), mib(needed));
    match free < needed {
        true => Finding::warning(CHECK, &name, cause).cure(format!("df -h {}", folder.display())),
        false => Finding::ok(CHECK, &name, cause),
    }
}

/// Bytes that the file and its predecessors use already.
fn taken(path: &Path, old: usize) -> u64 {
    let numbered = |number: usize| PathBuf::from(format!("{}.{number}", path.display()));
    let files = std::iter::once(path.to_owned()).chain((1..=old).map(numbered));
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

fn in_reach(check: &'static str, machine: &Machine, folder: &Path) -> Option<Finding> {
    let drop_ins = machine.unit()?.drop_ins;
    let is_opened = |line: &str| {
        let paths = line.trim().strip_prefix("ReadWritePaths=");
        paths.is_some_and(|paths| {
            paths
                .split_whitespace()
                .any(|path| folder.starts_with(path.trim_start_matches(['-', '+'])))
        })
    };
    if folder.starts_with(OF_SERVICE)
        || folder.starts_with("/run/fenxi")
        || drop_ins.lines().any(is_opened)
    {
        return None;
    }
    let name = folder.display().to_string();
    let cause = format!("the service cannot write here, only to {OF_SERVICE}");
    let line = format!("ReadWritePaths={name}");
    let cure = service_unit::install(&machine.service, check, &[&line]);
    Some(Finding::warning(check, &name, cause).cure(cure))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

const COLLECTORS: &str = "collectors";

/// How long a collector may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

pub fn collectors(machine: &Machine, config: &Config) -> Vec<Finding> {
    let exporter = match &config.section::<IpfixKeys>().to {
        Some(to @ Destination::Udp(endpoint)) => Some((to.to_string(), endpoint.clone(), false)),
        Some(to @ Destination::Tcp(endpoint)) => Some((to.to_string(), endpoint.clone(), true)),
        Some(Destination::File(_)) | None => None,
    };
    let brokers = config.section::<Kafka>().brokers.into_iter();
    let brokers = brokers.map(|broker| (broker.to_string(), broker, true));
    let all = exporter.into_iter().chain(brokers);
    all.flat_map(|(name, endpoint, is_tcp)| collector(machine, &name, &endpoint, is_tcp)).collect()
}

fn collector(machine: &Machine, name: &str, endpoint: &Endpoint, is_tcp: bool) -> Vec<Finding> {
    let found = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    let addresses: Vec<SocketAddr> = match found {
        Ok(found) => found.collect(),
        Err(error) => {
            let cause = format!("no address is found for it: {error}; a run goes on trying");
            let line = format!("getent hosts {}", endpoint.host);
            return vec![Finding::warning(COLLECTORS, name, cause).cure(line)];
        }
    };
    let mut findings = vec![answer(name, endpoint, is_tcp)];
    findings.extend(is_reached(machine, name, &addresses));
    findings
}

/// Whether somebody listens there. Nothing is sent.
fn answer(name: &str, endpoint: &Endpoint, is_tcp: bool) -> Finding {
    if !is_tcp {
        let cause = "UDP: whether a collector listens cannot be seen from here";
        return Finding::ok(COLLECTORS, name, cause);
    }
    match first(endpoint, |address| TcpStream::connect_timeout(&address, ANSWER_WITHIN)) {
        Ok(_) => Finding::ok(COLLECTORS, name, "it accepts connections"),
        Err(error) => {
            let cause = format!("it does not accept connections: {error}; a run goes on trying");
            let line = format!("nc -vz {} {}", endpoint.host, endpoint.port);
            Finding::warning(COLLECTORS, name, cause).cure(line)
        }
    }
}

/// Whether the installed service, whose unit allows addresses of this machine only, may reach it.
fn is_reached(machine: &Machine, name: &str, addresses: &[SocketAddr]) -> Option<Finding> {
    let drop_ins = machine.unit()?.drop_ins;
    let is_allowed = drop_ins.lines().any(|line| {
        let line = line.trim();
        line.starts_with("IPAddressAllow=") || line == "IPAddressDeny="
    });
    let away: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    if is_allowed || away.iter().all(IpAddr::is_loopback) {
        return None;
    }
    let away: Vec<String> = away.iter().map(IpAddr::to_string).collect();
    let line = format!("IPAddressAllow={}", away.join(" "));
    let cause = "the service cannot reach it: its unit allows only addresses of this machine; \
        allow the name servers as well, \
                 unless they are local";
    let cure = service_unit::install(&machine.service, "collectors", &[&line]);
    Some(Finding::warning(COLLECTORS, name, cause).cure(cure))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    fn found(path: PathBuf, rotate: Option<Rotate>) -> Finding {
        let records = Records {
            path: Some(path),
            rotate_bytes: rotate.map_or(0, |rotate| rotate.bytes),
            rotate_files: rotate.map_or(0, |rotate| rotate.files),
            ..Records::default()
        };
        findings(&machine(&[]).1, &records).remove(0)
    }

    #[test]
    fn a_folder_that_is_not_there_and_a_file_that_is_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let missing = found(dir.path().join("none/flows.jsonl"), None);
        assert_eq!(missing.level, Level::Problem);
        assert!(missing.remedy.unwrap().starts_with("install -d "));
        assert_eq!(found(dir.path().to_owned(), None).level, Level::Problem);
        assert_ne!(found(dir.path().join("flows.jsonl"), None).level, Level::Problem);
    }

    #[test]
    fn room_is_needed_for_all_files_but_for_what_they_take_already() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flows.jsonl");
        std::fs::write(&path, [0; 1000]).unwrap();
        std::fs::write(dir.path().join("flows.jsonl.1"), [0; 500]).unwrap();
        assert_eq!(taken(&path, 3), 1500);
        let small = Rotate { bytes: 1, files: 1 };
        assert_eq!(found(path.clone(), Some(small)).level, Level::Ok);
        let bytes = u64::MAX >> 8;
        let huge = found(path, Some(Rotate { bytes, files: 3 }));
        assert_eq!(huge.level, Level::Warning, "{}", huge.cause);
    }

    #[test]
    fn the_service_writes_only_where_its_unit_lets_it() {
        let unit = ("etc/systemd/system/fenxi.service", "");
        let drop_in = (
            "etc/systemd/system/fenxi.service.d/records.conf",
            "[Service]\nReadWritePaths=/srv/flows -/data\n",
        );
        let is_told = |files: &[(&str, &str)], folder: &str| {
            in_reach(CHECK, &machine(files).1, Path::new(folder)).is_some()
        };
        assert!(!is_told(&[], "/srv"), "no service");
        assert!(is_told(&[unit], "/srv/flows"));
        assert!(!is_told(&[unit], "/var/lib/fenxi/a"));
        assert!(!is_told(&[unit, drop_in], "/srv/flows/a"));
        assert!(!is_told(&[unit, drop_in], "/data"));
        assert!(is_told(&[unit, drop_in], "/srv"));
    }
}

#[cfg(test)]
mod tests_of_collectors {
    use std::net::TcpListener;

    use super::super::finding::Level;
    use super::super::machine::tests::machine;
    use super::*;

    #[test]
    fn a_collector_that_listens_and_one_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let here = machine(&[]).1;
        assert_eq!(collector(&here, "there", &endpoint, true)[0].level, Level::Ok);
        drop(listener);
        let gone = collector(&here, "there", &endpoint, true);
        assert_eq!(gone[0].level, Level::Warning);
        assert_eq!(collector(&here, "there", &endpoint, false)[0].level, Level::Ok);
    }

    #[test]
    fn the_unit_lets_the_service_reach_other_machines_with_a_drop_in_only() {
        let service = ("usr/lib/systemd/system/fenxi.service", "[Service]");
        let away = ["192.0.2.9:4739".parse().unwrap()];
        let (_dir, plain) = machine(&[service]);
        let remedy = is_reached(&plain, "there", &away).unwrap().remedy.unwrap();
        assert!(remedy.contains("IPAddressAllow=192.0.2.9\\n"), "{remedy}");
        let local = ["127.0.0.1:4739".parse().unwrap()];
        assert_eq!(is_reached(&plain, "there", &local), None);
        assert_eq!(is_reached(&machine(&[]).1, "there", &away), None);
        let drop_in = (
            "etc/systemd/system/fenxi.service.d/collectors.conf",
            "[Service]\nIPAddressAllow=192.0.2.9",
        );
        assert_eq!(is_reached(&machine(&[service, drop_in]).1, "there", &away), None);
    }
}
