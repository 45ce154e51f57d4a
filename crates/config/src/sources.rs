//! Where a configuration comes from: the files, the environment and the flags, which a reload reads
//! again.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use accel::{ReadError, read_regular};

use crate::checked::SECTIONS;
use crate::layers::{FILE_VARIABLE, FileLayer};
use crate::{Config, ConfigErrors, Loaded, Section, Settings};

/// The file that commands about the service read unless `--config` or [`FILE_VARIABLE`] names
/// another one.
pub const DEFAULT_FILE: &str = "/etc/fenxi/fenxi.toml";

/// The folder next to the configuration file whose files override it, in the order of their names.
const FOLDER: &str = "conf.d";

/// The most bytes read of a configuration file. `configs/1-1-1.toml`, which has every key, has some
/// 14,000.
const BYTES_MAX: u64 = 1 << 20;

/// Where a configuration comes from, in addition to the environment of the process.
#[derive(Debug, Clone)]
pub struct Sources {
    file: Option<PathBuf>,
    /// The file may be missing.
    is_default: bool,
    sets: Vec<String>,
    sections: Vec<&'static Section>,
    memory: Option<u64>,
}

impl Sources {
    /// The file that is named, if any, and `--set` arguments.
    pub fn named(file: Option<&Path>, sets: &[String]) -> Sources {
        Sources::with(file, std::env::var_os(FILE_VARIABLE), None, sets)
    }

    /// The same, but with [`DEFAULT_FILE`] where none is named.
    pub fn of_service(file: Option<&Path>, sets: &[String]) -> Sources {
        let default = Some(Path::new(DEFAULT_FILE));
        Sources::with(file, std::env::var_os(FILE_VARIABLE), default, sets)
    }

    fn with(
        file: Option<&Path>,
        variable: Option<OsString>,
        default: Option<&Path>,
        sets: &[String],
    ) -> Sources {
        let named = file.map(Path::to_owned).or(variable.clone().map(PathBuf::from));
        let is_default = named.is_none();
        let file = named.or(default.map(Path::to_owned));
        Sources {
            file: file.filter(|file| !file.as_os_str().is_empty()),
            is_default,
            sets: sets.to_vec(),
            sections: SECTIONS.to_vec(),
            memory: None,
        }
    }

    /// These, with defaults for live traffic within this many bytes of memory, if they are known.
    /// A replay has none, so that it repeats on every machine.
    pub fn within(mut self, memory: Option<u64>) -> Sources {
        self.memory = memory;
        self
    }

    /// These, with sections that [`Config`] has no field for: [`Config::section`] gives their
    /// values.
    pub fn and(mut self, sections: impl IntoIterator<Item = &'static Section>) -> Sources {
        self.sections.extend(sections);
        self
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all of them on top of each other and checks the outcome.
    ///
    /// # Errors
    /// A file that cannot be read, or all problems in what was read.
    pub fn load(&self) -> Result<Loaded, ConfigErrors> {
        let files = self.files()?;
        let mut problems = Vec::new();
        let variables = variables(&mut problems);
        Config::from_layers(self.defaults(), &files, &variables, &self.sets, problems)
    }

    fn defaults(&self) -> Settings {
        let sections = self.sections.clone();
        match self.memory {
            Some(memory) => Settings::within(sections, memory),
            None => Settings::new(sections),
        }
    }

    /// The socket on which a service with this configuration listens for `fenxi ctl`. Other
    /// problems are ignored, since the service reports them, and a file that cannot be read counts
    /// as empty.
    pub fn socket(&self) -> Option<PathBuf> {
        let files = self.files().unwrap_or_default();
        let mut problems = Vec::new();
        let variables = variables(&mut problems);
        let read = crate::layers::read;
        let settings = read(self.defaults(), &files, &variables, &self.sets, &mut problems);
        settings.setting("control.socket").file().ok().flatten()
    }

    /// The configuration file, and those in the folder next to it.
    fn files(&self) -> Result<Vec<FileLayer>, ConfigErrors> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let mut files = Vec::new();
        match read_regular(file, BYTES_MAX) {
            Err(error) if self.is_default && error.is_not_found() => {}
            read => files.push(text(file, read)?),
        }
        let folder = file.with_file_name(FOLDER);
        for path in names(&folder).map_err(|error| unreadable(&folder, &error))? {
            let read = read_regular(&path, BYTES_MAX);
            files.push(text(&path, read)?);
        }
        Ok(files)
    }
}

/// The `*.toml` files in a folder, by name; none if there is no folder. Hidden files are left out:
/// editors leave them.
fn names(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(b".toml") && !bytes.starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn text(path: &Path, read: Result<Vec<u8>, ReadError>) -> Result<FileLayer, ConfigErrors> {
    let name = path.display().to_string();
    let bytes = read.map_err(|error| unreadable(path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigErrors::Invalid(vec![format!("{name}:{line}: not UTF-8 text")])
    })?;
    Ok(FileLayer { name, text })
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> ConfigErrors {
    let name = path.display();
    ConfigErrors::Unreadable(format!("{name}: cannot read the configuration: {error}"))
}

/// The environment, by name.
fn variables(problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        match value.into_string() {
            Ok(value) => variables.push((name, value)),
            // A path need not be text.
            Err(_) if name == FILE_VARIABLE => {}
            Err(_) if name.starts_with("FENXI_") => {
                problems.push(format!("{name}: the value is not UTF-8 text"))
            }
            Err(_) => {}
        }
    }
    variables.sort_unstable();
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        std::fs::write(dir.join(name), text).unwrap();
    }

    #[test]
    fn the_folder_goes_over_the_file_in_the_order_of_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        write(
            dir.path(),
            "f.toml",
            "[flow]\nidle_timeout_s = 1\nclosed_timeout_s = 2\nactive_timeout_s = 3",
        );
        let folder = dir.path().join("conf.d");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "20-b.toml", "[flow]\nidle_timeout_s = 20");
        write(&folder, "10-a.toml", "\n[flow]\nidle_timeout_s = 10\nclosed_timeout_s = 11");
        for other in [".10-a.toml", "30-c.toml~", "README"] {
            write(&folder, other, "no TOML");
        }
        let loaded = Sources::named(Some(&file), &[]).load().unwrap();
        let rows = loaded.effective().config;
        let shown = |key: &str| {
            let row = rows.iter().find(|row| row.key == key).unwrap();
            let origin = row.origin.to_string();
            let name = origin.rsplit('/').next().unwrap().to_owned();
            (row.value.as_integer().unwrap(), name)
        };
        assert_eq!(shown("flow.idle_timeout_s"), (20, "20-b.toml:2".to_owned()));
        assert_eq!(shown("flow.closed_timeout_s"), (11, "10-a.toml:4".to_owned()));
        assert_eq!(shown("flow.active_timeout_s"), (3, "f.toml:4".to_owned()));

        write(&folder, "15-x.toml", "[flow]\nidle = 1\n[cache]\nprefix = 99");
        let Err(ConfigErrors::Invalid(lines)) = Sources::named(Some(&file), &[]).load() else {
            panic!("not refused");
        };
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("conf.d/15-x.toml:2: unknown key flow.idle"));
        assert!(lines[1].contains("conf.d/15-x.toml:4: cache.prefix"));
    }

    #[test]
    fn flag_over_variable_over_default() {
        let [flag, default] = ["/flag", "/default"].map(Path::new);
        let chosen = |file, variable: Option<&str>, default| {
            let variable = variable.map(OsString::from);
            let sources = Sources::with(file, variable, default, &[]);
            (sources.file, sources.is_default)
        };
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(chosen(Some(flag), Some("/v"), Some(default)), (path("/flag"), false));
        assert_eq!(chosen(None, Some("/v"), Some(default)), (path("/v"), false));
        assert_eq!(chosen(None, Some(""), Some(default)), (None, false));
        assert_eq!(chosen(None, None, Some(default)), (path("/default"), true));
        assert_eq!(chosen(None, None, None), (None, true));
    }

    #[test]
    fn only_the_default_may_be_missing_and_its_folder_counts_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        let default = Sources::with(None, None, Some(&file), &[]);
        assert!(default.load().is_ok());
        let named = Sources::with(Some(&file), None, None, &[]);
        assert!(matches!(named.load(), Err(ConfigErrors::Unreadable(_))));
        let folder = dir.path().join("conf.d");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "a.toml", "[io]\nburst = 7");
        assert_eq!(default.load().unwrap().config.io.burst, 7);
    }

    #[test]
    fn a_relative_path_is_meant_from_the_file_that_it_stands_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        write(
            dir.path(),
            "f.toml",
            "[model]\npath = \"m\"\n[control]\nsocket = \"../s\"\nhttp = \"unix:h\"\n\
             [device.native]\nprofile = \"p\"\n[accel]\nlibrary = \"/l\"",
        );
        let folder = dir.path().join("conf.d");
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "a.toml", "[records]\npath = \"r\"");
        let config = Sources::named(Some(&file), &[]).load().unwrap().config;
        let at = |path: &str| Some(dir.path().join(path));
        assert_eq!(config.model.path, at("m"));
        assert_eq!(config.control.socket, at("../s"));
        let http = at("h").map(crate::checked::HttpPlace::Unix);
        assert_eq!(config.control.http, http);
        assert_eq!(config.accel.devices[0].profile, at("p"));
        assert_eq!(config.accel.library, Some("/l".into()));
        assert_eq!(config.records.path, at("conf.d/r"));
        assert_eq!(Sources::named(Some(&file), &[]).socket(), at("../s"));
        // On the command line, as for any program.
        let sets = ["model.path=m".to_owned()];
        let config = Sources::named(Some(&file), &sets).load().unwrap().config;
        assert_eq!(config.model.path, Some("m".into()));
    }

    #[test]
    fn only_regular_files_are_read() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let dir = tempfile::tempdir().unwrap();
        let refusal = |file: &Path| {
            let Err(ConfigErrors::Unreadable(line)) = Sources::named(Some(file), &[]).load() else {
                panic!("not refused");
            };
            line
        };
        let zero = refusal(Path::new("/dev/zero"));
        assert!(zero.starts_with("/dev/zero: ") && zero.contains("it is a device"), "{zero}");
        let file = dir.path().join("f.toml");
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(refusal(&file).contains("f.toml: cannot read the configuration: it is a FIFO"));
        std::fs::remove_file(&file).unwrap();
        write(dir.path(), "f.toml", &"#".repeat(BYTES_MAX as usize + 1));
        assert!(refusal(&file).contains("it is larger than 1048576 bytes"));
        write(dir.path(), "f.toml", "");
        std::fs::create_dir_all(dir.path().join("conf.d/a.toml")).unwrap();
        assert!(
            refusal(&file).contains("conf.d/a.toml: cannot read the configuration: it is a folder")
        );
    }

    #[test]
    fn the_socket_is_found_in_a_file_that_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        write(dir.path(), "f.toml", "[flow]\nk = \"ten\"\n[control]\nsocket = \"/x\"");
        let sources = Sources::named(Some(&file), &[]);
        assert!(sources.load().is_err());
        assert_eq!(sources.socket(), Some("/x".into()));
        write(dir.path(), "f.toml", "[control]\nsocket = \"\"");
        assert_eq!(sources.socket(), None);
    }
}
