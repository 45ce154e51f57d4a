//! The sections of sinks, and `configs/1-1-1.toml`, which has every key.

use config::checked::{Named, SECTIONS};
use config::effective::Effective;
use config::{Config, Key, Loaded, Shape, Sources};

use netfilter::nft_set::Field;

use crate::sinks::nft_set::NftSet;
use crate::sinks::{known, sections};

const EXAMPLE: &str = include_str!("../../../../../configs/1-1-1.toml");

const SET: &str = "[nftset.ssh]\nset = \"inet fw4 ssh\"\nlabels = [\"SSH\"]\n";

fn loaded(text: &str, sets: &[&str]) -> Result<Loaded, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, text).unwrap();
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let read = known(Sources::named(Some(&file), &sets)).load();
    read.map_err(|errors| errors.to_string().lines().map(str::to_owned).collect())
}

fn load(text: &str, sets: &[&str]) -> Result<(Config, Effective), Vec<String>> {
    let loaded = loaded(text, sets)?;
    let effective = loaded.effective();
    Ok((loaded.config, effective))
}

fn sets(config: &Config) -> Vec<Named<NftSet>> {
    config.tables()
}

#[test]
fn a_set_has_defaults_for_all_but_its_name_and_labels() {
    let (config, effective) = load(SET, &["nftset.ssh.timeout_s=0"]).unwrap();
    let sets = sets(&config);
    let [Named { name, keys: set, .. }] = sets.as_slice() else {
        panic!("{sets:?}");
    };
    assert_eq!((name.as_str(), &set.labels), ("ssh", &vec!["SSH".into()]));
    assert_eq!(set.set.as_ref().unwrap().to_string(), "inet fw4 ssh");
    assert_eq!(
        (&set.key, set.timeout.as_secs(), set.queue),
        (&vec![Field::OriginatorAddress], 0, 4096)
    );
    let (again, _) = load(&effective.to_toml(true), &[]).unwrap();
    assert_eq!(self::sets(&again)[0].keys.set, set.set);
}

/// What the example shows is what a table has that says no more than it must.
#[test]
fn the_example_files_set_has_the_defaults() {
    let (_, table) = EXAMPLE.split_once("# [nftset.NAME]").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let lines = table.lines().map(|line| line.trim_start_matches("# "));
    let keys: Vec<_> = lines.filter(|line| line.contains(" = ")).collect();
    let keys = keys.iter().filter(|line| toml::from_str::<toml::Table>(line).is_ok());
    let keys: Vec<_> = keys.copied().collect();
    assert_eq!(keys.len(), 5, "{keys:?}");
    let (shown, _) = load(&format!("[nftset.ssh]\n{}", keys.join("\n")), &[]).unwrap();
    let (least, _) = load(SET, &[]).unwrap();
    assert_eq!(sets(&shown)[0].keys, sets(&least)[0].keys);
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = [
        ("[nftset.a]", "c.toml:1: nftset.a.set: is missing"),
        ("[nftset.a]\nset = \"ip t s\"", "c.toml:1: nftset.a.labels: is missing"),
        (
            "[nftset.a]\nset = \"fw4 ssh\"\nlabels = [\"SSH\"]",
            "c.toml:2: nftset.a.set: expected family, table and set",
        ),
        (
            "[nftset.a]\nset = \"ip t s\"\nlabels = [\"S\"]\nkey = [\"originator_adress\"]",
            "c.toml:4: nftset.a.key: found \"originator_adress\", expected some of \
             originator_address",
        ),
        (
            "[nftset.a]\nset = \"ip t s\"\nlabels = []",
            "c.toml:3: nftset.a.labels: found an empty list",
        ),
        ("nftset = 1", "c.toml:1: nftset is a section of tables: write [nftset.NAME]"),
        (
            "[io]\nmode = \"inline\"\ninterfaces = [\"a\", \"b\"]\n[connlabel.class]\nTLS = \"1\"",
            "inline forwards past the kernel",
        ),
    ];
    for (file, says) in wrong {
        let lines = load(file, &[]).expect_err(file);
        assert!(lines[0].contains(says), "{lines:?}");
    }
    let many: String =
        (0..17).map(|at| format!("[nftset.s{at}]\nset = \"ip t s\"\nlabels = [\"S\"]\n")).collect();
    let lines = load(&many, &[]).expect_err("17 sets");
    assert!(lines[0].contains("16 tables at most"), "{lines:?}");
}

/// A reload takes other labels of a set, but neither other sets nor other keys.
#[test]
fn a_reload_takes_over_the_labels_of_a_set() {
    let loaded = |text: &str| loaded(text, &[]).unwrap();
    let taken = |next: &str| -> Loaded {
        let now = loaded(SET);
        loaded(next).taken_over_by(&now).unwrap().live()
    };
    let next = SET.replace("[\"SSH\"]", "[\"TLS\"]\ntimeout_s = 7");
    let set = &sets(&taken(&next).config)[0].keys;
    assert_eq!((&set.labels[..], set.timeout.as_secs()), (&["TLS".to_owned()][..], 300));
    let renamed = SET.replace("nftset.ssh", "nftset.other");
    assert_eq!(sets(&taken(&renamed).config)[0].name, "ssh");
}

/// Unit and range as the example file gives them, and whether a reload changes the key.
fn unit_and_range(key: &Key) -> String {
    let unit = if key.unit.is_empty() { String::new() } else { format!("{}; ", key.unit) };
    let live = if key.is_live() { "; live" } else { "" };
    format!("# {unit}{}{live}", key.kind.expected())
}

#[test]
fn the_example_file_has_every_key_with_its_default() {
    let (example, effective) = load(EXAMPLE, &[]).unwrap();
    let (mut built_in, built_in_effective) = load("", &[]).unwrap();
    for (row, built_in) in effective.config.iter().zip(&built_in_effective.config) {
        let origin = row.origin.to_string();
        assert!(origin.contains("c.toml:"), "{} is missing", row.key);
        // The file is an example of a layout.
        if row.key != "pipeline.layout" {
            assert_eq!((&row.key, &row.value), (&built_in.key, &built_in.value));
        }
    }
    assert_eq!(effective.config.len(), built_in_effective.config.len());
    built_in.flow.k_origin = example.flow.k_origin.clone();
    assert_eq!((example.flow, example.accel), (built_in.flow, built_in.accel));
    // Naming the defaults in a file asks for nothing that the model at hand may lack.
    assert!(example.tag.dscp.iter().all(|mapping| !mapping.required));
    assert!(example.mark.class.iter().all(|mapping| !mapping.required));
}

/// The comment of a key: what it is for, then unit and range, then the key, each behind `prefix`.
fn assert_explained(lines: &[&str], section: &str, key: &Key, prefix: &str) {
    let header = format!("{prefix}[{section}]");
    let start = lines.iter().position(|line| *line == header);
    let start = start.unwrap_or_else(|| panic!("{header} is missing"));
    let own = |line: &&str| {
        line.starts_with(&format!("{prefix}{} = ", key.name()))
            || **line == format!("[{}]", key.path)
    };
    let at = start + lines[start..].iter().position(own).expect(key.path);
    assert_eq!(lines[at - 2], format!("{prefix}# {}", key.why), "{}", key.path);
    assert_eq!(lines[at - 1], format!("{prefix}{}", unit_and_range(key)), "{}", key.path);
}

#[test]
fn the_example_file_explains_every_key() {
    let lines: Vec<_> = EXAMPLE.lines().collect();
    for section in SECTIONS.iter().copied().chain(sections()) {
        let (header, prefix) = match section.shape {
            Shape::One => (section.name.to_owned(), ""),
            Shape::Named => (format!("{}.NAME", section.name), "# "),
            Shape::List => (format!("[{}]", section.name), "# "),
        };
        for key in section.keys {
            assert_explained(&lines, &header, key, prefix);
        }
    }
}
