//! Files that a file names: `[[include]]`, and files of sets.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::draft::{Draft, KEYS, Key, Parts};
use crate::error::{self, Problem, ReadError};
use crate::format::Format;
use crate::nearest::suggest;
use crate::sets::Sets;
use crate::toml_file::{self, At, Entries};

/// An `[[include]]`.
pub struct Include {
    /// The file, as written.
    pub file: String,
    /// How it is written; `None`: by its name.
    pub format: Option<Format>,
    /// What holds for its rules that do not say it themselves.
    pub parts: Parts,
}

impl Include {
    /// Of these keys.
    pub fn of(entries: &Entries<'_>, sets: &Sets) -> Result<Include, At> {
        let mut draft = Draft::default();
        let (mut file, mut format) = (None, None);
        for (name, line, value) in &entries.all {
            let at = |problem: Problem| (*line, problem);
            let one = |key| toml_file::texts(key, value).map(|texts| texts.concat());
            match name.as_ref() {
                "file" => file = Some(file_name(value).map_err(at)?),
                "format" => {
                    let text = one("format").map_err(at)?;
                    let known = Format::NAMES.join("\", \"");
                    let problem = || Problem::value("format", &text, format!("\"{known}\""));
                    format = Some(Format::parse(&text).ok_or_else(problem).map_err(at)?);
                }
                part if Key::parse("key", part).is_ok_and(Key::is_part) => {
                    toml_file::set(&mut draft, part, value, sets).map_err(at)?;
                }
                other => {
                    let parts = KEYS.iter().filter(|(key, _)| key.is_part());
                    let known = ["file", "format"]
                        .into_iter()
                        .chain(parts.map(|(_, name)| *name));
                    return Err(at(Problem::UnknownKey {
                        what: "key",
                        key: error::shown(other),
                        near: suggest(other, known),
                    }));
                }
            }
        }
        let missing = || Problem::Missing {
            table: "[[include]]".to_owned(),
            key: "file = \"NAME\"",
        };
        Ok(Include {
            file: file
                .ok_or_else(missing)
                .map_err(|problem| (entries.line, problem))?,
            format,
            parts: draft.parts,
        })
    }
}

/// The path that a key `file` says.
pub fn file_name(value: &toml::de::DeValue<'_>) -> Result<String, Problem> {
    let text = toml_file::texts("file", value)?.concat();
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err(Problem::value("file", &text, "the path of a file")),
        false => Ok(text),
    }
}

/// A path in a file stands for one beside that file.
pub fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent()
        .map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}

/// Opens a file that another one names.
pub fn open(path: &Path, place: &str) -> Result<File, ReadError> {
    let named = path.display();
    let refused = Problem::NotAFile(named.to_string()).at(place);
    open_regular(path, format!("{place}: {named}"), refused)
}

/// Opens a file that is neither a pipe nor a device, which could make the program wait without end, with `refused`. `what`
/// stands before the system's answer.
pub fn open_regular(path: &Path, what: String, refused: ReadError) -> Result<File, ReadError> {
    let failed = |error| ReadError::Open { what, error };
    match path.metadata() {
        Ok(found) if found.is_file() => File::open(path).map_err(failed),
        Ok(_) => Err(refused),
        Err(error) => Err(failed(error)),
    }
}
