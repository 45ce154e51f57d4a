//! The layers: built-in defaults, then the files in their order, then `FENXI_*` variables, then `--set`; later ones
//! win.
//!
//! All go through [`Layer`], so a value is checked in the same way wherever it comes from, and
//! each keeps its [`Origin`]. Nothing here stops at the first problem: a wrong value is noted, the
//! layer below keeps its place, and reading goes on. The `[device.NAME]` tables are read in [`devices`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::keys::{DEVICE, KEYS, Key, device_position, nearest, position, sections};
use super::kind::{Entry, Kind};

mod devices;
mod values;

use values::{in_order, line_and_column, loose, one_line, owned, suggest};

/// `FENXI_*` variables that are not configuration keys.
const OTHER_VARIABLES: [&str; 3] = [
    "FENXI_ONNXRUNTIME",
    "FENXI_REQUIRE_ALL",
    super::sources::VARIABLE,
];

/// A file of the configuration.
#[derive(Debug, Clone)]
pub struct FileLayer {
    /// As origins and problems name it.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// A shorter name for the variable of a key, which wins where both are set.
const SHORT_VARIABLE: (&str, &str) = ("FENXI_LOG", "FENXI_LOG_LEVEL");

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    BuiltIn,
    /// A line of a configuration file, counted from 1.
    File {
        /// The file as it was named.
        file: Arc<str>,
        /// The line.
        line: usize,
    },
    /// This environment variable.
    Variable(Arc<str>),
    /// `--set`.
    Set,
}

impl Origin {
    /// The file that a path means. A relative one is meant from the folder of the configuration file that it stands in, so
    /// that it means the same wherever the program is started; elsewhere, from the working directory.
    pub fn resolve(&self, path: &str) -> PathBuf {
        match self {
            Origin::File { file, .. } => Path::new(&**file).with_file_name("").join(path),
            _ => PathBuf::from(path),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built-in"),
            Origin::File { file, line } => write!(f, "{file}:{line}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
        }
    }
}

/// A key's value after all layers.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Of the key's kind.
    pub value: Value,
    /// The layer that set it.
    pub origin: Origin,
    /// Whether some layer gave a value that was refused, so that `value` is not what the user
    /// meant.
    pub refused: bool,
}

impl Setting {
    /// The value as a path, where it is one.
    pub fn path(&self) -> Option<PathBuf> {
        let text = self.value.as_str().filter(|text| !text.is_empty())?;
        Some(self.origin.resolve(text))
    }
}

/// One entry of a [`Kind::Map`].
#[derive(Debug, Clone)]
pub struct EntrySetting {
    /// Of the map's kind of entry.
    pub value: Value,
    /// The layer that set it.
    pub origin: Origin,
}

/// The entries of a [`Kind::Map`], by name.
pub type Entries = BTreeMap<String, EntrySetting>;

/// A `[device.NAME]` table.
#[derive(Debug, Clone)]
pub struct DeviceSettings {
    /// Where it was first named.
    pub origin: Origin,
    /// What was set, in the order of [`super::keys::DEVICE_KEYS`]; of options only that they were.
    values: Vec<Option<Setting>>,
    /// Entries of `options`.
    pub options: Entries,
    /// Whether some value was refused.
    pub refused: bool,
}

impl DeviceSettings {
    /// The setting of the key called `name`, if there is one.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.values[device_position(name)?].as_ref()
    }
}

/// What the layers came to, before the keys are checked against each other.
#[derive(Debug, Clone)]
pub struct Settings {
    /// In the order of [`KEYS`]. The value of a [`Kind::Map`] stands in `maps` instead.
    values: Vec<Setting>,
    /// The maps, in the order of [`KEYS`]; those of other keys are empty.
    maps: Vec<Entries>,
    /// The `[device.NAME]` tables.
    pub devices: BTreeMap<String, DeviceSettings>,
}

impl Settings {
    /// The setting of the key called `path`, which is in the catalogue.
    #[expect(
        clippy::expect_used,
        reason = "paths are literals of this crate, and every start looks all of them up"
    )]
    pub fn setting(&self, path: &str) -> &Setting {
        &self.values[position(path).expect("a path of the catalogue")]
    }

    /// The entries of the map called `path`.
    pub fn entries(&self, path: &str) -> &Entries {
        static NONE: Entries = Entries::new();
        position(path).map_or(&NONE, |position| &self.maps[position])
    }

    /// These, with those of `running` where a key changes at a start only.
    pub fn live_over(&self, running: &Settings) -> Settings {
        let mut mixture = self.clone();
        for (at, key) in KEYS.iter().enumerate() {
            if !key.is_live() {
                mixture.values[at] = running.values[at].clone();
                mixture.maps[at] = running.maps[at].clone();
            }
        }
        mixture
    }
}

/// Reads all layers on top of each other. Problems are one line each, in the order in which a user
/// would look for them.
pub fn read(
    files: &[FileLayer],
    variables: &[(String, String)],
    sets: &[String],
    problems: &mut Vec<String>,
) -> Settings {
    let unset = Setting {
        value: Value::Boolean(false),
        origin: Origin::BuiltIn,
        refused: false,
    };
    let mut settings = Settings {
        values: vec![unset; KEYS.len()],
        maps: vec![Entries::new(); KEYS.len()],
        devices: BTreeMap::new(),
    };
    for key in KEYS {
        Layer::new(Source::BuiltIn, &mut settings, problems).read_raw(key, key.default);
    }
    for FileLayer { name, text } in files {
        let source = Source::File {
            name: name.as_str().into(),
            text,
        };
        Layer::new(source, &mut settings, problems).read_file(text);
    }
    for (name, value) in variables {
        if name.starts_with("FENXI_") && !OTHER_VARIABLES.contains(&name.as_str()) {
            let source = Source::Variable(name.as_str().into());
            Layer::new(source, &mut settings, problems).read_variable(name, value);
        }
    }
    for set in sets {
        Layer::new(Source::Set, &mut settings, problems).read_set(set);
    }
    settings
}

/// What a layer reads from.
enum Source<'a> {
    BuiltIn,
    File { name: Arc<str>, text: &'a str },
    Variable(Arc<str>),
    Set,
}

impl Source<'_> {
    fn file_name(&self) -> &str {
        match self {
            Source::File { name, .. } => name,
            _ => "",
        }
    }

    fn origin(&self, at: Range<usize>) -> Origin {
        match self {
            Source::BuiltIn => Origin::BuiltIn,
            Source::File { name, text } => Origin::File {
                file: name.clone(),
                line: line_and_column(text, at.start).0,
            },
            Source::Variable(name) => Origin::Variable(name.clone()),
            Source::Set => Origin::Set,
        }
    }
}

/// One source being laid over the settings so far.
struct Layer<'a> {
    source: Source<'a>,
    settings: &'a mut Settings,
    problems: &'a mut Vec<String>,
}

impl<'a> Layer<'a> {
    fn new(source: Source<'a>, settings: &'a mut Settings, problems: &'a mut Vec<String>) -> Self {
        Layer {
            source,
            settings,
            problems,
        }
    }

    fn read_file(&mut self, text: &str) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        // One slip often makes the parser stumble again further on, so only the first is sure to be real.
        if let Some(first) = errors.iter().min_by_key(|error| start(error)) {
            let (line, column) = line_and_column(text, start(first));
            let file = self.source.file_name();
            self.problems.push(format!(
                "{file}:{line}:{column}: not TOML: {}",
                one_line(first.message())
            ));
            return;
        }
        for (name, value) in in_order(root.get_ref()) {
            match value.get_ref() {
                DeValue::Table(table) if sections().contains(&name.get_ref().as_ref()) => {
                    for (key, value) in in_order(table) {
                        let path = format!("{}.{}", name.get_ref(), key.get_ref());
                        self.read_key(&path, key.span(), value);
                    }
                }
                DeValue::Table(table) if name.get_ref() == DEVICE => self.read_devices(table),
                DeValue::Table(_) => {
                    let near = nearest(name.get_ref(), sections().into_iter().chain([DEVICE]));
                    let near =
                        near.map_or(String::new(), |near| format!("; did you mean [{near}]?"));
                    self.problem(
                        name.span(),
                        &format!("unknown section [{}]{near}", name.get_ref()),
                    );
                }
                _ if sections().contains(&name.get_ref().as_ref()) => {
                    let name_text = name.get_ref();
                    self.problem(
                        name.span(),
                        &format!(
                            "{name_text} is a section: write [{name_text}] and its keys below"
                        ),
                    );
                }
                _ if name.get_ref() == DEVICE => self.problem(
                    name.span(),
                    &format!(
                        "{DEVICE} is a section of tables: write [{DEVICE}.NAME] and its keys below"
                    ),
                ),
                _ => self.unknown_key(name.span(), name.get_ref()),
            }
        }
    }

    fn read_variable(&mut self, name: &str, value: &str) {
        let whole = match SHORT_VARIABLE {
            (short, whole) if name == short => whole,
            _ => name,
        };
        match KEYS.iter().find(|key| key.variable() == whole) {
            Some(key) => self.read_raw(key, value),
            None => {
                let known: Vec<_> = KEYS.iter().map(Key::variable).collect();
                let near = suggest(name, known.iter().map(String::as_str));
                self.problem(
                    0..0,
                    &format!("no key goes with this environment variable{near}"),
                );
            }
        }
    }

    fn read_set(&mut self, set: &str) {
        let Some((path, value)) = set.split_once('=') else {
            self.problem(0..0, &format!("{set}: expected key=value, as in flow.k=10"));
            return;
        };
        let path = path.trim();
        if let Some(rest) = path.strip_prefix("device.") {
            self.set_device(path, rest, value.trim());
        } else if let Some((position, entry, label)) = map_entry(path) {
            match loose(value.trim(), false) {
                Ok(value) => self.read_entry(position, entry, label, 0..0, &value),
                Err(message) => self.problem(0..0, &format!("{path}: {message}")),
            }
        } else if let Some(position) = position(path) {
            self.read_raw(&KEYS[position], value.trim());
        } else {
            self.unknown_key(0..0, path);
        }
    }

    /// A value given by itself: a default, a variable or the right side of `--set`.
    fn read_raw(&mut self, key: &Key, text: &str) {
        match loose(text, key.kind.is_text()) {
            Ok(value) => self.read_key(key.path, 0..0, &value),
            Err(message) => self.refuse(key, 0..0, &message),
        }
    }

    fn read_key(&mut self, path: &str, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let Some(position) = position(path) else {
            self.unknown_key(at, path);
            return;
        };
        let key = &KEYS[position];
        if let (Kind::Map(entry), DeValue::Table(table)) = (key.kind, value.get_ref()) {
            // The table as a whole replaces what the layers below had.
            self.settings.maps[position].clear();
            self.accept(position, at, Value::Table(toml::Table::new()));
            for (name, value) in in_order(table) {
                self.read_entry(position, entry, name.get_ref(), name.span(), value);
            }
            return;
        }
        let value = owned(value).and_then(|value| key.kind.check(value));
        match value {
            Ok(value) => self.accept(position, at, value),
            Err(found) => self.refuse(key, at, &key.kind.complaint(&found, key.unit)),
        }
    }

    fn read_entry(
        &mut self,
        position: usize,
        entry: Entry,
        name: &str,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) {
        match self.entry(entry, at.clone(), value) {
            Ok(setting) => {
                self.settings.maps[position].insert(name.to_owned(), setting);
            }
            Err(complaint) => {
                self.problem(at, &format!("{}.{name}: {complaint}", KEYS[position].path));
            }
        }
    }

    fn entry(
        &self,
        entry: Entry,
        at: Range<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<EntrySetting, String> {
        let value = owned(value).and_then(|value| entry.check(value));
        let value = value.map_err(|found| entry.complaint(&found))?;
        let origin = self.source.origin(at);
        Ok(EntrySetting { value, origin })
    }

    fn accept(&mut self, position: usize, at: Range<usize>, value: Value) {
        let origin = self.source.origin(at);
        self.settings.values[position] = Setting {
            value,
            origin,
            refused: false,
        };
    }

    fn refuse(&mut self, key: &Key, at: Range<usize>, message: &str) {
        if let Some(position) = position(key.path) {
            self.settings.values[position].refused = true;
        }
        self.problem(at, &format!("{}: {message}", key.path));
    }

    fn unknown_key(&mut self, at: Range<usize>, path: &str) {
        let near = suggest(path, KEYS.iter().map(|key| key.path));
        self.problem(at, &format!("unknown key {path}{near}"));
    }

    fn problem(&mut self, at: Range<usize>, message: &str) {
        self.problems
            .push(format!("{}: {message}", self.source.origin(at)));
    }
}

/// The map that a path such as `tag.dscp.TLS` leads into, and the entry's name. Quotes around it are TOML's for odd ones;
/// here they are not needed, only allowed.
fn map_entry(path: &str) -> Option<(usize, Entry, &str)> {
    KEYS.iter().enumerate().find_map(|(position, key)| {
        let Kind::Map(entry) = key.kind else {
            return None;
        };
        let name = path.strip_prefix(key.path)?.strip_prefix('.')?;
        Some((position, entry, name.trim_matches('"')))
    })
}
