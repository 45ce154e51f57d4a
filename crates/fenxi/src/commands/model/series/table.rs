//! Tables of flows: CSV, gzipped or not, with a header.
//!
//! Which columns are read follows the bundle's unit and features (`column`); each holds one number per element of the
//! series, with spaces between, and so have the tables of `shared/data/series`. Two more columns are optional: `label`,
//! such as `TLS.Google`, and `confidence`, how the label was found.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use accel::Bundle;
use csv::StringRecord;
use flate2::read::MultiGzDecoder;

use super::Samples;
use crate::exit::Failure;

/// The label that a model uses for everything without a label of its own, if it has one.
const OTHER: &str = "other";
/// The confidence of labels that were found in the flow's bytes and not guessed.
const CERTAIN: &str = "dpi";

/// The flows of a table that have K elements.
///
/// # Errors
/// The file cannot be read, or lacks a column that the bundle's features need, or a column holds something else.
pub fn of_table(path: &Path, bundle: &Bundle) -> Result<Samples, Failure> {
    let bad =
        |problem: &dyn std::fmt::Display| Failure::data(format!("{}: {problem}", path.display()));
    let file = File::open(path).and_then(gunzipped).map_err(|error| {
        Failure::no_input(format!("{}: cannot be read: {error}", path.display()))
    })?;
    let mut table = csv::Reader::from_reader(file);
    let columns = Columns::find(table.headers().map_err(|error| bad(&error))?, bundle);
    let columns = columns.map_err(|problem| bad(&problem))?;
    let mut samples = Samples::default();
    for (at, record) in table.records().enumerate() {
        let record = record.map_err(|error| bad(&error))?;
        let row = columns.row(&record, bundle.k());
        let row = row.map_err(|problem| bad(&format!("flow {at}: {problem}")))?;
        if let Some(row) = row {
            samples.rows.push(row);
            let text = |column: Option<usize>| column.and_then(|column| record.get(column));
            let context = columns.context(&record);
            samples
                .contexts
                .push(context.map_err(|problem| bad(&format!("flow {at}: {problem}")))?);
            let label = text(columns.label).unwrap_or_default();
            let class = class_of(label, text(columns.confidence), bundle);
            samples.classes.push(class);
        }
    }
    Ok(samples)
}

/// The columns of the bundle's features.
struct Columns {
    /// By channel: the feature's name and its column.
    features: Vec<(String, usize)>,
    /// Lengths, of which every element has one.
    elements: Option<usize>,
    /// By number of the context: its name and its column.
    context: Vec<(String, usize)>,
    /// TCP flags, by which flows are known that began mid-stream.
    flags: Option<usize>,
    label: Option<usize>,
    confidence: Option<usize>,
}

impl Columns {
    fn find(header: &StringRecord, bundle: &Bundle) -> Result<Columns, String> {
        let place = |name: &str| header.iter().position(|column| column == name);
        let feature = |feature: &String| {
            let name = column(bundle.unit(), feature);
            let at = place(&name).ok_or_else(|| {
                format!(
                    "no column `{name}`, in which the model's feature {feature} (unit {}) would be",
                    bundle.unit()
                )
            })?;
            Ok((feature.clone(), at))
        };
        let context = |name: &String| {
            let column = if name == "protocol" { "proto" } else { "dport" };
            let at = place(column).ok_or_else(|| {
                format!("no column `{column}`, in which the model's context {name} would be")
            })?;
            Ok((name.clone(), at))
        };
        Ok(Columns {
            features: bundle
                .features()
                .iter()
                .map(feature)
                .collect::<Result<_, String>>()?,
            elements: place(&column(bundle.unit(), "signed_length")),
            context: bundle
                .context()
                .iter()
                .map(context)
                .collect::<Result<_, String>>()?,
            flags: place("flags"),
            label: place("label"),
            confidence: place("confidence"),
        })
    }

    /// What the model wants of the flow beside its series.
    fn context(&self, record: &StringRecord) -> Result<Vec<f32>, String> {
        let flags = self.flags.and_then(|column| record.get(column));
        let first = flags.and_then(|flags| flags.split_whitespace().next());
        // A SYN, with or without ECN's bits, in tables of decimal and of hexadecimal numbers. UDP has no flags.
        let is_begun = first.is_none_or(|flags| matches!(flags, "2" | "02" | "194" | "c2"));
        let number = |(name, column): &(String, usize)| {
            let text = record.get(*column).unwrap_or_default();
            let number = text
                .parse::<u16>()
                .map_err(|error| format!("\"{text}\": {error}"))?;
            // Of a flow that began mid-stream nobody knows which end is the server.
            let is_unknown = name == "server_port" && !is_begun;
            Ok(if is_unknown { 0.0 } else { f32::from(number) })
        };
        self.context.iter().map(number).collect()
    }

    /// A row of input; `None` if the flow has fewer than `k` elements.
    fn row(&self, record: &StringRecord, k: usize) -> Result<Option<Vec<f32>>, String> {
        let mut row = Vec::with_capacity(self.features.len() * k);
        for (feature, column) in &self.features {
            let text = record.get(*column).unwrap_or_default();
            // UDP packets have no flags.
            let is_udp = feature == "tcp_flags" && text.is_empty();
            let elements = self.elements.and_then(|column| record.get(column));
            if is_udp && elements.is_some_and(|lengths| lengths.split_whitespace().count() >= k) {
                row.extend(std::iter::repeat_n(0.0, k));
                continue;
            }
            let numbers: Result<Vec<i64>, _> =
                text.split_whitespace().take(k).map(str::parse).collect();
            let numbers = numbers.map_err(|error| format!("\"{text}\": {error}"))?;
            if numbers.len() < k {
                return Ok(None);
            }
            row.extend(channel(feature, &numbers));
        }
        Ok(Some(row))
    }
}

/// The column that a feature is read from.
fn column(unit: &str, feature: &str) -> String {
    let column = match feature {
        "signed_length" => "lengths",
        "payload_length" => "payloads",
        "inter_arrival_us" => "offsets_us",
        "tcp_flags" => "flags",
        other => other,
    };
    match unit {
        "data" => format!("data_{column}"),
        _ => column.to_owned(),
    }
}

/// A column's numbers as a series stores them: saturated, and times as differences from the element before.
fn channel(feature: &str, numbers: &[i64]) -> Vec<f32> {
    const LENGTH_MAX: i64 = u16::MAX as i64;
    if feature != "inter_arrival_us" {
        let saturated = |&number: &i64| number.clamp(-LENGTH_MAX, LENGTH_MAX) as f32;
        return numbers.iter().map(saturated).collect();
    }
    let before = numbers.iter().take(1).chain(numbers);
    let times = numbers.iter().zip(before);
    // Where time steps back the difference is 0, as it is for the first element.
    let gap = |(time, before): (&i64, &i64)| time.saturating_sub(*before).clamp(0, u32::MAX.into());
    times.map(|pair| gap(pair) as f32).collect()
}

/// The file's bytes, decompressed if it is gzipped.
fn gunzipped(mut file: File) -> io::Result<Box<dyn Read>> {
    let mut first = Vec::new();
    file.by_ref().take(2).read_to_end(&mut first)?;
    let is_gzip = first == [0x1f, 0x8b];
    let whole = io::Cursor::new(first).chain(file);
    Ok(match is_gzip {
        true => Box::new(MultiGzDecoder::new(whole)),
        false => Box::new(whole),
    })
}

/// The bundle's class for the flow's label: its full name, the part before the first dot, or "other". `None` if the label
/// was not found in the flow's bytes.
fn class_of(label: &str, confidence: Option<&str>, bundle: &Bundle) -> Option<usize> {
    if label.is_empty() || confidence.is_some_and(|confidence| confidence != CERTAIN) {
        return None;
    }
    let class = |name: &str| bundle.labels().iter().position(|label| label.name == name);
    let protocol = label.split('.').next().unwrap_or(label);
    class(label)
        .or_else(|| class(protocol))
        .or_else(|| class(OTHER))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn bundle() -> Bundle {
        Bundle::open(Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/app-id-k10"
        )))
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
        std::fs::copy(shipped.join("model.onnx"), dir.path().join("model.onnx")).unwrap();
        let manifest = std::fs::read_to_string(shipped.join("model.toml")).unwrap();
        let lines = format!("k = 3\nunit = {unit:?}\nfeatures = {features:?}");
        let manifest = manifest.replacen("k = 10\nfeatures = [\"signed_length\"]", &lines, 1);
        std::fs::write(dir.path().join("model.toml"), manifest).unwrap();
        let zeros = |count: usize| vec!["0"; count].join(",");
        let (inputs, outputs) = (zeros(3 * features.len()), zeros(bundle().labels().len()));
        std::fs::write(dir.path().join("golden/inputs.csv"), inputs).unwrap();
        std::fs::write(dir.path().join("golden/outputs.csv"), outputs).unwrap();
        Bundle::open(dir.path()).unwrap()
    }

    const TEN: &str = "52 -52 52 -52 52 -52 52 -52 52 -52";

    #[test]
    fn labels_become_classes_where_they_are_certain() {
        let class = |name: &str| {
            bundle()
                .labels()
                .iter()
                .position(|label| label.name == name)
        };
        for (label, confidence, expected) in [
            ("TLS", "dpi", class("TLS")),
            ("TLS.Google", "dpi", class("TLS")),
            ("DNS", "dpi", class("other")),
            ("TLS", "port", None),
            ("", "dpi", None),
        ] {
            let text = format!("label,lengths,confidence\n{label},{TEN},{confidence}\n");
            assert_eq!(
                table(text.as_bytes()).unwrap().classes,
                [expected],
                "{label} {confidence}"
            );
        }
        assert_eq!(
            table(format!("lengths\n{TEN}\n").as_bytes())
                .unwrap()
                .classes,
            [None]
        );
        assert_eq!(
            table(format!("lengths,label\n{TEN},QUIC\n").as_bytes())
                .unwrap()
                .classes,
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
            ("lengths\n52 x\n", "flow 0"),
            ("lengths,label\n1 2\n", "record 1"),
        ] {
            let message = table(text.as_bytes()).err().unwrap().to_string();
            assert!(
                message.contains(named) && message.lines().count() == 1,
                "{message}"
            );
        }
        assert_eq!(
            of_table(Path::new("/nowhere.csv"), &bundle())
                .err()
                .unwrap()
                .code(),
            66
        );
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
            samples
                .rows
                .into_iter()
                .map(whole)
                .collect::<Vec<Vec<i64>>>()
        };
        let all = [
            "tcp_flags",
            "inter_arrival_us",
            "signed_length",
            "payload_length",
        ];
        assert_eq!(
            rows("packet", &all),
            [
                [2, 18, 16, 0, 10, 0, 60, -60, 52, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 70, 70, 70, 42, 42, 42],
            ]
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
        assert_eq!(
            channel("inter_arrival_us", &[5, 3, 4, 4 + (1 << 32)]),
            [0.0, 0.0, 1.0, u32::MAX as f32]
        );
        assert_eq!(
            channel("inter_arrival_us", &[i64::MIN, i64::MAX]),
            [0.0, u32::MAX as f32]
        );
        assert_eq!(
            channel("payload_length", &[70_000, 65_535]),
            [65_535.0, 65_535.0]
        );
    }
}
