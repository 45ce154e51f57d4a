//! The machine as `/proc` and `/sys` describe it; tests use a folder with the same files.

use std::fs;
use std::path::{Path, PathBuf};

use dataplane::placement::numbers;

/// The files of a machine. All paths are relative to its root.
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn here() -> Machine {
        Machine {
            root: PathBuf::from("/"),
        }
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

    /// Whether the file or folder exists.
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
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The other processes whose program is called `fenxi`.
    pub fn other_fenxis(&self) -> Vec<u32> {
        let processes = self
            .names("proc")
            .into_iter()
            .filter_map(|name| name.parse().ok());
        let ours = std::process::id();
        processes
            .filter(|&pid| pid != ours && self.program(pid).as_deref() == Some("fenxi"))
            .collect()
    }

    /// The name of a process' program.
    pub fn program(&self, pid: u32) -> Option<String> {
        self.text(&format!("proc/{pid}/comm"))
    }

    /// Whether the service is installed, and the text of its drop-ins.
    pub fn unit(&self) -> Option<String> {
        let folders = ["etc", "run", "usr/lib", "lib"].map(|top| format!("{top}/systemd/system"));
        folders
            .iter()
            .find(|folder| self.has(&format!("{folder}/fenxi.service")))?;
        let drop_ins = folders.iter().flat_map(|folder| {
            let folder = format!("{folder}/fenxi.service.d");
            let files = self.names(&folder).into_iter();
            files.filter_map(move |name| self.text(&format!("{folder}/{name}")))
        });
        Some(drop_ins.collect::<Vec<_>>().join("\n"))
    }

    /// The path in the real file system.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The value of `name` in lines of `name: value`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
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
        let root = dir.path().to_owned();
        (dir, Machine { root })
    }

    #[test]
    fn fields() {
        let status = "Name:\tfenxi\nCapEff:\t0000000000002000\n";
        assert_eq!(field(status, "CapEff"), Some("0000000000002000"));
        assert_eq!(field(status, "Cap"), None);
    }

    #[test]
    fn a_unit_is_found_with_its_drop_ins() {
        assert_eq!(machine(&[]).1.unit(), None);
        let (_dir, machine) = machine(&[
            ("usr/lib/systemd/system/fenxi.service", "[Unit]"),
            (
                "etc/systemd/system/fenxi.service.d/mark.conf",
                "CAP_NET_ADMIN",
            ),
        ]);
        assert_eq!(machine.unit().as_deref(), Some("CAP_NET_ADMIN"));
    }
}
