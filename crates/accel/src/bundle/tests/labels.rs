//! Labels, and the column "unknown" after them.

use super::*;

const UNKNOWN: &str = "[[labels]]\nname = \"unknown\"\ntaxonomy = \"none\"\n";

#[test]
fn labels_that_cannot_be_told_apart() {
    manifest_refused("\"DNS\"", "\"TLS\"", &["labels[1].name is \"TLS\"", "earlier"]);
    manifest_refused("\"DNS\"", "\"\"", &["labels[1].name is \"\""]);
    manifest_refused(
        "\"TLS\"",
        "\"unknown\"",
        &["labels[0].name is \"unknown\"", "only the last", "rename"],
    );
    let head = manifest().split("[[labels]]").next().unwrap().to_owned();
    let labels = |n: usize| {
        (0..n)
            .map(|i| format!("[[labels]]\nname = \"c{i}\"\ntaxonomy = \"t\"\n"))
            .collect::<String>()
    };
    file_refused(
        "model.toml",
        format!("{head}{}", labels(LABELS_MAX + 1)).as_bytes(),
        &["labels has 4096", "4095"],
    );
    file_refused(
        "model.toml",
        head.replace("k = 3", "k = 3\nlabels = []").as_bytes(),
        &["labels has 0 entries"],
    );
    file_refused(
        "model.toml",
        format!("{head}{UNKNOWN}").as_bytes(),
        &["labels has 0 entries besides \"unknown\""],
    );
    file_refused(
        "model.toml",
        format!("{head}{UNKNOWN}{UNKNOWN}").as_bytes(),
        &["labels[0].name is \"unknown\"", "only the last"],
    );
    // The largest set passes the manifest's checks, and the golden outputs are the next thing that
    // is wrong.
    let dir = bundle_with("model.toml", format!("{head}{}", labels(LABELS_MAX)).as_bytes());
    refused(dir.path(), &["golden/outputs.csv:1", "2 numbers", "4095"]);
    // "unknown" does not count.
    let dir =
        bundle_with("model.toml", format!("{head}{}{UNKNOWN}", labels(LABELS_MAX)).as_bytes());
    refused(dir.path(), &["golden/outputs.csv:1", "2 numbers", "4096"]);
}

#[test]
fn a_column_for_unknown_is_no_label() {
    let text = manifest() + UNKNOWN;
    let dir = bundle_with("model.toml", text.as_bytes());
    refused(dir.path(), &["outputs.csv:1: 2 numbers", "asks for 3"]);
    let outputs = "0.25,0.5,0.25\n0,0,1\n";
    fs::write(dir.path().join("golden/outputs.csv"), outputs).unwrap();
    let bundle = Bundle::open(dir.path()).unwrap();
    let names: Vec<_> = bundle.labels().iter().map(|label| &label.name).collect();
    assert_eq!(names, ["TLS", "DNS"]);
    assert_eq!(bundle.shape().classes, 3);
    let nameless = manifest() + &UNKNOWN.replace("\"none\"", "\"\"");
    file_refused("model.toml", nameless.as_bytes(), &["labels[2].taxonomy is \"\""]);
}
