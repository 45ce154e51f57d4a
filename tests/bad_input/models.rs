//! Model bundles that are missing, damaged, or contradict themselves, the model, or the
//! configuration: refused by name, before the first packet and before any output is created.

use std::fs;
use std::path::{Path, PathBuf};

use super::assert_refused;
use crate::common::{
    Finished, ONNXRUNTIME, bundle, copy_bundle, demo, fenxi, has_onnxruntime, labels, run,
    shipped_bundle, skip,
};

/// A copy of a bundle, to be spoilt.
struct Copy {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Copy {
    fn new() -> Copy {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        copy_bundle(&bundle(), &path);
        Copy { _dir: dir, path }
    }

    fn edit(&self, file: &str, change: impl FnOnce(String) -> String) {
        let path = self.path.join(file);
        let before = fs::read_to_string(&path).unwrap();
        let after = change(before.clone());
        assert_ne!(before, after, "the change applies");
        fs::write(path, after).unwrap();
    }

    /// Changes `model.toml`.
    fn set(&self, from: &str, to: &str) {
        self.edit("model.toml", |text| text.replacen(from, to, 1));
    }

    /// Writes the model's real hash into `model.toml`, as the program tells it.
    fn set_hash(&self) {
        let refusal = self.replay(&[]).stderr;
        let word = |after: &str| {
            let rest = refusal.split_once(after).expect("a hash mismatch").1;
            rest.split([',', ';']).next().unwrap().trim().to_owned()
        };
        self.set(&word("model.toml says "), &word("SHA-256 is "));
    }

    fn replay(&self, more: &[&str]) -> Finished {
        replay(&self.path, more)
    }
}

/// Replays with this bundle; whatever is wrong, no output may be there afterwards.
fn replay(bundle: &Path, more: &[&str]) -> Finished {
    let dir = tempfile::tempdir().unwrap();
    let outputs = ["flows.jsonl", "tagged.pcap"].map(|name| dir.path().join(name));
    let mut command = fenxi(["replay", "--json", "--model"]);
    command.arg(bundle).arg(demo()).args(more);
    command.arg("--flows").arg(&outputs[0]).arg("--write").arg(&outputs[1]);
    let finished = run(command);
    if finished.code != 0 {
        assert!(outputs.iter().all(|output| !output.exists()));
    }
    finished
}

#[test]
fn a_bundle_that_is_not_there() {
    assert_refused(
        replay(Path::new("/nowhere/m"), &[]),
        66,
        &["/nowhere/m: no such folder; a model bundle is a folder with"],
    );
    for file in ["model.toml", "model.onnx", "golden/inputs.csv", "ranges.csv"] {
        let copy = Copy::new();
        fs::remove_file(copy.path.join(file)).unwrap();
        assert_refused(copy.replay(&[]), 66, &[&format!("copy/{file}: no such file")]);
    }
    assert_refused(replay(&bundle().join("model.toml"), &[]), 66, &["model.toml: no such folder"]);
}

#[test]
fn a_manifest_that_is_wrong() {
    for (from, to, parts) in [
        ("[input]", "[input", &["model.toml:"][..]),
        ("k = 10", "k = \"ten\"", &["model.toml:7: ", "invalid type"]),
        ("k = 10", "kk = 10", &["model.toml:7: unknown field `kk`"]),
        ("k = 10", "k = 33", &["model.toml: k is 33, but must be 1 to 32 packets"]),
        (
            "schema_version = 1",
            "schema_version = 2",
            &["schema_version is 2, but this program reads schema 1"],
        ),
        (
            "\"signed_length\"",
            "\"gap_us\"",
            &["features asks for \"gap_us\", which this program cannot compute"],
        ),
        (
            "file = \"model.onnx\"",
            "file = \"../model.onnx\"",
            &["must be the name of a file in the bundle's folder"],
        ),
    ] {
        let copy = Copy::new();
        copy.set(from, to);
        assert_refused(copy.replay(&[]), 65, parts);
    }
}

#[test]
fn a_table_of_hosts_that_is_wrong() {
    let hosts = "[hosts]\nflows = 20\nmin_flows = 2\nconfidence = 0.9\n";
    let confusion = "[[hosts.confusions]]\nnamed = \"TLS\"\nlabel = \"QUIC\"\nshare = 0.6\n";
    let whole = format!("{hosts}{confusion}");
    let second = |label: &str| format!("{whole}{}", confusion.replace("QUIC", label));
    for (table, parts) in [
        (
            whole.replace("flows = 20", "flows = 0"),
            &["model.toml: hosts.flows is 0, but must be 1 to 256 flows"][..],
        ),
        (
            whole.replace("min_flows = 2", "min_flows = 21"),
            &["hosts.min_flows is 21, but must be 1 to hosts.flows, which is 20"],
        ),
        (
            whole.replace("confidence = 0.9", "confidence = 90"),
            &["hosts.confidence is 90, but must be 0 to 1"],
        ),
        (whole.replace("min_flows = 2\n", ""), &["model.toml:", "missing field `min_flows`"]),
        (whole.replace("min_flows", "flows_min"), &["unknown field `flows_min`"]),
        (
            whole.replace("TLS", "SSL"),
            &["hosts.confusions[0].named is \"SSL\", which no label is called"],
        ),
        (
            whole.replace("QUIC", "unknown"),
            &["hosts.confusions[0].label is \"unknown\", which no label is called"],
        ),
        (second("QUIC"), &["hosts.confusions[1] has the labels of an earlier entry"]),
        (
            second("HTTP"),
            &["hosts.confusions[1].share is 0.6, which makes the shares of \"TLS\" add up to 1.2"],
        ),
    ] {
        let copy = Copy::new();
        copy.edit("model.toml", |text| text + "\n" + &table);
        assert_refused(copy.replay(&[]), 65, parts);
    }
}

#[test]
fn a_model_that_is_not_the_one_described() {
    let copy = Copy::new();
    fs::write(copy.path.join("model.onnx"), "not ONNX").unwrap();
    assert_refused(
        copy.replay(&[]),
        65,
        &["copy/model.onnx: its SHA-256 is ", "but model.toml says ", "was changed or damaged"],
    );
}

#[test]
fn another_k_than_the_configuration() {
    let parts = [
        "--set: flow.k = 8: the model ",
        "wants k = 10 packets; set flow.k = 10, or take another model",
    ];
    assert_refused(replay(&bundle(), &["--set", "flow.k=8"]), 78, &parts);
    let check = run(fenxi(["check", "--set", "flow.k=8"]));
    assert_refused(check, 78, &parts);
}

#[test]
fn labels_that_are_not_the_outputs() {
    let copy = Copy::new();
    let last = labels(&bundle()).pop().unwrap();
    copy.edit("model.toml", |text| {
        text.split_once(&format!("[[labels]]\nname = \"{last}\"")).unwrap().0.to_owned()
    });
    // The golden outputs show it before the model does.
    let classes = labels(&bundle()).len();
    assert_refused(
        copy.replay(&[]),
        65,
        &["golden/outputs.csv:1: ", &classes.to_string(), &(classes - 1).to_string()],
    );
    let copy = Copy::new();
    copy.set(&format!("name = \"{last}\""), &format!("name = \"{}\"", labels(&bundle())[0]));
    assert_refused(copy.replay(&[]), 65, &["which an earlier label is already called"]);
}

/// Keeps the first `count` columns of a golden file.
fn columns(text: &str, count: usize) -> String {
    let line = |line: &str| line.split(',').take(count).collect::<Vec<_>>().join(",") + "\n";
    text.lines().map(line).collect()
}

#[test]
fn a_model_that_disagrees_with_its_manifest() {
    if !has_onnxruntime() {
        return skip("a_model_that_disagrees_with_its_manifest", "ONNX Runtime");
    }
    // k, with golden files and flow.k to match: only the model itself knows better.
    let copy = Copy::new();
    copy.set("k = 10", "k = 8");
    copy.edit("golden/inputs.csv", |text| columns(&text, 8));
    assert_refused(
        copy.replay(&["--set", "flow.k=8"]),
        65,
        &["copy/model.onnx: its input is \"series\", float32 [N, 1, 10], but model.toml asks for \
             \"series\", float32 [N, 1, 8]"],
    );
    // One label fewer, with golden outputs to match.
    let (copy, classes) = (Copy::new(), labels(&bundle()).len());
    copy.edit("model.toml", |text| text.rsplit_once("[[labels]]").unwrap().0.to_owned());
    copy.edit("golden/outputs.csv", |text| columns(&text, classes - 1));
    assert_refused(
        copy.replay(&[]),
        65,
        &[
            "its output is ",
            &format!("float32 [N, {classes}], but"),
            &format!("float32 [N, {}]", classes - 1),
        ],
    );
    // The engine needs no names.
    let copy = Copy::new();
    copy.set("name = \"series\"", "name = \"lengths\"");
    assert_refused(
        copy.replay(&ONNXRUNTIME),
        65,
        &["its input is \"series\"", "but model.toml asks for \"lengths\""],
    );
}

#[test]
fn a_corrupt_model_with_the_right_hash() {
    if !has_onnxruntime() {
        return skip("a_corrupt_model_with_the_right_hash", "ONNX Runtime");
    }
    let not_onnx = "copy/model.onnx: is not an ONNX model";
    for (bytes, part) in [
        (&b""[..], "copy/model.onnx: refused by ONNX Runtime: "),
        (b"not ONNX", not_onnx),
        (&fs::read(bundle().join("model.onnx")).unwrap()[..5000], not_onnx),
    ] {
        let copy = Copy::new();
        fs::write(copy.path.join("model.onnx"), bytes).unwrap();
        copy.set_hash();
        assert_refused(copy.replay(&[]), 65, &[part]);
    }
}

/// The shipped model with one tensor more, whose data are in another file:
/// ModelProto.graph.initializer with a name, external_data and data_location. A message may come in
/// parts, so this one is added at the end.
fn with_external_data() -> Vec<u8> {
    let tensor = b"\x08\x01\x10\x01\x42\x05extra\x6a\x16\x0a\x08location\x12\x0aetc/passwd\x70\x01";
    let initializer = [&[0x2a, tensor.len() as u8], &tensor[..]].concat();
    let graph = [&[0x3a, initializer.len() as u8], &initializer[..]].concat();
    [fs::read(bundle().join("model.onnx")).unwrap(), graph].concat()
}

#[test]
fn a_model_with_weights_outside_of_its_file() {
    let copy = Copy::new();
    fs::write(copy.path.join("model.onnx"), with_external_data()).unwrap();
    copy.set_hash();
    let parts = [
        "copy/model.onnx: the tensor \"extra\" keeps its data in another file (\"etc/passwd\"), \
         which sha256",
        "save_as_external_data=False",
    ];
    assert_refused(copy.replay(&[]), 65, &parts);
    let info = run(fenxi(["model".as_ref(), "info".as_ref(), copy.path.as_os_str()]));
    assert_refused(info, 65, &parts);
}

#[test]
fn files_that_never_end_or_never_come() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    for file in ["model.toml", "model.onnx", "golden/inputs.csv", "ranges.csv"] {
        let copy = Copy::new();
        let path = copy.path.join(file);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let parts = [file, "cannot be read: it is a device", "regular file"];
        assert_refused(copy.replay(&[]), 65, &parts);
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let parts = [file, "cannot be read: it is a FIFO", "regular file"];
        assert_refused(copy.replay(&[]), 65, &parts);
    }
}

/// Copies a folder of files and folders.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn a_model_in_the_working_directory_is_not_taken_for_the_shipped_one() {
    let dir = tempfile::tempdir().unwrap();
    let place = |path: &str| dir.path().join(path);
    for folder in ["prefix/bin", "here/models/protocol"] {
        fs::create_dir_all(place(folder)).unwrap();
    }
    fs::write(place("here/models/protocol/model.toml"), "hostile").unwrap();
    let program = place("prefix/bin/fenxi");
    // Not by this process: what another test starts meanwhile would have the file open for writing,
    // and it could not be run.
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg(env!("CARGO_BIN_EXE_fenxi")).arg(&program).status();
    assert!(copied.unwrap().success());
    let check = || {
        let ours = fenxi(["check", "--config-only"]);
        let mut command = std::process::Command::new(&program);
        command.args(ours.get_args()).current_dir(place("here"));
        command.env("FENXI_CONFIG", "");
        run(command)
    };
    copy_all(&shipped_bundle(), &place("prefix/share/fenxi/models/protocol"));
    let drawn = check().expect_code(0).stdout;
    assert!(drawn.contains("\nmodel     protocol "), "{drawn}");

    fs::remove_dir_all(place("prefix/share")).unwrap();
    if Path::new("/usr/share/fenxi/models").exists() {
        return;
    }
    let looked_at = format!(
        "looked at {0}/bin/models/protocol, {0}/share/fenxi/models/protocol, \
         /usr/share/fenxi/models/protocol; name",
        place("prefix").display()
    );
    assert_refused(check(), 66, &[&looked_at, "--model DIR or model.path"]);
}
