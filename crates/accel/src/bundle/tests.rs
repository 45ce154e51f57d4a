//! Every refusal, on bundles written to a temporary folder. No model is run, so any bytes will do
//! for one.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

mod features;
mod labels;
mod options;
mod ranges;

const MODEL: &[u8] = b"any bytes";
const INPUTS: &str = "100,-200,0\n1,2,3\n";
const OUTPUTS: &str = "0.25,0.75\n1,0\n";

/// A valid manifest for K = 3 and two labels.
fn manifest() -> String {
    let sha256: String = Sha256::digest(MODEL).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        r#"schema_version = 1
name = "test"
version = "1.0.0"
file = "model.onnx"
sha256 = "{sha256}"
k = 3
features = ["signed_length"]
precision = "fp32"
min_confidence = 0.5
[input]
name = "series"
[output]
name = "probabilities"
[[labels]]
name = "TLS"
taxonomy = "web"
[[labels]]
name = "DNS"
taxonomy = "network"
"#
    )
}

/// A bundle with one file exchanged; `name` is relative to the folder.
fn bundle_with(name: &str, content: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("golden")).unwrap();
    for (file, default) in [
        ("model.onnx", MODEL),
        ("model.toml", manifest().as_bytes()),
        ("golden/inputs.csv", INPUTS.as_bytes()),
        ("golden/outputs.csv", OUTPUTS.as_bytes()),
    ] {
        fs::write(dir.path().join(file), if file == name { content } else { default }).unwrap();
    }
    dir
}

/// A bundle that opens, with its folder.
pub(crate) fn good_bundle() -> (tempfile::TempDir, Bundle) {
    let dir = bundle_with("", b"");
    let bundle = Bundle::open(dir.path()).unwrap();
    (dir, bundle)
}

/// Checks that the bundle is refused in one line that has every one of `parts`.
fn refused(dir: &Path, parts: &[&str]) {
    let message = Bundle::open(dir).expect_err("the bundle is refused").to_string();
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message:?}");
    }
    assert!(!message.contains('\n'), "{message:?} is one line");
}

/// As [`refused`], for a manifest with `from` replaced by `to`.
fn manifest_refused(from: &str, to: &str, parts: &[&str]) {
    let text = manifest();
    assert!(text.contains(from), "{from:?} is in the manifest");
    let dir = bundle_with("model.toml", text.replacen(from, to, 1).as_bytes());
    refused(dir.path(), &[&["model.toml"], parts].concat());
}

fn file_refused(name: &str, content: &[u8], parts: &[&str]) {
    refused(bundle_with(name, content).path(), &[&[name], parts].concat());
}

#[test]
fn golden_files_may_be_hashed() {
    let hash = |text: &str| -> String {
        Sha256::digest(text).iter().map(|byte| format!("{byte:02X}")).collect()
    };
    let with = |inputs: &str, outputs: &str| {
        let line = format!("k = 3\ngolden_sha256 = [\"{inputs}\", \"{outputs}\"]");
        bundle_with("model.toml", manifest().replacen("k = 3", &line, 1).as_bytes())
    };
    let (inputs, outputs) = (hash(INPUTS), hash(OUTPUTS));
    let dir = with(&inputs, &outputs);
    let bundle = Bundle::open(dir.path()).unwrap();
    assert!(bundle.hashes_all_files() && !good_bundle().1.hashes_all_files());
    assert_eq!(bundle.manifest_text(), fs::read_to_string(dir.path().join("model.toml")).unwrap());
    refused(with(&outputs, &outputs).path(), &["golden/inputs.csv", "SHA-256", "golden_sha256"]);
    refused(with(&inputs, &inputs).path(), &["golden/outputs.csv", "SHA-256", "golden_sha256"]);
    refused(with(&inputs, "12").path(), &["golden_sha256 must be 64 hexadecimal digits"]);
    manifest_refused("k = 3", "k = 3\ngolden_sha256 = [\"a\"]", &["model.toml:"]);
}

#[test]
fn a_good_bundle_opens() {
    let dir = bundle_with("", b"");
    let bundle = Bundle::open(dir.path()).unwrap();
    assert_eq!((bundle.name(), bundle.version()), ("test", "1.0.0"));
    assert_eq!(bundle.shape(), Shape { channels: 1, k: 3, context: 0, classes: 2 });
    assert_eq!(bundle.labels()[1], LabelInfo { name: "DNS".into(), taxonomy: "network".into() });
    assert_eq!(bundle.min_confidence(), 0.5);
    assert_eq!(bundle.golden().inputs, [[100.0, -200.0, 0.0], [1.0, 2.0, 3.0]]);
    assert_eq!(bundle.golden().outputs, [[0.25, 0.75], [1.0, 0.0]]);
    assert_eq!(bundle.read_model().unwrap(), MODEL);
}

#[test]
fn flows_that_begin_midstream_are_asked_about_only_where_the_bundle_says_so() {
    let is_asked = |line: &str| {
        let replacement = format!("min_confidence = 0.5\n{line}");
        let text = manifest().replacen("min_confidence = 0.5", &replacement, 1);
        let dir = bundle_with("model.toml", text.as_bytes());
        Bundle::open(dir.path()).map(|bundle| bundle.midstream())
    };
    assert!(!is_asked("").unwrap());
    assert!(!is_asked("midstream = false").unwrap());
    assert!(is_asked("midstream = true").unwrap());
    assert!(is_asked("midstream = 1").is_err());
}

#[test]
fn missing_parts() {
    let dir = bundle_with("", b"");
    refused(&dir.path().join("nowhere"), &["nowhere", "no such folder"]);
    refused(&dir.path().join("model.toml"), &["no such folder"]);
    for file in ["golden/outputs.csv", "golden/inputs.csv", "model.onnx", "model.toml"] {
        fs::remove_file(dir.path().join(file)).unwrap();
        refused(dir.path(), &[file, "no such file"]);
    }
}

#[test]
fn what_cannot_be_read() {
    let dir = bundle_with("", b"");
    fs::remove_file(dir.path().join("model.onnx")).unwrap();
    fs::create_dir(dir.path().join("model.onnx")).unwrap();
    refused(dir.path(), &["model.onnx: cannot be read: it is a folder"]);
    file_refused("model.toml", b"\xff\xfe", &["not UTF-8"]);
    let oversized = vec![b'#'; MANIFEST_BYTES_MAX as usize + 1];
    file_refused("model.toml", &oversized, &["larger than 1048576 bytes"]);
}

#[test]
fn every_file_must_be_a_regular_one() {
    for name in ["golden/outputs.csv", "golden/inputs.csv", "model.onnx", "model.toml"] {
        let dir = bundle_with("", b"");
        let path = dir.path().join(name);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        refused(dir.path(), &[name, "it is a device", "regular file"]);
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused(dir.path(), &[name, "it is a FIFO", "regular file"]);
    }
}

#[test]
fn a_model_that_was_changed() {
    file_refused("model.onnx", b"other bytes", &["SHA-256", "model.toml says", "restore it"]);
    let dir = bundle_with("", b"");
    let bundle = Bundle::open(dir.path()).unwrap();
    fs::write(bundle.model_path(), b"exchanged later").unwrap();
    let error = bundle.read_model().unwrap_err().to_string();
    assert!(error.contains("its SHA-256 is"), "{error}");
}

#[test]
fn a_model_with_data_in_another_file_is_refused_although_its_hash_is_right() {
    // ModelProto.graph.initializer: name, external_data, data_location.
    let tensor = b"\x42\x01w\x6a\x13\x0a\x08location\x12\x07weights\x70\x01";
    let initializer = [&[0x2a, tensor.len() as u8], &tensor[..]].concat();
    let model = [&[0x3a, initializer.len() as u8], &initializer[..]].concat();
    let dir = bundle_with("model.onnx", &model);
    let hex = |bytes: &[u8]| -> String {
        let digest = Sha256::digest(bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let manifest = manifest().replace(&hex(MODEL), &hex(&model));
    fs::write(dir.path().join("model.toml"), manifest).unwrap();
    fs::write(dir.path().join("weights"), [0; 8]).unwrap();
    refused(
        dir.path(),
        &["model.onnx: the tensor \"w\" keeps its data in another file (\"weights\")"],
    );
}

#[test]
fn a_manifest_that_does_not_parse() {
    manifest_refused("k = 3", "k = ", &[":6:"]);
    manifest_refused("k = 3", "k = 3\ncolour = 1", &[":7:", "unknown field `colour`"]);
    manifest_refused("[input]", "[input]\ndtype = 1", &["unknown field `dtype`"]);
    manifest_refused("taxonomy = \"web\"", "family = \"web\"", &["unknown field `family`"]);
    manifest_refused("k = 3\n", "", &["missing field `k`"]);
    manifest_refused("k = 3", "k = \"3\"", &[":6:", "invalid type"]);
    manifest_refused("schema_version = 1\n", "", &["missing field `schema_version`"]);
}

#[test]
fn a_later_schema_is_named_before_its_new_keys() {
    manifest_refused(
        "schema_version = 1",
        "schema_version = 2\nnew = 1",
        &["schema_version is 2", "reads schema 1"],
    );
}

#[test]
fn values_out_of_range() {
    for k in ["0", "33", "-1", "9223372036854775807"] {
        manifest_refused("k = 3", &format!("k = {k}"), &[&format!("k is {k}"), "1 to 32"]);
    }
    for min_confidence in ["-0.1", "1.5", "nan", "inf"] {
        let line = format!("min_confidence = {min_confidence}");
        manifest_refused("min_confidence = 0.5", &line, &["min_confidence is", "0 to 1"]);
    }
    manifest_refused("\"fp32\"", "\"fp8\"", &["precision is \"fp8\"", "int8"]);
    manifest_refused("sha256 = \"", "sha256 = \"00", &["sha256 must be 64 hexadecimal digits"]);
    manifest_refused("name = \"test\"", "name = \"\"", &["name is \"\""]);
    manifest_refused("name = \"series\"", "name = \"\"", &["input.name is"]);
    manifest_refused("1.0.0", "1\\n0", &["version is"]);
}

#[test]
fn a_model_outside_the_folder() {
    for file in ["../model.onnx", "/model.onnx", "sub/model.onnx", "..", ".", ""] {
        manifest_refused("model.onnx", file, &["file is", &format!("\"{file}\"")]);
    }
}

#[test]
fn golden_files_of_another_model() {
    file_refused("golden/inputs.csv", b"1,2\n", &[":1:", "2 numbers", "asks for 3"]);
    file_refused("golden/inputs.csv", b"1,2,3\n1,2,3,4\n", &[":2:", "4 numbers"]);
    file_refused("golden/inputs.csv", b"a,b,c\n1,2,3\n", &[":1:", "\"a\" is not a number"]);
    file_refused("golden/inputs.csv", b"1,2,NaN\n", &["\"NaN\" is not a number"]);
    file_refused("golden/inputs.csv", b"", &["no samples"]);
    file_refused("golden/inputs.csv", b"1,2,3\n", &["golden/outputs.csv:2", "2 rows", "has 1"]);
    file_refused("golden/outputs.csv", b"1\n1\n", &[":1:", "1 numbers", "asks for 2"]);
    file_refused("golden/outputs.csv", b"0.25,0.75\n3.5,-1\n", &[":2:", "\"3.5\""]);
}

proptest! {
    /// Whatever stands in the text files: an answer of one line, and no panic.
    #[test]
    fn any_text_is_answered(
        file in 0..3usize,
        at in any::<prop::sample::Index>(),
        cut in 0..40usize,
        text in ".{0,40}",
    ) {
        let name = ["model.toml", "golden/inputs.csv", "golden/outputs.csv"][file];
        let mut content = [manifest().as_str(), INPUTS, OUTPUTS][file].to_owned();
        let from = at.index(content.len());
        content.replace_range(from..content.len().min(from + cut), &text);
        let dir = bundle_with(name, content.as_bytes());
        if let Err(error) = Bundle::open(dir.path()) {
            prop_assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
