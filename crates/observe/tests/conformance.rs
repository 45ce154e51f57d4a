//! Rust, C and Python read what a writer wrote, value by value, and refuse what is no file.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use observe::{
    Access, Action, Actions, Egress, EgressKind, Error, Field, Kind, Reader, Service, Slot, Writer,
};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

fn fields() -> Vec<Field> {
    vec![
        Field::new("flows_begun", "flows", Kind::Counter),
        Field::new("bytes_out", "bytes", Kind::Counter),
        Field::new("flows_in_flight", "flows", Kind::Gauge),
        Field::new("response", "ns", Kind::Reservoir),
        Field::new("response", "ns", Kind::Histogram),
        Field::new("gap", "ns", Kind::Window),
        Field::new("a_name_that_has_thirty-two_bytes", "packets", Kind::Histogram),
    ]
}

/// Fills a file with two removed egresses, gaps, and numbers of all sizes. Returns the writer, so
/// that the file is not ended, and what a reader must print.
fn write(path: &Path) -> (Writer, String) {
    let fields = fields();
    let service = Service {
        name: "web",
        egresses: 70,
        fields: &fields,
        epoch_ns: 1_764_000_000_000_000_000,
        writer: (0, 1),
        seed: 5,
    };
    let access = Access { owner: None, group: None, mode: 0o600 };
    let mut writer = Writer::in_file(&service, path, access).unwrap();
    let [begun, bytes, in_flight] =
        ["flows_begun", "bytes_out", "flows_in_flight"].map(|name| writer.value(name).unwrap());
    let [response, gap, long] =
        ["response", "gap", fields[6].name.as_str()].map(|name| writer.measure(name).unwrap());
    let mut slots: Vec<(Slot, Egress)> = Vec::new();
    for n in 0..70u8 {
        let egress = match n {
            0 => Egress { kind: EgressKind::OTHERS, address: [0; 16], port: 0 },
            1 => Egress { kind: EgressKind::OUT_PORT, address: [0; 16], port: u32::MAX },
            n if n % 2 == 0 => Egress::server(IpAddr::from([192, 0, 2, n]), 80 + u16::from(n)),
            n => Egress { kind: EgressKind::NEXT_HOP, address: [n; 16], port: 0 },
        };
        slots.push((writer.insert(&egress).unwrap(), egress));
    }
    for gone in [66, 3] {
        writer.remove(slots.remove(gone).0);
    }
    let mut expected = format!("frame {} {} 0\n", 72, 1_764_000_000_123_456_789u64);
    for (slot, egress) in &slots {
        let n = u64::from(slot.index);
        let values = [n, u64::MAX - 1 - n, 3 * n];
        for (value, sum) in [begun, bytes, in_flight].into_iter().zip(values) {
            writer.add(*slot, value, sum + 1);
            writer.subtract(*slot, value, 1);
        }
        for (measure, number) in (1..=n).flat_map(|number| [(gap, number), (long, number)]) {
            writer.sample(*slot, measure, 1000 + number, number << (n % 50));
        }
        // One sample each, wherever it lies.
        writer.sample(*slot, response, n, n * n);
        let histogram = |numbers: &mut dyn Iterator<Item = u64>| {
            let (mut sum, mut buckets) = (0u64, [0; 64]);
            for number in numbers {
                sum += number;
                buckets[number.max(1).ilog2() as usize] += 1;
            }
            buckets.iter().fold(format!(" {sum}"), |text, count| format!("{text} {count}"))
        };
        let gaps = (1..=n).fold(String::new(), |text, number| {
            format!("{text} {number}:{}:{}", 1000 + number, number << (n % 50))
        });
        let address: String = egress.address.iter().map(|byte| format!("{byte:02x}")).collect();
        let Slot { index, incarnation } = slot;
        let Egress { kind, port, .. } = egress;
        writeln!(expected, "egress {index} {incarnation} {} {port} {address}", kind.0).unwrap();
        writeln!(expected, "flows_begun flows 1 {n}\nbytes_out bytes 1 {}", values[1]).unwrap();
        writeln!(expected, "flows_in_flight flows 2 {}", 3 * n).unwrap();
        writeln!(expected, "response ns 3 1:{n}:{}", n * n).unwrap();
        writeln!(expected, "response ns 5{}", histogram(&mut [n * n].into_iter())).unwrap();
        writeln!(expected, "gap ns 4{gaps}").unwrap();
        let name = &fields[6].name;
        let long = histogram(&mut (1..=n).map(|number| number << (n % 50)));
        writeln!(expected, "{name} packets 5{long}").unwrap();
    }
    writer.publish_all(1_764_000_000_123_456_789);
    (writer, expected)
}

/// What the Rust reader reads, in the words of the other two.
fn read_by_rust(path: &Path) -> Result<String, Error> {
    let reader = Reader::open(path)?;
    let mut snapshot = reader.snapshot();
    reader.read(&mut snapshot)?;
    let ended = u8::from(reader.is_ended());
    let mut text = format!("frame {} {} {ended}\n", snapshot.generation(), snapshot.time_ns());
    for row in snapshot.egresses() {
        let (Slot { index, incarnation }, Egress { kind, address, port }) =
            (row.slot(), row.egress());
        let address: String = address.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "egress {index} {incarnation} {} {port} {address}", kind.0).unwrap();
        let histograms = reader.histograms(row.slot())?;
        for field in reader.fields() {
            write!(text, "{} {} {}", field.name, field.unit, field.kind as u64).unwrap();
            match field.kind {
                Kind::Counter | Kind::Gauge => {
                    write!(text, " {}", row.value(field).unwrap()).unwrap();
                }
                Kind::Histogram => {
                    let (sum, buckets) = histograms.histogram(field).unwrap();
                    write!(text, " {sum}").unwrap();
                    buckets.iter().for_each(|count| write!(text, " {count}").unwrap());
                }
                Kind::Reservoir | Kind::Window => {
                    for sample in reader.samples(row.slot(), field)? {
                        let (number, time, value) = (sample.number, sample.time_ns, sample.value);
                        write!(text, " {number}:{time}:{value}").unwrap();
                    }
                }
            }
            text.push('\n');
        }
    }
    Ok(text)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn skipped(needs: &str, test: &str) {
    let must = std::env::var_os("FENXI_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!must, "{test}: needs {needs}, and FENXI_REQUIRE_ALL forbids to skip it");
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs {needs}");
}

/// The reader in C, built into a folder.
fn c_reader(test: &str, to: &TempDir) -> Option<Command> {
    let program = to.path().join("observe");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(folder("include"));
    cc.arg("-o").arg(&program).arg(folder("examples/observe.c"));
    match cc.status() {
        Ok(status) => assert!(status.success(), "the C header does not compile"),
        Err(_) => {
            skipped("cc", test);
            return None;
        }
    }
    Some(Command::new(program))
}

/// The reader in Python; its helper in C is loaded from the folder, if it is built there.
fn python_reader(test: &str, package: &Path) -> Option<Command> {
    let venv = folder("../../target/venv/bin/python");
    let python = if venv.exists() { venv } else { "python3".into() };
    let mut numpy = Command::new(&python);
    numpy.args(["-c", "import numpy"]).stderr(Stdio::null());
    if !numpy.status().is_ok_and(|status| status.success()) {
        skipped("Python's numpy", test);
        return None;
    }
    let mut reader = Command::new(python);
    reader.args(["-m", "fenxi_observe"]).env("PYTHONPATH", package);
    reader.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(reader)
}

/// A copy of the Python package with its helper built.
fn package_with_helper(to: &TempDir) -> Option<PathBuf> {
    let package = to.path().join("fenxi_observe");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(folder("python/fenxi_observe")).unwrap() {
        let file = file.unwrap();
        if file.path().is_file() {
            fs::copy(file.path(), package.join(file.file_name())).unwrap();
        }
    }
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    cc.arg(package.join("_copy.so")).arg(package.join("_copy.c"));
    cc.status().ok().map(|status| assert!(status.success()))?;
    Some(to.path().to_owned())
}

fn print(reader: &mut Command, path: &Path) -> (bool, String) {
    let done = reader.arg("print").arg(path).output().unwrap();
    let (said, error) = [done.stdout, done.stderr].map(|it| String::from_utf8(it).unwrap()).into();
    assert_eq!(error, "");
    (done.status.success(), said)
}

/// Compares line by line, so that a failure shows one line and not all.
fn assert_same(said: &str, expected: &str) {
    for (said, expected) in said.lines().zip(expected.lines()) {
        assert_eq!(said, expected);
    }
    assert_eq!(said.len(), expected.len());
}

#[test]
fn rust_reads_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web");
    let (_writer, expected) = write(&path);
    assert_same(&read_by_rust(&path).unwrap(), &expected);
}

#[test]
fn c_reads_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = c_reader("c_reads_what_was_written", &folder) else { return };
    let path = folder.path().join("web");
    let (_writer, expected) = write(&path);
    assert_same(&print(&mut reader, &path).1, &expected);
}

#[test]
fn python_reads_what_was_written() {
    let test = "python_reads_what_was_written";
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("web");
    let (_writer, expected) = write(&path);
    for package in [Some(folder("python")), package_with_helper(&scratch)].into_iter().flatten() {
        let Some(mut reader) = python_reader(test, &package) else { return };
        assert_same(&print(&mut reader, &path).1, &expected);
    }
}

/// Files that are cut, and files with one wrong word in header, schema or frame: no reader crashes,
/// and they agree on which of them can be read.
#[test]
fn hostile_files_are_errors_in_every_language() {
    let test = "hostile_files_are_errors_in_every_language";
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("web");
    let (writer, _) = write(&path);
    let whole = fs::read(&path).unwrap();
    drop(writer);
    let mut files: Vec<Vec<u8>> =
        [0, 8, 504, 512, 4096, whole.len() - 8].map(|bytes| whole[..bytes].to_vec()).into();
    // Header, schema, and the rows in use of all three frames.
    let frame = |n: usize| 8 * (512 + n * 520);
    let places = (0..24).chain([32]).map(|word| 8 * word).chain([512 + 40, 512 + 48, 512 + 56]);
    for place in places.chain([0, 1, 2].map(|n| frame(n) + 16)) {
        for value in [0, 1, u64::MAX / 8, u64::MAX] {
            let mut file = whole.clone();
            file[place..place + 8].copy_from_slice(&u64::to_le_bytes(value));
            files.push(file);
        }
    }
    // Whatever the content says, it is values.
    let mut file = whole.clone();
    file[frame(0)..].fill(0xff);
    files.push(file);
    let c = c_reader(test, &scratch);
    let python = python_reader(test, &folder("python"));
    let hostile = scratch.path().join("hostile");
    for (n, file) in files.iter().enumerate() {
        fs::write(&hostile, file).unwrap();
        let by_rust = read_by_rust(&hostile);
        // Python takes a tenth of a second to start.
        for reader in c.iter().chain(python.iter().filter(|_| n % 8 == 0)) {
            let mut again = Command::new(reader.get_program());
            again.args(reader.get_args());
            let vars = reader.get_envs().filter_map(|(name, value)| Some((name, value?)));
            let (is_read, said) = print(again.envs(vars), &hostile);
            match &by_rust {
                Ok(text) => assert_same(&said, text),
                // Others print the rest where one egress has changed.
                Err(Error::Changed) => assert!(is_read),
                Err(error) => {
                    assert!(!is_read && said.starts_with("error"), "{n}: {error}, but {said}");
                }
            }
        }
    }
}

/// Weights from Python, through the kernel's name of a file that a socket would hand over.
#[test]
fn weights_from_python_apply() {
    let scratch = tempfile::tempdir().unwrap();
    let egresses: Vec<Egress> = (0..8).map(|n| Egress::server([192, 0, 2, n].into(), 80)).collect();
    let slots = [0, 5].map(|index| Slot { index, incarnation: 1 });
    for package in [Some(folder("python")), package_with_helper(&scratch)].into_iter().flatten() {
        let Some(reader) = python_reader("weights_from_python_apply", &package) else { return };
        let mut actions = Actions::create(&egresses, 7, 1).unwrap();
        let file = actions.file().unwrap().as_raw_fd();
        let mut owner = Command::new(reader.get_program());
        owner.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
        owner.args(["-c", WEIGHTS]).arg(format!("/proc/{}/fd/{file}", std::process::id()));
        assert!(owner.status().unwrap().success());
        let now = clock_gettime(ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let mut weights = [None; 2];
        assert_eq!(actions.weights(now_ns, &slots, &mut weights), Ok(()));
        assert_eq!(weights, [Some(0.1), Some(2.5e9)]);
        let mut given = [Action::default(); 8];
        actions.actions(&mut given).unwrap();
        assert_eq!(given[5], Action { mark: Some(u32::MAX), dscp: Some(46), task: Some(3) });
        assert_eq!(given[..5], [Action::default(); 5]);
    }
}

#[test]
fn weights_and_actions_from_c_apply() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(mut c) = c_reader("weights_and_actions_from_c_apply", &scratch) else { return };
    let egresses: Vec<Egress> = (0..6).map(|n| Egress::server([192, 0, 2, n].into(), 80)).collect();
    let mut actions = Actions::create(&egresses, 7, 1).unwrap();
    let file = actions.file().unwrap().as_raw_fd();
    c.arg("act").arg(format!("/proc/{}/fd/{file}", std::process::id()));
    assert!(c.status().unwrap().success());
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let slots: Vec<Slot> = (0..6).map(|index| Slot { index, incarnation: 1 }).collect();
    let (mut weights, mut given) = ([None; 6], [Action::default(); 6]);
    assert_eq!(actions.weights(now_ns, &slots, &mut weights), Ok(()));
    actions.actions(&mut given).unwrap();
    for n in 0..6 {
        assert_eq!(weights[n], Some(n as f64 + 1.0));
        let expected = Action {
            mark: Some(n as u32 + 1),
            dscp: (n % 2 == 1).then_some(46),
            task: (n % 3 == 0).then_some(0),
        };
        assert_eq!(given[n], expected);
    }
}

const WEIGHTS: &str = "
import os, sys
from fenxi_observe import Action, Actions, Egress
actions = Actions(os.open(sys.argv[1], os.O_RDWR))
first, sixth = actions.egresses[0], actions.egresses[5]
assert str(sixth.address) == '192.0.2.5' and sixth.port == 80, sixth
assert actions.kinds == ['mark', 'dscp', 'task'], actions.kinds
actions.publish([(first, 0.3), (sixth, 1)], valid_s=60, actions=[(first, Action(dscp=1))])
# The same server in a service's file has another slot.
elsewhere = Egress(7, 9, sixth.kind, sixth.port, sixth.packed)
action = Action(mark=2**32 - 1, dscp=46, task=3)
actions.publish([(first, 0.1), (elsewhere, 2.5e9)], valid_s=60, actions=[(elsewhere, action)])
try:
    actions.publish([(Egress(0, 1, 1, 80, bytes(16)), 1.0)])
    sys.exit(1)
except KeyError:
    pass
";
