//! What a model reads of a flow: unit, features and the shape that follows from them.

use super::*;

/// The manifest with these features, and with these lines more.
fn asking(features: &str, lines: &str) -> String {
    let text = manifest().replacen("\"signed_length\"", features, 1);
    text.replacen("k = 3", &format!("k = 3\n{lines}"), 1)
}

#[test]
fn a_bundle_without_a_unit_counts_packets() {
    let unit = |line: &str| {
        let text = asking("\"signed_length\"", line);
        let dir = bundle_with("model.toml", text.as_bytes());
        Bundle::open(dir.path()).map(|bundle| bundle.unit().to_owned())
    };
    assert_eq!(unit("").unwrap(), "packet");
    for name in UNITS {
        assert_eq!(unit(&format!("unit = {name:?}")).unwrap(), name);
    }
    manifest_refused(
        "k = 3",
        "k = 3\nunit = \"flow\"",
        &["unit is \"flow\"", "[\"packet\", \"data\"]"],
    );
    manifest_refused("k = 3", "k = 3\nunit = 1", &[":7:", "invalid type"]);
}

#[test]
fn every_feature_is_a_channel_in_the_order_of_the_bundle() {
    let features = ["inter_arrival_us", "signed_length", "tcp_flags"];
    let dir = bundle_with(
        "model.toml",
        asking(&format!("{features:?}")[1..].replace(']', ""), "").as_bytes(),
    );
    // The golden rows of one channel are too short for three.
    refused(dir.path(), &["inputs.csv:1:", "3 numbers", "asks for 9"]);
    let inputs = "0,20,4000000000,100,-200,0,2,18,16\n1,2,3,4,5,6,7,8,9\n";
    fs::write(dir.path().join("golden/inputs.csv"), inputs).unwrap();
    let bundle = Bundle::open(dir.path()).unwrap();
    assert_eq!(bundle.features(), features);
    assert_eq!((bundle.shape().channels, bundle.shape().row_len()), (3, 9));
    assert_eq!(bundle.golden().inputs[0][2], 4e9);
}

#[test]
fn all_features_can_be_asked_for_at_once() {
    let dir = bundle_with(
        "model.toml",
        asking(&format!("{FEATURES:?}")[1..].replace(']', ""), "").as_bytes(),
    );
    fs::write(
        dir.path().join("golden/inputs.csv"),
        ["0"; 12].join(",") + "\n" + &["1"; 12].join(",") + "\n",
    )
    .unwrap();
    assert_eq!(Bundle::open(dir.path()).unwrap().shape().channels, FEATURES.len());
}

#[test]
fn features_that_cannot_be_computed() {
    manifest_refused("[\"signed_length\"]", "[]", &["features is empty", "signed_length"]);
    manifest_refused("signed_length", "gap_us", &["features asks for \"gap_us\"", "signed_length"]);
    manifest_refused("[\"", "[\"signed_length\", \"", &["features names \"signed_length\" twice"]);
}
