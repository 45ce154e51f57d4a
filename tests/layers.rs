//! The house keeps its shape: which crate may know which, what the data plane must not know, and no
//! two files of a crate that import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use imports::{edges, module_of};

mod imports;

/// Each crate with the crates of ours that it may know. A crate stands behind all that it knows, so
/// no arrow runs back up.
const MAY_KNOW: [(&str, &[&str]); 21] = [
    ("engine", &[]),
    ("dpdk", &[]),
    ("packetio", &["dpdk"]),
    ("cring", &[]),
    ("accel", &["engine"]),
    ("policy", &[]),
    ("rulefiles", &["policy"]),
    ("console", &[]),
    ("netfilter", &[]),
    ("ipfix", &[]),
    ("observe", &[]),
    ("measure", &[]),
    ("flowmgr", &["cring", "observe", "measure"]),
    ("analytics", &["cring", "accel"]),
    // The ranges and the types of settings that the leaves own.
    (
        "config",
        &["packetio", "cring", "accel", "policy", "netfilter", "measure", "flowmgr", "analytics"],
    ),
    (
        "dataplane",
        &["packetio", "cring", "observe", "accel", "policy", "flowmgr", "analytics", "config"],
    ),
    ("learn", &["console", "cring", "accel", "flowmgr", "analytics", "dataplane"]),
    ("recording", &["cring", "accel", "measure", "flowmgr", "analytics", "config", "dataplane"]),
    (
        "fenxi",
        &[
            "packetio",
            "cring",
            "accel",
            "engine",
            "policy",
            "rulefiles",
            "netfilter",
            "measure",
            "flowmgr",
            "analytics",
            "config",
            "recording",
            "dataplane",
            "console",
            "learn",
            "ipfix",
            "observe",
        ],
    ),
    (
        "benches",
        &[
            "cring",
            "accel",
            "policy",
            "rulefiles",
            "measure",
            "observe",
            "flowmgr",
            "analytics",
            "dataplane",
        ],
    ),
    (
        "lab",
        &[
            "packetio",
            "cring",
            "accel",
            "engine",
            "observe",
            "measure",
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
const NOT_IN_THE_DATA_PLANE: [&str; 10] =
    ["tokio", "serde", "serde_json", "toml", "clap", "hyper", "indicatif", "csv", "jiff", "mio"];

/// Pairs of files that import each other, with the reason why they stay so.
const KNOWN_CIRCLES: [(&str, &str); 4] = [
    (
        "accel: native provider",
        "the list of providers names each device's file, which declares a provider",
    ),
    (
        "accel: provider simulated",
        "the list of providers names each device's file, which declares a provider",
    ),
    ("config: keys settings", "a section's own check takes all settings, which hold its keys"),
    ("dpdk: port queue", "a port opens its queues, and a queue keeps its port open"),
];

/// A crate may hold this share of the product's lines at most.
const SHARE_MAX: f64 = 0.3;

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
        assert!(known.contains_key(name.as_str()), "where does {name} stand?");
    }
    let ours: BTreeSet<&str> = known.keys().copied().chain(["fenxi-benches"]).collect();
    for (place, (name, may)) in MAY_KNOW.into_iter().enumerate() {
        for below in may {
            let stands = |(other, _): &(&str, _)| other == below || *below == "fenxi-benches";
            assert!(MAY_KNOW[..place].iter().any(stands), "{name} before {below}");
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
    for name in
        ["dataplane", "packetio", "cring", "measure", "flowmgr", "analytics", "policy", "engine"]
    {
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

fn is_of_tests(path: &Path) -> bool {
    path.to_string_lossy().contains("tests")
}

/// The product's part of a file: no tests, no comments, no blank lines.
fn product_lines(path: &Path) -> Vec<String> {
    if is_of_tests(path) {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let mut lines = Vec::new();
    let mut all = text.lines().peekable();
    while let Some(line) = all.next() {
        // A module of tests ends the file.
        if line.starts_with("#[cfg(")
            && line.contains("test")
            && all.peek().is_some_and(|it| it.ends_with('{'))
        {
            break;
        }
        let code = line.trim();
        if !code.is_empty() && !code.starts_with("//") {
            lines.push(code.to_owned());
        }
    }
    lines
}

/// A new device is a file in `accel` and a line in its list. Elsewhere `cpu` is a default, `plugin`
/// a key, and `native` a mode of XDP.
#[test]
fn only_accel_names_a_device() {
    let names = accel::PROVIDERS.iter();
    let names = names.filter(|name| !["cpu", "plugin"].contains(name));
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    for krate in crates().iter().filter(|name| *name != "accel") {
        let mut files = Vec::new();
        sources(&folder(krate).join("src"), &mut files);
        for file in files {
            let is_xdp = file.to_string_lossy().contains("xdp");
            let names = names.iter().filter(|name| !(is_xdp && *name == "\"native\""));
            for line in product_lines(&file) {
                let named = names.clone().find(|name| line.contains(*name));
                assert!(named.is_none(), "{}: {line}", file.display());
            }
        }
    }
}

/// Files outside a backend's own that name it, with the reason where it is not its list or its
/// section of the configuration. A new backend touches two.
#[test]
fn a_backend_is_named_in_two_files_outside_its_own() {
    let lists = ["packetio/src/lib.rs", "config/src/checked.rs"];
    let others: BTreeMap<&str, &[&str]> = BTreeMap::from([
        // A message names the keys that give rings more room; system calls stand in one file; DPDK
        // has a driver over such sockets.
        ("xdp", &["fenxi/src/control/watch.rs", "packetio/src/sys.rs", "dpdk/src/port.rs"][..]),
        // A burst of buffers of DPDK is sent on without a copy.
        ("dpdk", &["packetio/src/burst.rs"][..]),
    ]);
    for (backend, others) in others {
        let own = ["packetio/src/af_", "packetio/src/", "config/src/checked/"];
        let own = own.map(|folder| format!("{folder}{backend}"));
        let mut naming = BTreeSet::new();
        for krate in crates().iter().filter(|name| *name != backend) {
            let mut files = Vec::new();
            sources(&folder(krate).join("src"), &mut files);
            for file in files {
                let names = |line: &String| line.to_lowercase().contains(backend);
                if product_lines(&file).iter().any(names) {
                    let name = file.strip_prefix(root().join("crates")).unwrap();
                    naming.insert(name.to_str().unwrap().to_owned());
                }
            }
        }
        naming.retain(|file| !own.iter().any(|own| file.starts_with(own)));
        let expected = lists.iter().chain(others).map(|file| (*file).to_owned());
        assert_eq!(naming, expected.collect(), "{backend}");
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

/// Two files that import each other are one file in two places. A module and those inside it may.
#[test]
fn no_two_files_import_each_other() {
    let mut circles = BTreeSet::new();
    for name in crates() {
        let source = folder(&name).join("src");
        let mut files = Vec::new();
        sources(&source, &mut files);
        let texts = files.iter().filter(|file| !is_of_tests(file));
        let texts = texts.map(|file| (module_of(&source, file), product_lines(file).join("\n")));
        let texts = texts.collect();
        let edges = edges(&texts);
        for (from, imported) in &edges {
            for to in imported.iter().filter(|to| *from < *to && !to.starts_with(from)) {
                if edges[to].contains(*from) {
                    circles.insert(format!("{name}: {} {}", from.join("::"), to.join("::")));
                }
            }
        }
    }
    let known = KNOWN_CIRCLES.iter().map(|(circle, _)| (*circle).to_owned());
    assert_eq!(circles, known.collect());
}
