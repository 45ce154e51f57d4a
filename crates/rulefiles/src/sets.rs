//! Sets of addresses, in one name space for all files of a rule set.

use std::collections::HashMap;
use std::io::Read;

use crate::error::Problem;
use crate::limits::SET_MAX;
use crate::lines::{LineError, Lines};
use crate::nearest::suggest;
use crate::values::{self, Prefix};

#[derive(Debug, Default)]
pub struct Sets {
    by_name: HashMap<String, Set>,
}

#[derive(Debug)]
struct Set {
    prefixes: Vec<Prefix>,
    place: String,
}

impl Sets {
    pub fn get(&self, key: &'static str, name: &str) -> Result<&[Prefix], Problem> {
        let found = self.by_name.get(name);
        found.map(|set| &*set.prefixes).ok_or_else(|| {
            let near = match self.by_name.is_empty() {
                true => {
                    "; name it under [sets], in this file or one that is read before".to_owned()
                }
                false => suggest(name, self.by_name.keys().map(String::as_str)),
            };
            let name = name.chars().take(100).flat_map(char::escape_debug).collect();
            Problem::NoSuchSet { key, name, near }
        })
    }

    pub fn add(&mut self, name: &str, prefixes: Vec<Prefix>, place: String) -> Result<(), Problem> {
        if let Some(first) = self.by_name.get(name) {
            return Err(Problem::Taken {
                what: "a set named",
                name: name.to_owned(),
                first: first.place.clone(),
            });
        }
        if prefixes.len() > SET_MAX {
            return Err(Problem::SetTooLarge(name.to_owned()));
        }
        self.by_name.insert(name.to_owned(), Set { prefixes, place });
        Ok(())
    }
}

/// Reads a file with a prefix per line; `#` starts a comment.
pub fn read_prefixes<R: Read>(name: &str, lines: &mut Lines<R>) -> Result<Vec<Prefix>, LineError> {
    let mut prefixes = Vec::new();
    while let Some(line) = lines.next()? {
        let text = line.split('#').next().unwrap_or_default().trim();
        prefixes.push(values::prefix("sets", text).map_err(LineError::Wrong)?);
        if prefixes.len() > SET_MAX {
            return Err(LineError::Wrong(Problem::SetTooLarge(name.to_owned())));
        }
    }
    Ok(prefixes)
}
