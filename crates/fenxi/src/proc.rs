//! The machine as `/proc` and `/sys` describe it; tests use a folder with the same files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dataplane::placement::numbers;

use crate::service_unit::UNIT;

/// The files of a machine. All paths are relative to its root.
pub struct Machine {
    root: PathBuf,
    /// The name of the service's unit.
    pub service: String,
}

/// The unit of an installed service, with its drop-ins in the order in which systemd reads them.
pub struct Unit {
    /// The settings of the unit's own file.
    pub own: String,
    pub drop_ins: String,
}

impl Machine {
    /// The machine that this process runs on, with the service as it is installed by default.
    pub fn here() -> Machine {
        Machine::with_service(UNIT)
    }

    /// The machine that this process runs on, with this service.
    pub fn with_service(service: &str) -> Machine {
        Machine { root: PathBuf::from("/"), service: service.to_owned() }
    }

    /// A file's text, trimmed; `None` if it cannot be read.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// A file's whole number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// A file's list of numbers, as in `0-3,6`.
    pub fn list(&self, path: &str) -> Option<Vec<usize>> {
        Some(numbers(&self.text(path)?))
    }

    /// CPUs that are online; empty if the kernel does not list them.
    pub fn online_cpus(&self) -> Vec<usize> {
        self.list("sys/devices/system/cpu/online").unwrap_or_default()
    }

    /// The value of `name` in a file of lines `name: value`, such as `/proc/self/status`.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        field(&self.text(path)?, name).map(str::to_owned)
    }

    /// The same in bytes, where a value is in kB.
    pub fn bytes(&self, path: &str, name: &str) -> Option<u64> {
        let value = self.field(path, name)?;
        let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The last component of a link's target.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The sorted names in a folder; none if the folder does not exist.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The other processes whose program is called `fenxi`.
    pub fn other_fenxis(&self) -> Vec<u32> {
        let ours = std::process::id();
        let mut others = self.processes();
        others.retain(|&pid| pid != ours && self.program(pid).as_deref() == Some("fenxi"));
        others
    }

    pub fn processes(&self) -> Vec<u32> {
        let names = self.names("proc").into_iter();
        names.filter_map(|name| name.parse().ok()).collect()
    }

    /// The name of a process' program.
    pub fn program(&self, pid: u32) -> Option<String> {
        self.text(&format!("proc/{pid}/comm"))
    }

    /// The service's unit, if it is installed.
    pub fn unit(&self) -> Option<Unit> {
        let folders = ["etc", "run", "usr/lib", "lib"].map(|top| format!("{top}/systemd/system"));
        // The instance's files, then its template's.
        let template = self.service.split_once('@');
        let template = template.map(|(name, _)| format!("{name}@.service"));
        let names = [Some(self.service.clone()), template];
        let units = names.iter().flatten();
        let places = units.flat_map(|unit| folders.iter().map(move |it| format!("{it}/{unit}")));
        let places: Vec<String> = places.collect();
        let own = places.iter().find_map(|place| self.text(place))?;
        // The first drop-in of a name counts.
        let mut drop_ins = BTreeMap::new();
        for folder in places.iter().map(|place| format!("{place}.d")) {
            let names = self.names(&folder).into_iter();
            for name in names.filter(|name| name.ends_with(".conf")) {
                let text = self.text(&format!("{folder}/{name}")).unwrap_or_default();
                drop_ins.entry(name).or_insert(text);
            }
        }
        let drop_ins: Vec<String> = drop_ins.into_values().collect();
        Some(Unit { own, drop_ins: drop_ins.join("\n") })
    }

    /// The path in the real file system.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The value of `name` in lines of `name: value`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A machine with these files; a text that starts with `->` is a link.
    pub fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        }
        let machine =
            Machine { root: dir.path().to_owned(), service: crate::service_unit::UNIT.to_owned() };
        (dir, machine)
    }

    #[test]
    fn fields() {
        let status = "Name:\tfenxi\nCapEff:\t0000000000002000\n";
        assert_eq!(field(status, "CapEff"), Some("0000000000002000"));
        assert_eq!(field(status, "Cap"), None);
    }

    #[test]
    fn a_unit_is_found_with_its_drop_ins() {
        assert!(machine(&[]).1.unit().is_none());
        let (_dir, mut machine) = machine(&[
            ("usr/lib/systemd/system/fenxi.service", "[Unit]"),
            ("usr/lib/systemd/system/fenxi.service.d/b.conf", "shadowed"),
            ("etc/systemd/system/fenxi.service.d/b.conf", "b"),
            ("usr/lib/systemd/system/fenxi.service.d/c.conf", "c"),
            ("etc/systemd/system/fenxi.service.d/a.conf.orig", "a"),
            ("usr/lib/systemd/system/fenxi@.service", "[Template]"),
            ("etc/systemd/system/fenxi@.service.d/all.conf", "all"),
            ("etc/systemd/system/fenxi@lan0.service.d/lan0.conf", "lan0"),
            ("etc/systemd/system/fenxi@lan1.service.d/lan1.conf", "lan1"),
        ]);
        let unit = machine.unit().unwrap();
        assert_eq!((&*unit.own, unit.drop_ins.as_str()), ("[Unit]", "b\nc"), "{}", machine.service);
        machine.service = "fenxi@lan0.service".to_owned();
        let unit = machine.unit().unwrap();
        assert_eq!((&*unit.own, unit.drop_ins.as_str()), ("[Template]", "all\nlan0"));
    }
}
