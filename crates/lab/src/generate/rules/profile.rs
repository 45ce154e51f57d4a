//! What is known of the rule sets of a network: `profiles.toml`, read.

use std::collections::BTreeMap;

use serde::Deserialize;

use fenxi::exit::Failure;

/// The file, which is part of the program.
const PROFILES: &str = include_str!("profiles.toml");

/// Names of profiles that are another's, with other random numbers, so that there are four of each
/// kind.
const ALIASES: [(&str, &str); 2] = [("ipc3", "ipc1"), ("ipc4", "ipc2")];

/// One network. `profiles.toml` says what the fields are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub filters: f64,
    pub nesting: [u8; 2],
    pub source_branching: [u8; 8],
    pub source_skew: [u8; 8],
    pub destination_branching: [u8; 8],
    pub destination_skew: [u8; 8],
    pub correlation: [u8; 8],
    pub source_ports: Option<Values>,
    pub source_ranges: Option<Values>,
    pub destination_ports: Option<Values>,
    pub destination_ranges: Option<Values>,
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

/// How many values there are and how they are shared out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    pub count: usize,
    /// Share of the most frequent one, %.
    pub first: f64,
    #[serde(default)]
    pub widths: String,
}

/// Rules of one form.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    pub ports: String,
    pub share: f64,
    pub protocols: String,
    pub lengths: String,
}

/// The profile called `name`.
///
/// # Errors
/// There is none.
pub fn named(name: &str) -> Result<Profile, Failure> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let of = alias.map_or(name, |(_, of)| of);
    let mut profiles = all()?;
    let names = names(&profiles);
    profiles.remove(of).ok_or_else(|| {
        Failure::usage(format!("--seed {name}: there is no such profile; there are {names}"))
    })
}

fn all() -> Result<BTreeMap<String, Profile>, Failure> {
    toml::from_str(PROFILES).map_err(|error| Failure::software(format!("profiles.toml: {error}")))
}

fn names(profiles: &BTreeMap<String, Profile>) -> String {
    let aliases = ALIASES.iter().map(|(alias, _)| *alias);
    let mut names: Vec<&str> = profiles.keys().map(String::as_str).chain(aliases).collect();
    names.sort_unstable();
    names.join(", ")
}

/// Things and their shares, as the file has them: `32/24:10 0/0:5`.
pub fn shares<T>(text: &str, thing: impl Fn(&str) -> Option<T>) -> Result<Vec<(T, f64)>, Failure> {
    let pair = |item: &str| {
        let (left, share) = item.split_once(':')?;
        Some((thing(left)?, share.parse().ok()?))
    };
    let pairs = text.split_whitespace().map(|item| {
        pair(item)
            .ok_or_else(|| Failure::software(format!("profiles.toml: \"{item}\" in \"{text}\"")))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_complete() {
        let profiles = all().unwrap();
        assert_eq!(profiles.len(), 12);
        for (name, profile) in profiles {
            let all: f64 = profile.classes.iter().map(|class| class.share).sum();
            assert!((980.0..=1020.0).contains(&all), "{name}: {all}");
        }
        let error = named("acl9").unwrap_err().to_string();
        assert!(error.contains("acl9") && error.contains("ipc3"), "{error}");
    }
}
