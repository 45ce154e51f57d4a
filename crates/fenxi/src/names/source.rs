//! A file of names, read again when it changes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use accel::{ReadError, read_regular};
use tracing::{info, warn};

use super::join::Fact;
use super::{hosts_file, leases};

const HOSTS_FILE: &str = "/etc/hosts";

/// Bytes of a file at most.
const BYTES_MAX: u64 = 16 << 20;

/// Seconds after which a file is read again though it has not changed, since leases end.
const READ_AGAIN_S: i64 = 60;

pub struct Source {
    path: PathBuf,
    kind: Kind,
    /// What it said when it was last read.
    pub facts: Vec<Fact>,
    /// By which it is seen to change; `None`: it is not there.
    stamp: Option<Stamp>,
    /// Why it cannot be used, as was last said.
    problem: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    HostsFile,
    /// Leases in a file that the configuration names.
    Leases,
    /// Leases where a server may keep them.
    UsualLeases,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed_ns: (i64, i64),
    period: i64,
}

impl Stamp {
    fn new(found: &Metadata, now_s: i64) -> Stamp {
        Stamp {
            inode: found.ino(),
            bytes: found.size(),
            changed_ns: (found.mtime(), found.mtime_nsec()),
            period: now_s.div_euclid(READ_AGAIN_S),
        }
    }
}

impl Source {
    /// `/etc/hosts`, which names with authority, then these files of leases, or, if there are none,
    /// the usual ones.
    pub fn all(leases: &[PathBuf]) -> Vec<Source> {
        let named = leases.iter().map(|path| (path.clone(), Kind::Leases));
        let usual = leases::WELL_KNOWN.iter().filter(|_| leases.is_empty());
        let usual = usual.map(|path| (PathBuf::from(path), Kind::UsualLeases));
        let hosts = [(PathBuf::from(HOSTS_FILE), Kind::HostsFile)];
        let all = hosts.into_iter().chain(named).chain(usual);
        all.map(|(path, kind)| Source::new(path, kind)).collect()
    }

    fn new(path: PathBuf, kind: Kind) -> Source {
        Source { path, kind, facts: Vec::new(), stamp: None, problem: None }
    }

    /// Reads the file if it has changed; whether it says something else than before.
    pub fn read(&mut self, now_s: i64) -> bool {
        let found = std::fs::metadata(&self.path);
        let stamp = found.as_ref().ok().map(|found| Stamp::new(found, now_s));
        if stamp.is_some() && stamp == self.stamp {
            return false;
        }
        self.stamp = stamp;
        let (facts, problem) = match self.facts(now_s) {
            Ok(facts) => (facts, None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        self.tell(problem);
        let has_changed = facts != self.facts;
        self.facts = facts;
        has_changed
    }

    fn facts(&self, now_s: i64) -> Result<Vec<Fact>, String> {
        let text = match text(&self.path) {
            Ok(text) => text,
            Err(error) if error.is_not_found() && self.kind != Kind::Leases => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.to_string()),
        };
        if self.kind == Kind::HostsFile {
            return Ok(hosts_file::read(&text));
        }
        leases::read(&text, now_s)
            .ok_or_else(|| "no leases of dnsmasq, Kea, odhcpd or ISC dhcpd".to_owned())
    }

    /// Logs a problem once, and its end.
    fn tell(&mut self, problem: Option<String>) {
        let path = self.path.display();
        match &problem {
            Some(why) if self.problem != problem => {
                warn!("names: {path}: {why}; hosts are shown without its names (see docs/names.md)")
            }
            None if self.problem.is_some() => info!("names: {path} is read again"),
            _ => {}
        }
        self.problem = problem;
    }
}

/// The text of a file. Kea puts its file aside while it cleans up: what is there comes first.
fn text(path: &Path) -> Result<String, ReadError> {
    let mut all = Vec::new();
    if path.extension().is_some_and(|it| it == "csv") {
        let aside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            read_regular(Path::new(&name), BYTES_MAX).ok()
        };
        all = match aside(".completed") {
            Some(cleaned) => cleaned,
            None => [".2", ".1"].into_iter().filter_map(aside).flatten().collect(),
        };
    }
    all.extend(read_regular(path, BYTES_MAX)?);
    Ok(String::from_utf8_lossy(&all).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &Path, kind: Kind) -> Source {
        Source::new(path.to_owned(), kind)
    }

    fn names(source: &Source) -> Vec<&str> {
        source.facts.iter().filter_map(|fact| fact.name.as_deref()).collect()
    }

    #[test]
    fn a_file_is_read_when_it_changes_and_when_leases_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dnsmasq.leases");
        let mut source = source(&path, Kind::Leases);
        assert!(!source.read(0));
        assert!(source.problem.as_ref().unwrap().contains("No such file"), "{:?}", source.problem);
        let lease =
            |until: i64, name: &str| format!("{until} 00:16:3e:00:00:05 10.0.0.5 {name} *\n");
        std::fs::write(&path, lease(1_700_000_000, "laptop")).unwrap();
        assert!(source.read(1_699_999_980));
        assert_eq!((names(&source), &source.problem), (vec!["laptop"], &None));
        assert!(!source.read(1_699_999_981));
        // As a server replaces it.
        let other = dir.path().join("new");
        std::fs::write(&other, lease(1_700_000_000, "desktop")).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(source.read(1_699_999_982));
        assert_eq!(names(&source), ["desktop"]);
        assert!(source.read(1_700_000_060), "the lease has ended");
        assert_eq!(names(&source), Vec::<&str>::new());
        std::fs::write(&path, "<html>").unwrap();
        source.read(1_700_000_061);
        assert!(source.problem.as_ref().unwrap().starts_with("no leases of"));
    }

    #[test]
    fn a_usual_file_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        for kind in [Kind::UsualLeases, Kind::HostsFile] {
            let mut source = source(&dir.path().join("none"), kind);
            assert!(!source.read(0) && source.problem.is_none());
        }
        let mut folder = source(dir.path(), Kind::UsualLeases);
        folder.read(0);
        assert!(folder.problem.is_some());
    }

    #[test]
    fn what_kea_has_put_aside_counts_less_than_what_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kea-leases4.csv");
        let write = |suffix: &str, address: &str, name: &str| {
            let file = dir.path().join(format!("kea-leases4.csv{suffix}"));
            std::fs::write(file, format!("address,hostname\n{address},{name}\n")).unwrap();
        };
        write(".2", "10.0.0.5", "oldest");
        write(".1", "10.0.0.5", "older");
        write("", "10.0.0.6", "new");
        let mut source = source(&path, Kind::Leases);
        source.read(0);
        assert_eq!(names(&source), ["older", "new"]);
        write(".completed", "10.0.0.5", "cleaned");
        write("", "10.0.0.6", "newer");
        source.read(60);
        assert_eq!(names(&source), ["cleaned", "newer"]);
    }

    #[test]
    fn configured_files_replace_the_usual_ones() {
        assert_eq!(Source::all(&[]).len(), 1 + leases::WELL_KNOWN.len());
        let two = Source::all(&["/a".into(), "/b".into()]);
        let paths: Vec<_> = two.iter().map(|source| source.path.to_str().unwrap()).collect();
        assert_eq!(paths, [HOSTS_FILE, "/a", "/b"]);
    }
}
