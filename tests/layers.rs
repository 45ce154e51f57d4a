//! The house keeps its shape: which crate may know which, what the data plane must not know, and no
//! two modules of a crate that import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with the crates of ours that it may know. A crate stands behind all that it knows, so
/// no arrow runs back up.
const MAY_KNOW: [(&str, &[&str]); 17] = [
    ("dpdk", &[]),
    ("packetio", &["dpdk"]),
    ("cring", &[]),
    ("accel", &[]),
    ("policy", &[]),
    ("rulefiles", &["policy"]),
    ("console", &[]),
    ("netfilter", &[]),
    ("ipfix", &[]),
    ("flowmgr", &["cring"]),
    ("analytics", &["cring", "accel"]),
    // The ranges and the types of settings that the leaves own.
    (
        "config",
        &[
            "packetio",
            "cring",
            "accel",
            "policy",
            "netfilter",
            "flowmgr",
            "analytics",
        ],
    ),
    (
        "dataplane",
        &[
            "packetio",
            "cring",
            "accel",
            "policy",
            "flowmgr",
            "analytics",
            "config",
        ],
    ),
    (
        "recording",
        &[
            "cring",
            "accel",
            "flowmgr",
            "analytics",
            "config",
            "dataplane",
        ],
    ),
    (
        "fenxi",
        &[
            "packetio",
            "cring",
            "accel",
            "policy",
            "rulefiles",
            "netfilter",
            "flowmgr",
            "analytics",
            "config",
            "recording",
            "dataplane",
            "console",
            "ipfix",
        ],
    ),
    (
        "benches",
        &["packetio", "cring", "accel", "flowmgr", "analytics"],
    ),
    (
        "lab",
        &[
            "packetio",
            "cring",
            "accel",
            "policy",
            "flowmgr",
            "analytics",
            "config",
            "dataplane",
            "fenxi",
            "fenxi-benches",
        ],
    ),
];

/// What only the program around the data plane may use: runtimes, text formats, terminals, sockets
/// for people.
const NOT_IN_THE_DATA_PLANE: [&str; 10] = [
    "tokio",
    "serde",
    "serde_json",
    "toml",
    "clap",
    "hyper",
    "indicatif",
    "csv",
    "jiff",
    "mio",
];

/// A crate may hold this share of the product's lines at most.
const SHARE_MAX: f64 = 0.35;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder(name: &str) -> PathBuf {
    match name {
        "benches" => root().join(name),
        _ => root().join("crates").join(name),
    }
}

/// What the crate in this folder depends on, without what only its tests need.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(folder(name).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let of = |table: &str| manifest.get(table).and_then(toml::Value::as_table);
    let all = of("dependencies").into_iter().flatten();
    all.map(|(name, _)| name.clone()).collect()
}

fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn crates_know_only_those_below_them() {
    let known: BTreeMap<&str, &[&str]> = MAY_KNOW.into_iter().collect();
    for name in crates() {
        assert!(
            known.contains_key(name.as_str()),
            "where does {name} stand?"
        );
    }
    let ours: BTreeSet<&str> = known.keys().copied().chain(["fenxi-benches"]).collect();
    for (place, (name, may)) in MAY_KNOW.into_iter().enumerate() {
        for below in may {
            let stands = |(other, _): &(&str, _)| other == below || *below == "fenxi-benches";
            assert!(
                MAY_KNOW[..place].iter().any(stands),
                "{name} before {below}"
            );
        }
        for dependency in dependencies(name) {
            let is_allowed =
                !ours.contains(dependency.as_str()) || may.contains(&dependency.as_str());
            assert!(is_allowed, "{name} must not know {dependency}");
        }
    }
}

#[test]
fn the_data_plane_and_the_leaves_know_no_runtime_and_no_text_format() {
    for name in [
        "dataplane",
        "packetio",
        "cring",
        "flowmgr",
        "analytics",
        "policy",
    ] {
        let found = dependencies(name);
        for banned in NOT_IN_THE_DATA_PLANE {
            assert!(!found.contains(banned), "{name} uses {banned}");
        }
    }
}

/// All source files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The product's part of a file: no tests, no comments, no blank lines.
fn product_lines(path: &Path) -> Vec<String> {
    let name = path.to_string_lossy();
    if name.contains("tests") {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let mut lines = Vec::new();
    let mut all = text.lines().peekable();
    while let Some(line) = all.next() {
        // A module of tests ends the file.
        if line.starts_with("#[cfg(test)]") && all.peek().is_some_and(|it| it.ends_with('{')) {
            break;
        }
        let code = line.trim();
        if !code.is_empty() && !code.starts_with("//") {
            lines.push(code.to_owned());
        }
    }
    lines
}

/// A new device is a file in `accel` and a line in its list. `cpu` alone is a default elsewhere.
#[test]
fn only_accel_names_a_device() {
    let names = accel::PROVIDERS.iter().filter(|name| **name != "cpu");
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    for krate in crates().iter().filter(|name| *name != "accel") {
        let mut files = Vec::new();
        sources(&folder(krate).join("src"), &mut files);
        for file in files {
            for line in product_lines(&file) {
                let named = names.iter().find(|name| line.contains(*name));
                assert!(named.is_none(), "{}: {line}", file.display());
            }
        }
    }
}

#[test]
fn no_crate_has_more_than_a_third_of_the_lines() {
    let sizes = crates().into_iter().map(|name| {
        let mut files = Vec::new();
        sources(&folder(&name).join("src"), &mut files);
        let lines: usize = files.iter().map(|file| product_lines(file).len()).sum();
        (name, lines)
    });
    let sizes: Vec<(String, usize)> = sizes.collect();
    let all: usize = sizes.iter().map(|(_, lines)| lines).sum();
    for (name, lines) in sizes {
        let share = lines as f64 / all as f64;
        assert!(share <= SHARE_MAX, "{name} has {lines} of {all} lines");
    }
}

/// The module at the top of the crate that a file belongs to.
fn module_of(source: &Path, file: &Path) -> String {
    let first = file
        .strip_prefix(source)
        .unwrap()
        .components()
        .next()
        .unwrap();
    let first = first.as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Names that stand behind `crate::` in a line, also in braces.
fn imported(line: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        let of_name = |c: &char| c.is_alphanumeric() || *c == '_';
        text.trim_start().chars().take_while(of_name).collect()
    };
    let mut names = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split(',').map(word)),
            None => names.push(word(rest)),
        }
    }
    names
}

/// Two folders that import each other are one room with two doors.
#[test]
fn no_two_folders_of_a_crate_import_each_other() {
    for name in crates() {
        let source = folder(&name).join("src");
        let mut files = Vec::new();
        sources(&source, &mut files);
        let modules: BTreeSet<String> = files.iter().map(|it| module_of(&source, it)).collect();
        let is_folder = |module: &str| source.join(module).is_dir();
        let mut edges = BTreeSet::new();
        for file in &files {
            let from = module_of(&source, file);
            for to in product_lines(file).iter().flat_map(|line| imported(line)) {
                if to != from && modules.contains(&to) && is_folder(&to) && is_folder(&from) {
                    edges.insert((from.clone(), to));
                }
            }
        }
        for (from, to) in &edges {
            let back = (to.clone(), from.clone());
            assert!(
                !edges.contains(&back),
                "{name}: {from} and {to} import each other"
            );
        }
    }
}
