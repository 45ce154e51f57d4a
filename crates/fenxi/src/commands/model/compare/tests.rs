//! Tables of flows as samples.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn bundle() -> Bundle {
    Bundle::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10")))
        .unwrap()
}

fn table(bytes: &[u8]) -> Result<Samples, Failure> {
    read(bytes, &bundle())
}

fn read(bytes: &[u8], bundle: &Bundle) -> Result<Samples, Failure> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    of_table(file.path(), bundle)
}

/// A bundle of any model for K = 3 with these features.
fn bundle_of(unit: &str, features: &[&str]) -> Bundle {
    let dir = tempfile::tempdir().unwrap();
    let shipped = bundle().model_path();
    let shipped = shipped.parent().unwrap();
    std::fs::create_dir(dir.path().join("golden")).unwrap();
    for file in ["model.onnx", "ranges.csv"] {
        std::fs::copy(shipped.join(file), dir.path().join(file)).unwrap();
    }
    let manifest = std::fs::read_to_string(shipped.join("model.toml")).unwrap();
    let lines = format!("k = 3\nunit = {unit:?}\nfeatures = {features:?}");
    let manifest = manifest.replacen("k = 10\nfeatures = [\"signed_length\"]", &lines, 1);
    std::fs::write(dir.path().join("model.toml"), manifest).unwrap();
    let zeros = |count: usize| vec!["0"; count].join(",");
    let (inputs, outputs) = (zeros(3 * features.len()), zeros(bundle().shape().classes));
    std::fs::write(dir.path().join("golden/inputs.csv"), inputs).unwrap();
    std::fs::write(dir.path().join("golden/outputs.csv"), outputs).unwrap();
    Bundle::open(dir.path()).unwrap()
}

const TEN: &str = "52 -52 52 -52 52 -52 52 -52 52 -52";

#[test]
fn labels_become_classes_where_they_are_certain() {
    let class = |name: &str| bundle().labels().iter().position(|label| label.name == name);
    for (label, confidence, expected) in [
        ("TLS", "dpi", class("TLS")),
        ("TLS.Google", "dpi", class("TLS")),
        ("DNS", "dpi", Some(bundle().labels().len())),
        ("TLS", "port", None),
        ("", "dpi", None),
    ] {
        let text = format!("label,lengths,confidence\n{label},{TEN},{confidence}\n");
        assert_eq!(table(text.as_bytes()).unwrap().classes, [expected], "{label} {confidence}");
    }
    assert_eq!(table(format!("lengths\n{TEN}\n").as_bytes()).unwrap().classes, [None]);
    assert_eq!(
        table(format!("lengths,label\n{TEN},QUIC\n").as_bytes()).unwrap().classes,
        [class("QUIC")]
    );
}

#[test]
fn series_have_k_saturated_lengths_and_shorter_flows_none() {
    let text = format!("lengths\n1 2 3\n70000 -70000 {TEN}\n");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    for bytes in [text.into_bytes(), packed.finish().unwrap()] {
        let samples = table(&bytes).unwrap();
        assert_eq!((samples.rows.len(), samples.classes.len()), (1, 1));
        assert_eq!(samples.rows[0][..3], [65_535.0, -65_535.0, 52.0]);
        assert_eq!(samples.rows[0].len(), 10);
    }
}

#[test]
fn what_is_no_such_table_is_refused() {
    for (text, named) in [
        ("length\n1 2\n", "lengths"),
        ("lengths\n52 x\n", "line 2"),
        ("lengths,label\n1 2\n", "line 2"),
    ] {
        let message = table(text.as_bytes()).err().unwrap().to_string();
        assert!(message.contains(named) && message.lines().count() == 1, "{message}");
    }
    assert_eq!(of_table(Path::new("/nowhere.csv"), &bundle()).err().unwrap().code(), 66);
}
#[test]
fn rows_have_a_channel_for_each_feature_in_the_order_of_the_bundle() {
    let text = "lengths,payloads,offsets_us,flags,data_lengths,data_offsets_us\n\
                60 -60 52 70,0 0 0 18,0 10 4 5000000000,2 18 16 24,70 -80 90,20 20 21\n\
                70 70 70,42 42 42,0 0 0,,70 70 70,0 5 10\n\
                70 70,42 42,0 0,,70,0\n";
    let rows = |unit, features: &[&str]| {
        let samples = read(text.as_bytes(), &bundle_of(unit, features)).unwrap();
        let whole = |row: Vec<f32>| row.into_iter().map(|number| number as i64).collect();
        samples.rows.into_iter().map(whole).collect::<Vec<Vec<i64>>>()
    };
    let all = ["tcp_flags", "inter_arrival_us", "signed_length", "payload_length"];
    assert_eq!(
        rows("packet", &all),
        [[2, 18, 16, 0, 10, 0, 60, -60, 52, 0, 0, 0], [0, 0, 0, 0, 0, 0, 70, 70, 70, 42, 42, 42],]
    );
    assert_eq!(
        rows("data", &["signed_length", "inter_arrival_us"]),
        [[70, -80, 90, 0, 0, 1], [70, 70, 70, 0, 5, 5],]
    );
    // A row of another table says nothing of the flags of payload.
    let bundle = bundle_of("data", &["tcp_flags"]);
    let refused = read(text.as_bytes(), &bundle).err().unwrap().to_string();
    assert!(
        refused.contains("no column `data_flags`") && refused.contains("unit data"),
        "{refused}"
    );
}

#[test]
fn times_saturate_and_do_not_step_back() {
    let rows = |text: &str, features: &[&str]| {
        read(text.as_bytes(), &bundle_of("packet", features)).unwrap().rows
    };
    let most = u32::MAX as f32;
    let times = ["inter_arrival_us"];
    let text = format!("offsets_us\n5 3 4\n{} {} 0\n", i64::MIN, i64::MAX);
    assert_eq!(rows(&text, &times), [[0.0, 0.0, 1.0], [0.0, most, 0.0]]);
    // Gaps, with hexadecimal flags.
    let text = "iat_us,flags\n7 -2 4294967296,2 12 10\n";
    let both = rows(text, &["inter_arrival_us", "tcp_flags"]);
    assert_eq!(both, [[0.0, 0.0, most, 2.0, 18.0, 16.0]]);
    let payloads = rows("payloads\n70000 -65535 -3\n", &["payload_length"]);
    assert_eq!(payloads, [[65_535.0, 65_535.0, 3.0]]);
}

#[test]
fn lists_of_a_flow_have_the_same_length() {
    let bundle = bundle_of("packet", &["signed_length", "payload_length"]);
    let refused = read(b"lengths,payloads\n52 52 52,0 0\n", &bundle).err().unwrap();
    assert!(
        refused.to_string().contains("line 2: payload_length: 2 numbers for 3 elements"),
        "{refused}"
    );
}

#[test]
fn classes_differences_and_accuracies_are_counted() {
    let ours = [0.5, 0.25, 0.25, 0.25, 0.5, 0.25, 0.25, 0.25, 0.5];
    let theirs = [0.5, 0.25, 0.25, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5];
    let comparison = Comparison::between(&ours, &theirs, 3, &[Some(0), Some(0), None]);
    let expected = Comparison {
        source: String::new(),
        rows: 3,
        same_class: 2,
        max_difference: 0.25,
        mean_difference: 0.5 / 9.0,
        labelled: 2,
        right: 1,
        right_against: 2,
    };
    assert!((comparison.mean_difference - expected.mean_difference).abs() < 1e-12);
    let mean_difference = expected.mean_difference;
    assert_eq!(Comparison { mean_difference, ..comparison }, expected);
    assert_eq!(expected.as_json()["accuracy_loss"], 0.5);
}

#[test]
fn without_known_classes_there_is_no_accuracy() {
    let comparison = Comparison::between(&[0.5, 0.5], &[0.5, 0.5], 2, &[]);
    assert_eq!((comparison.rows, comparison.same_class), (1, 1));
    assert!(comparison.as_json()["accuracy"].is_null());
    assert!(!comparison.as_text().contains("loss"));
}
