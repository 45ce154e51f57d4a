//! A file of names, read again when it changes.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use accel::{ReadError, read_regular};
use rustix::fs::OFlags;
use tracing::{info, warn};

use super::join::Fact;
use super::{hosts_file, leases};

const HOSTS_FILE: &str = "/etc/hosts";

/// Bytes of a file at most; of a larger one the last ones count, where servers add leases.
const BYTES_MAX: u64 = 16 << 20;
/// Bytes of a file's first line at most, where Kea names the columns.
const HEADER_MAX: u64 = 4096;

/// Users below are of the system, and not people who may log in.
const PEOPLE_MIN: u32 = 1000;

/// Seconds after which a file is read again though it has not changed, since leases end.
const READ_AGAIN_S: i64 = 60;

pub struct Source {
    path: PathBuf,
    kind: Kind,
    /// What it said when it could last be read.
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
        match self.facts(now_s) {
            Ok(facts) => {
                self.tell(None);
                let has_changed = facts != self.facts;
                self.facts = facts;
                has_changed
            }
            // What it said stays: rules for its hosts should not end with a mistake in it.
            Err(problem) => {
                self.tell(Some(problem));
                false
            }
        }
    }

    fn facts(&self, now_s: i64) -> Result<Vec<Fact>, String> {
        if self.kind == Kind::UsualLeases {
            let found = self.path.symlink_metadata();
            if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                return Ok(Vec::new());
            }
            distrust(&self.path)?;
        }
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
                warn!(
                    "names: {path}: {why}; hosts keep the names that it gave before, if any (see \
                     docs/names.md)"
                )
            }
            None if self.problem.is_some() => info!("names: {path} is read again"),
            _ => {}
        }
        self.problem = problem;
    }
}

/// Why somebody who is not the system could have written a file in a usual place: where there is no
/// server, anybody may make files in `/tmp`.
fn distrust(path: &Path) -> Result<(), String> {
    let name_it = "; if it is right, name it in names.leases";
    // A link has an owner, and so has the file that it leads to.
    for found in [path.symlink_metadata(), path.metadata()].into_iter().flatten() {
        let is_link = found.is_symlink();
        if found.uid() >= PEOPLE_MIN || (!is_link && is_open_to_all(found.mode())) {
            return Err(format!("a user may have written it{name_it}"));
        }
    }
    let Ok(found) = path.parent().unwrap_or(path).metadata() else { return Ok(()) };
    match found.uid() >= PEOPLE_MIN || is_open(found.uid(), found.mode()) {
        true => Err(format!("a user may write into its folder{name_it}")),
        false => Ok(()),
    }
}

/// Whether anybody may write into it.
fn is_open_to_all(mode: u32) -> bool {
    mode & 0o002 != 0
}

/// Whether anybody may replace files in a folder. In a sticky one of root, only their owners may.
fn is_open(owner: u32, mode: u32) -> bool {
    is_open_to_all(mode) && (mode & 0o1000 == 0 || owner != 0)
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
    match read_regular(path, BYTES_MAX) {
        Err(ReadError::TooLarge { limit }) => all.extend(last_lines(path, limit)?),
        read => all.extend(read?),
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// The whole lines in the last bytes of a file that is larger, behind the line with its columns, if
/// it has one.
fn last_lines(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut header = Vec::new();
    BufReader::new((&file).take(HEADER_MAX)).read_until(b'\n', &mut header)?;
    if !header.starts_with(b"address,") {
        header.clear();
    }
    file.seek(SeekFrom::End(-bytes.cast_signed()))?;
    let mut last = BufReader::new(file.take(bytes));
    last.skip_until(b'\n')?;
    last.read_to_end(&mut header)?;
    Ok(header)
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
    fn names_stay_while_their_file_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dnsmasq.leases");
        std::fs::write(&path, "0 00:16:3e:00:00:05 10.0.0.5 laptop *\n").unwrap();
        let mut source = source(&path, Kind::Leases);
        assert!(source.read(0));
        std::fs::write(&path, "<html>").unwrap();
        assert!(!source.read(1));
        assert_eq!((names(&source), source.problem.is_some()), (vec!["laptop"], true));
        std::fs::remove_file(&path).unwrap();
        assert!(!source.read(2));
        assert_eq!((names(&source), source.problem.is_some()), (vec!["laptop"], true));
        std::fs::write(&path, "0 00:16:3e:00:00:05 10.0.0.5 desktop *\n").unwrap();
        assert!(source.read(3));
        assert_eq!((names(&source), &source.problem), (vec!["desktop"], &None));
    }

    #[test]
    fn the_last_lines_of_a_large_file_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases");
        let lines =
            ["0 00:16:3e:00:00:05 10.0.0.5 old *\n", "0 00:16:3e:00:00:06 10.0.0.6 new *\n"];
        std::fs::write(&path, lines.concat()).unwrap();
        let last = |bytes: usize| last_lines(&path, bytes as u64).unwrap();
        assert_eq!(last(lines[1].len() + 5), lines[1].as_bytes());
        let (header, row) = ("address,hwaddr\n", "10.0.0.6,00:16:3e:00:00:06\n");
        std::fs::write(&path, [header, "10.0.0.5,\n", row].concat()).unwrap();
        assert_eq!(last(row.len() + 1), [header, row].concat().as_bytes());

        let large = [header.as_bytes(), &vec![b'\n'; BYTES_MAX as usize], row.as_bytes()].concat();
        std::fs::write(&path, large).unwrap();
        let mut source = source(&path, Kind::Leases);
        assert!(source.read(0), "{:?}", source.problem);
        assert_eq!(source.facts.len(), 1);
    }

    #[test]
    fn a_file_in_a_usual_place_counts_only_if_no_user_can_write_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dhcp.leases");
        std::fs::write(&path, "0 00:16:3e:00:00:05 10.0.0.5 laptop *\n").unwrap();
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let is_of_system = dir.path().metadata().unwrap().uid() < PEOPLE_MIN;
        for (folder, file, is_taken) in [
            (0o755, 0o644, is_of_system),
            (0o755, 0o666, false),
            (0o777, 0o644, false),
            (0o1777, 0o644, is_of_system && dir.path().metadata().unwrap().uid() == 0),
        ] {
            allow(dir.path(), folder);
            allow(&path, file);
            let mut usual = source(&path, Kind::UsualLeases);
            usual.read(0);
            assert_eq!((usual.facts.len() == 1, usual.problem.is_none()), (is_taken, is_taken));
            let mut named = source(&path, Kind::Leases);
            named.read(0);
            assert_eq!(named.facts.len(), 1, "the configuration names it");
        }
        if is_of_system && std::os::unix::fs::chown(&path, Some(PEOPLE_MIN), None).is_ok() {
            let mut usual = source(&path, Kind::UsualLeases);
            usual.read(0);
            assert!(usual.facts.is_empty() && usual.problem.is_some());
        }
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
