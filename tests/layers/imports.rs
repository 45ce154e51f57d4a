//! Which modules of a crate a file imports, read from its text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path below its crate; the crate itself is empty.
pub type Module = Vec<String>;

/// The module that a file below `src` holds.
pub fn module_of(source: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    let mut module: Module = names.collect();
    if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        module.pop();
    }
    module
}

/// Each module with those that it imports.
pub fn edges(texts: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<Module>> {
    let of_module = |(from, text)| {
        let mut paths = Vec::new();
        for start in ["crate::", "super::", "self::"] {
            for (at, _) in String::as_str(text).match_indices(start) {
                // The second `super` of `super::super::` belongs to the first.
                if !text[..at].ends_with([':', '_']) {
                    collect(&rooted(from, start), &text[at + start.len()..], &mut paths);
                }
            }
        }
        let found = paths.into_iter().map(|path| resolved(path, texts));
        (from, found.filter(|to| to != from).collect())
    };
    texts.iter().map(of_module).collect()
}

/// Where a path that starts so begins.
fn rooted(from: &Module, start: &str) -> Module {
    match start {
        "crate::" => Module::new(),
        "self::" => from.clone(),
        _ => from[..from.len().saturating_sub(1)].to_vec(),
    }
}

/// All paths of a `use` tree, or of an expression, that starts here.
fn collect(prefix: &[String], text: &str, found: &mut Vec<Module>) {
    let text = text.trim_start();
    if let Some(list) = text.strip_prefix('{') {
        for item in items(list) {
            collect(prefix, item, found);
        }
        return;
    }
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut path = prefix.to_vec();
    match (name, rest.strip_prefix("::")) {
        ("super", Some(rest)) => collect(&path[..path.len().saturating_sub(1)], rest, found),
        (_, Some(rest)) if !name.is_empty() => {
            path.push(name.to_owned());
            collect(&path, rest, found);
        }
        _ => {
            path.extend((!name.is_empty()).then(|| name.to_owned()));
            found.push(path);
        }
    }
}

/// What stands between the commas up to the brace that closes the list.
fn items(list: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, it) in list.char_indices() {
        match it {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
                if it == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// The module that an item's path belongs to: the longest part of the path that is one.
fn resolved(mut path: Module, modules: &BTreeMap<Module, String>) -> Module {
    while !path.is_empty() && !modules.contains_key(&path) {
        path.pop();
    }
    path
}
