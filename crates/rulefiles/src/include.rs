//! Files named in a file: `[[include]]`, and files of sets.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::draft::{Draft, KEYS, Key, Parts};
use crate::error::{self, Problem, ReadError};
use crate::format::Format;
use crate::nearest::suggest;
use crate::sets::Sets;
use crate::toml_file::{self, At, Entries};

pub struct Include {
    /// The file, as written.
    pub file: String,
    /// Its format; `None`: detect it.
    pub format: Option<Format>,
    pub parts: Parts,
}

impl Include {
    pub fn from_entries(entries: &Entries<'_>, sets: &Sets) -> Result<Include, At> {
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
                    let known = ["file", "format"].into_iter().chain(parts.map(|(_, name)| *name));
                    return Err(at(Problem::UnknownKey {
                        what: "key",
                        key: error::shown(other),
                        near: suggest(other, known),
                    }));
                }
            }
        }
        let file = file.ok_or_else(|| {
            let (table, key) = ("[[include]]".to_owned(), "file = \"NAME\"");
            (entries.line, Problem::Missing { table, key })
        })?;
        Ok(Include { file, format, parts: draft.parts })
    }
}

pub fn file_name(value: &toml::de::DeValue<'_>) -> Result<String, Problem> {
    let text = toml_file::texts("file", value)?.concat();
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err(Problem::value("file", &text, "the path of a file")),
        false => Ok(text),
    }
}

/// Resolves a path relative to the file that names it.
pub fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}

pub fn open(path: &Path, place: &str) -> Result<File, ReadError> {
    let named = path.display();
    let refused = Problem::NotAFile(named.to_string()).at(place);
    open_regular(path, format!("{place}: {named}"), refused)
}

/// Opens a regular file; others, `refused`, might block the program. Errors begin with `what`.
pub fn open_regular(path: &Path, what: String, refused: ReadError) -> Result<File, ReadError> {
    let failed = |error| ReadError::Open { what, error };
    match path.metadata() {
        Ok(found) if found.is_file() => File::open(path).map_err(failed),
        Ok(_) => Err(refused),
        Err(error) => Err(failed(error)),
    }
}
