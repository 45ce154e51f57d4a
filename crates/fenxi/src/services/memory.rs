//! Creates the memory of a service: a file for each flow worker, or memory without a name.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use config::Config;
use config::checked::Named;
use dataplane::Error;
use flowmgr::Service;
use measure::Features;
use observe::{Access, Allowed, Reader, Writer};

use super::meaning::Meaning;
use super::section::{Observe, ServiceKeys};
use crate::access::number_in;
use crate::metric::Buckets;

/// How memory is handed out, with users and groups by number.
#[derive(Debug, Clone)]
pub struct Rights {
    /// `None`: on a socket.
    pub folder: Option<PathBuf>,
    /// Only this process sees it, and its samples are the same each time.
    is_own: bool,
    access: Access,
    user: Option<u32>,
    /// What is measured of flows.
    measured: Features,
}

/// What this process keeps of a worker's memory.
pub struct Memory {
    pub reader: Reader,
    /// Can be read through, not written; none of memory that only this process sees.
    pub file: Option<OwnedFd>,
    pub path: Option<OwnPath>,
}

/// A service in use: its configuration, and its memory in each flow worker.
pub struct Place {
    pub named: Named<ServiceKeys>,
    pub memories: Vec<Memory>,
    /// Interfaces by their indices, which egresses may have.
    pub interfaces: Vec<(u32, String)>,
    /// Times to completion as they were shown last.
    pub shown: Option<Buckets>,
}

impl Rights {
    /// # Errors
    /// A user or group that there is not.
    pub fn new(config: &Config) -> Result<Rights, Error> {
        let observe: Observe = config.section();
        let user = number_of("observe.user", &observe.user, "/etc/passwd")?;
        let group = number_of("observe.group", &observe.group, "/etc/group")?;
        let folder = observe.socket.is_none().then(|| observe.folder.clone());
        // An owner could truncate the file, and this process would get SIGBUS.
        let access = Access { owner: None, group, mode: observe.mode };
        Ok(Rights { folder, is_own: false, access, user, measured: config.measure.in_use() })
    }

    /// Memory for a replay.
    pub fn of_replay(config: &Config) -> Rights {
        let access = Access { owner: None, group: None, mode: 0 };
        let measured = config.measure.in_use();
        Rights { folder: None, is_own: true, access, user: None, measured }
    }

    /// Whether files change hands, which takes a right.
    pub fn give_away(&self) -> bool {
        self.folder.is_some() && self.access.group.is_some()
    }

    /// Who gets memory over the socket.
    pub fn allowed(&self) -> Allowed {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Allowed {
            users: [Some(own.0), self.user].into_iter().flatten().collect(),
            groups: vec![self.access.group.unwrap_or(own.1)],
        }
    }

    /// Creates a service's memory for each of `workers` workers.
    ///
    /// # Errors
    /// The files cannot be created; no memory.
    pub fn create(
        &self,
        named: &Named<ServiceKeys>,
        meaning: &Meaning,
        workers: usize,
    ) -> Result<(Place, Vec<Service>), Error> {
        let mut place = Place {
            named: named.clone(),
            memories: Vec::new(),
            interfaces: meaning.out_ports.clone(),
            shown: None,
        };
        let mut services = Vec::new();
        for worker in 0..workers {
            let (memory, service) =
                self.create_one(named, meaning, (worker, workers)).map_err(|why| {
                    let name = &named.name;
                    let cure = match &self.folder {
                        Some(folder) => format!(
                            "; check that {} can be written, and observe.group",
                            folder.display()
                        ),
                        None => String::new(),
                    };
                    Error::CannotCreate(format!(
                        "service.{name}: cannot create its memory: {why}{cure}"
                    ))
                })?;
            place.memories.push(memory);
            services.push(service);
        }
        Ok((place, services))
    }

    fn create_one(
        &self,
        named: &Named<ServiceKeys>,
        meaning: &Meaning,
        worker: (usize, usize),
    ) -> Result<(Memory, Service), observe::Error> {
        let (fields, keys) = (Service::fields(self.measured), &named.keys);
        // One for all others.
        let egresses = keys.egresses + 1;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = if self.is_own { 1 } else { since.as_nanos() as u64 };
        let seed = epoch_ns ^ worker.0 as u64;
        let fields = &fields;
        let created = observe::Service {
            name: &named.name,
            egresses,
            fields,
            epoch_ns,
            writer: worker,
            seed,
        };
        let (writer, path) = match &self.folder {
            None if self.is_own => (Writer::in_memory(&created)?, None),
            None => (Writer::in_memfd(&created)?, None),
            Some(folder) => {
                // It gets its name once it is in use.
                let path = folder.join(format!("{}.{}.next", named.name, worker.0));
                (Writer::in_file(&created, &path, self.access)?, Some(OwnPath::new(path)))
            }
        };
        let file = writer.file().map(|file| file.try_clone_to_owned()).transpose()?;
        let reader = Reader::of(&writer)?;
        let service = Service::new(meaning.flows(keys), writer, egresses)?;
        Ok((Memory { reader, file, path }, service))
    }
}

impl Place {
    /// Gives its files their names, in place of files of a service before.
    pub fn name_files(&mut self) -> std::io::Result<()> {
        let mut paths = self.memories.iter_mut().filter_map(|memory| memory.path.as_mut());
        paths.try_for_each(OwnPath::take_name)
    }
}

/// A file that is removed when this is dropped, unless another has its name by then.
pub struct OwnPath {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

fn id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl OwnPath {
    fn new(path: PathBuf) -> OwnPath {
        OwnPath { id: id(&path), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops the extension.
    fn take_name(&mut self) -> std::io::Result<()> {
        let path = self.path.with_extension("");
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }
}

impl Drop for OwnPath {
    fn drop(&mut self) {
        if self.id.is_some() && id(&self.path) == self.id {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The number of a user or group, by its name in this file; `None` for no name.
fn number_of(key: &str, name: &str, file: &str) -> Result<Option<u32>, Error> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let unknown = || Error::Config(format!("{key} = \"{name}\": {file} has no such name"));
    number_in(file, name).map(Some).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers() {
        let of = |name: &str| number_of("observe.user", name, "/etc/passwd");
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of("root").unwrap(), Some(0));
        assert_eq!(of("65534").unwrap(), Some(65_534));
        let why = of("nosuchuser").unwrap_err().to_string();
        assert!(why.contains("observe.user = \"nosuchuser\""), "{why}");
    }

    #[test]
    fn a_file_goes_with_its_owner_but_never_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let make = || {
            let path = dir.path().join("web.0.next");
            fs::write(&path, "").unwrap();
            let mut own = OwnPath::new(path);
            own.take_name().unwrap();
            own
        };
        let (first, second) = (make(), make());
        let path = second.path().to_owned();
        assert_eq!(path, dir.path().join("web.0"));
        drop(first);
        assert!(path.exists(), "another has its name");
        drop(second);
        assert!(!path.exists());
    }
}
