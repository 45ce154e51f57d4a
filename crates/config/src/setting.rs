//! A key's value with the layer that set it, and the typed forms that fields want.
//!
//! A value was held against its key's kind before, so these conversions succeed. Where a key is
//! declared with a kind that does not fit its field, each start is refused with the key's name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

use crate::keys::Key;
use crate::kind::Kind;
use crate::origin::Origin;
use crate::value::FromValue;

/// The longest path of a Unix socket, in bytes: `sun_path` of `sockaddr_un`, less the NUL at its
/// end.
const SOCKET_PATH_MAX: usize = 107;

/// A key's value after all layers.
#[derive(Debug, Clone)]
pub struct Setting {
    /// A value of the key's kind. For a map it only says that the key was set; `entries` has the
    /// content.
    pub value: Value,
    /// The entries of a map, by name.
    pub entries: BTreeMap<String, EntrySetting>,
    /// The layer that set it.
    pub origin: Origin,
    /// Whether some layer gave a value that was refused, so that `value` is not what the user
    /// meant.
    pub refused: bool,
}

/// One entry of a map.
#[derive(Debug, Clone)]
pub struct EntrySetting {
    /// A value of the map's kind of entry.
    pub value: Value,
    /// The layer that set it.
    pub origin: Origin,
    /// Whether the built-in map has the same.
    pub is_default: bool,
}

/// Wherever it was set.
impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.value == other.value && self.entries == other.entries
    }
}

impl PartialEq for EntrySetting {
    fn eq(&self, other: &EntrySetting) -> bool {
        self.value == other.value
    }
}

impl Setting {
    /// A value that was accepted.
    pub(crate) fn accepted(value: Value, origin: Origin) -> Setting {
        Setting { value, entries: BTreeMap::new(), origin, refused: false }
    }

    /// The default of a key, refused where it breaks the key's own rules.
    pub(crate) fn built_in(key: &Key) -> Setting {
        let document = toml::from_str::<toml::Table>(&format!("value = {}", key.default));
        let value = document.ok().and_then(|mut table| table.remove("value"));
        let value = value.and_then(|value| key.kind.check(value).ok());
        let mut setting = Setting::accepted(Value::Boolean(false), Origin::BuiltIn);
        match (key.kind, value) {
            (Kind::Map(kind), Some(Value::Table(entries))) => {
                setting.value = Value::Table(toml::Table::new());
                for (name, value) in entries {
                    let entry = kind.check(value).map(|value| EntrySetting {
                        value,
                        origin: Origin::BuiltIn,
                        is_default: true,
                    });
                    setting.refused |= entry.is_err();
                    setting.entries.extend(entry.ok().map(|entry| (name, entry)));
                }
            }
            (_, Some(value)) => setting.value = value,
            (_, None) => setting.refused = true,
        }
        setting
    }

    /// The value in the type that is asked for.
    ///
    /// # Errors
    /// It is of another type, as for all that follow.
    pub fn get<T: FromValue>(&self) -> Result<T, String> {
        T::from_value(&self.value).ok_or_else(|| self.mismatch())
    }

    /// A number of seconds.
    pub fn seconds(&self) -> Result<Duration, String> {
        match &self.value {
            Value::Float(seconds) => duration(*seconds),
            _ => Ok(Duration::from_secs(self.get()?)),
        }
    }

    /// A number of seconds; 0 turns something off.
    pub fn seconds_or_off(&self) -> Result<Option<Duration>, String> {
        Ok(Some(self.seconds()?).filter(|seconds| !seconds.is_zero()))
    }

    /// A number of milliseconds.
    pub fn milliseconds(&self) -> Result<Duration, String> {
        duration(self.get::<f64>()? / 1000.0)
    }

    /// A number of microseconds.
    pub fn microseconds(&self) -> Result<Duration, String> {
        self.get().map(Duration::from_micros)
    }

    /// A path, seen from the place where it was set; none where it is empty.
    pub fn file(&self) -> Result<Option<PathBuf>, String> {
        let text = self.value.as_str().filter(|text| !text.is_empty());
        Ok(text.map(|text| self.origin.resolve(text)))
    }

    /// The path of a Unix socket.
    pub fn socket(&self) -> Result<Option<PathBuf>, String> {
        self.file()?.map(fits_a_socket).transpose()
    }

    /// A text; none where it is empty.
    pub fn word(&self) -> Result<Option<String>, String> {
        Ok(Some(self.get()?).filter(|text: &String| !text.is_empty()))
    }

    /// The name of a topic, as brokers of Kafka accept it; none where it is empty.
    pub fn topic(&self) -> Result<Option<String>, String> {
        let topic = self.word()?;
        let is_of_topic = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match topic.as_deref().is_none_or(|it| it.len() <= 249 && it.chars().all(is_of_topic)) {
            true => Ok(topic),
            false => {
                Err("expected up to 249 letters, digits, dots, underscores and hyphens".into())
            }
        }
    }

    /// A list of texts, each as `parse` makes it.
    pub fn list<V>(&self, parse: impl Fn(&str) -> Result<V, String>) -> Result<Vec<V>, String> {
        let texts: Vec<String> = self.get()?;
        texts.iter().map(|text| parse(text)).collect()
    }

    /// The entries of a map, each as `build` makes it of label, value and setting.
    pub fn rows<T: FromValue, Row>(
        &self,
        build: impl Fn(&str, T, &EntrySetting) -> Row,
    ) -> Result<Vec<Row>, String> {
        let rows = self.entries.iter().map(|(label, entry)| {
            let value = T::from_value(&entry.value).ok_or_else(|| self.mismatch())?;
            Ok(build(label, value, entry))
        });
        rows.collect()
    }

    /// The entries of a map of texts.
    pub fn texts(&self) -> Result<Vec<(String, String)>, String> {
        self.rows(|name, value, _| (name.to_owned(), value))
    }

    fn mismatch(&self) -> String {
        format!("{} is of another type than the program uses", self.value)
    }
}

/// A path that a Unix socket can have.
pub(crate) fn fits_a_socket(path: PathBuf) -> Result<PathBuf, String> {
    let length = path.as_os_str().len();
    match length > SOCKET_PATH_MAX {
        true => Err(format!(
            "the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes, and this one has \
             {length}; name a shorter one"
        )),
        false => Ok(path),
    }
}

fn duration(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
