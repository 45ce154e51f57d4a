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
    members: Members,
    place: String,
}

/// Prefixes, and names of hosts.
#[derive(Debug, Default)]
pub struct Members {
    pub prefixes: Vec<Prefix>,
    pub names: Vec<String>,
}

impl Members {
    /// Adds a prefix, an address or a name.
    pub fn add(&mut self, key: &'static str, text: &str) -> Result<(), Problem> {
        match values::is_host(text) {
            true => self.names.push(text.to_lowercase()),
            false => self.prefixes.push(values::prefix(key, text)?),
        }
        Ok(())
    }

    pub fn extend(&mut self, others: &Members) {
        self.prefixes.extend_from_slice(&others.prefixes);
        self.names.extend_from_slice(&others.names);
    }
}

impl Sets {
    pub fn get(&self, key: &'static str, name: &str) -> Result<&Members, Problem> {
        let found = self.by_name.get(name);
        found.map(|set| &set.members).ok_or_else(|| {
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

    pub fn add(&mut self, name: &str, members: Members, place: String) -> Result<(), Problem> {
        if let Some(first) = self.by_name.get(name) {
            return Err(Problem::Taken {
                what: "a set named",
                name: name.to_owned(),
                first: first.place.clone(),
            });
        }
        if members.prefixes.len() + members.names.len() > SET_MAX {
            return Err(Problem::SetTooLarge(name.to_owned()));
        }
        self.by_name.insert(name.to_owned(), Set { members, place });
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
