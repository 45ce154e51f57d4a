//! `[connlabel]` and `[nftset.NAME]`.

use netfilter::nft_set::Field;

use super::{EXAMPLE, load};
use crate::checked::{Named, NftSet};
use crate::layers::FileLayer;
use crate::{Config, Loaded};

const SET: &str = "[nftset.ssh]\nset = \"inet fw4 ssh\"\nlabels = [\"SSH\"]\n";

fn sets(config: &Config) -> Vec<Named<NftSet>> {
    config.tables()
}

#[test]
fn a_set_has_defaults_for_all_but_its_name_and_labels() {
    let (config, effective) = load(SET, &[], &["nftset.ssh.timeout_s=0"]).unwrap();
    let sets = sets(&config);
    let [
        Named {
            name, keys: set, ..
        },
    ] = sets.as_slice()
    else {
        panic!("{sets:?}");
    };
    assert_eq!((name.as_str(), &set.labels), ("ssh", &vec!["SSH".into()]));
    assert_eq!(set.set.as_ref().unwrap().to_string(), "inet fw4 ssh");
    assert_eq!(
        (&set.key, set.timeout.as_secs(), set.queue),
        (&vec![Field::OriginatorAddress], 0, 4096)
    );
    let (again, _) = load(&effective.to_toml(true), &[], &[]).unwrap();
    assert_eq!(self::sets(&again)[0].keys.set, set.set);
}

/// What the example shows is what a table has that says no more than it must.
#[test]
fn the_example_files_set_has_the_defaults() {
    let (_, table) = EXAMPLE.split_once("# [nftset.NAME]").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let lines = table.lines().map(|line| line.trim_start_matches("# "));
    let keys: Vec<_> = lines.filter(|line| line.contains(" = ")).collect();
    let keys = keys
        .iter()
        .filter(|line| toml::from_str::<toml::Table>(line).is_ok());
    let keys: Vec<_> = keys.copied().collect();
    assert_eq!(keys.len(), 5, "{keys:?}");
    let (shown, _) = load(&format!("[nftset.ssh]\n{}", keys.join("\n")), &[], &[]).unwrap();
    let (least, _) = load(SET, &[], &[]).unwrap();
    assert_eq!(sets(&shown)[0].keys, sets(&least)[0].keys);
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = [
        ("[nftset.a]", "c.toml:1: nftset.a.set: is missing"),
        (
            "[nftset.a]\nset = \"ip t s\"",
            "c.toml:1: nftset.a.labels: is missing",
        ),
        (
            "[nftset.a]\nset = \"fw4 ssh\"\nlabels = [\"SSH\"]",
            "c.toml:2: nftset.a.set: expected family, table and set",
        ),
        (
            "[nftset.a]\nset = \"ip t s\"\nlabels = [\"S\"]\nkey = [\"originator_adress\"]",
            "c.toml:4: nftset.a.key: found \"originator_adress\", expected some of originator_address",
        ),
        (
            "[nftset.a]\nset = \"ip t s\"\nlabels = []",
            "c.toml:3: nftset.a.labels: found an empty list",
        ),
        (
            "nftset = 1",
            "c.toml:1: nftset is a section of tables: write [nftset.NAME]",
        ),
        (
            "[io]\nmode = \"inline\"\ninterfaces = [\"a\", \"b\"]\n[connlabel.class]\nTLS = \"1\"",
            "inline forwards past the kernel",
        ),
    ];
    for (file, says) in wrong {
        let lines = load(file, &[], &[]).expect_err(file);
        assert!(lines[0].contains(says), "{lines:?}");
    }
    let many: String = (0..17)
        .map(|at| format!("[nftset.s{at}]\nset = \"ip t s\"\nlabels = [\"S\"]\n"))
        .collect();
    let lines = load(&many, &[], &[]).expect_err("17 sets");
    assert!(lines[0].contains("16 tables at most"), "{lines:?}");
}

/// A reload takes other labels of a set, but neither other sets nor other keys.
#[test]
fn a_reload_takes_over_the_labels_of_a_set() {
    let loaded = |text: &str| {
        let file = FileLayer {
            name: "c.toml".to_owned(),
            text: text.to_owned(),
        };
        Config::from_layers(&[file], &[], &[], Vec::new()).unwrap()
    };
    let taken = |next: &str| -> Loaded {
        let now = loaded(SET);
        loaded(next).taken_over_by(&now).unwrap().live()
    };
    let next = SET.replace("[\"SSH\"]", "[\"TLS\"]\ntimeout_s = 7");
    let set = &sets(&taken(&next).config)[0].keys;
    assert_eq!(
        (&set.labels[..], set.timeout.as_secs()),
        (&["TLS".to_owned()][..], 300)
    );
    let renamed = SET.replace("nftset.ssh", "nftset.other");
    assert_eq!(sets(&taken(&renamed).config)[0].name, "ssh");
}
