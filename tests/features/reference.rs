//! The reference's series of all shared captures: elements of both units with all features.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Tables of the reference: folder of captures, flows, and what `--data` adds.
const TABLES: [[&str; 3]; 2] = [
    ["train", "series/train.csv.gz", "series/train_data.csv.gz"],
    ["odd", "reference/odd_flows.csv.gz", "reference/odd_data.csv.gz"],
];

/// The first 32 elements of a flow; all lists have the same length.
#[derive(Clone, Default)]
pub struct Series {
    pub lengths: Vec<i64>,
    pub offsets_us: Vec<i64>,
    pub payloads: Vec<i64>,
    /// 0 for UDP.
    pub flags: Vec<i64>,
}

impl Series {
    fn parse(lengths: &str, offsets_us: &str, payloads: &str, flags: &str) -> Series {
        let numbers = |text: &str| -> Vec<i64> {
            let numbers = text.split_whitespace();
            numbers.map(|number| number.parse().expect("a number")).collect()
        };
        let lengths = numbers(lengths);
        let mut flags = numbers(flags);
        flags.resize(lengths.len(), 0);
        Series { offsets_us: numbers(offsets_us), payloads: numbers(payloads), lengths, flags }
    }

    /// The first `k` elements.
    pub fn first(&self, k: usize) -> Series {
        let first = |numbers: &Vec<i64>| numbers.iter().take(k).copied().collect();
        Series {
            lengths: first(&self.lengths),
            offsets_us: first(&self.offsets_us),
            payloads: first(&self.payloads),
            flags: first(&self.flags),
        }
    }

    /// Times since the element before, saturated at 32 bits; 0 for the first one and where time
    /// steps back.
    pub fn gaps_us(&self) -> Vec<i64> {
        let before = self.offsets_us.iter().take(1).chain(&self.offsets_us);
        let pairs = self.offsets_us.iter().zip(before);
        let gap = |(time, before): (&i64, &i64)| (time - before).clamp(0, u32::MAX.into());
        pairs.map(gap).collect()
    }
}

/// A flow by both units.
pub struct Flow {
    packets: Series,
    data: Series,
}

impl Flow {
    /// The elements of a unit.
    pub fn of_unit(&self, unit: &str) -> &Series {
        match unit {
            "data" => &self.data,
            _ => &self.packets,
        }
    }
}

/// A capture and its flows, in the order of their first packets.
pub struct Capture {
    pub path: PathBuf,
    pub flows: Vec<Flow>,
}

#[derive(Deserialize)]
struct FlowRow {
    capture: String,
    flow: u64,
    lengths: String,
    offsets_us: String,
    flags: String,
}

#[derive(Deserialize)]
struct DataRow {
    capture: String,
    flow: u64,
    payloads: String,
    data_lengths: String,
    data_payloads: String,
    data_offsets_us: String,
    data_flags: String,
}

fn rows<T: for<'a> Deserialize<'a>>(path: &Path) -> Vec<T> {
    let file = std::fs::File::open(path).expect("a table of the reference");
    let table = csv::Reader::from_reader(flate2::read::GzDecoder::new(file)).into_deserialize();
    table.map(|row| row.expect("a row")).collect()
}

/// All captures with flows in the shared folder `data`.
pub fn captures(data: &Path) -> Vec<Capture> {
    let mut captures = Vec::new();
    for [folder, flows, more] in TABLES {
        let more = rows::<DataRow>(&data.join(more)).into_iter();
        let mut more: HashMap<_, _> =
            more.map(|row| ((row.capture.clone(), row.flow), row)).collect();
        let mut by_capture: BTreeMap<String, Vec<Flow>> = BTreeMap::new();
        for row in rows::<FlowRow>(&data.join(flows)) {
            let data = more.remove(&(row.capture.clone(), row.flow));
            let data = data.expect("both tables have the same flows");
            let flow = Flow {
                packets: Series::parse(&row.lengths, &row.offsets_us, &data.payloads, &row.flags),
                data: Series::parse(
                    &data.data_lengths,
                    &data.data_offsets_us,
                    &data.data_payloads,
                    &data.data_flags,
                ),
            };
            let flows = by_capture.entry(row.capture).or_default();
            assert_eq!(flows.len() as u64, row.flow, "rows are in order");
            flows.push(flow);
        }
        let folder = data.join("captures").join(folder);
        captures.extend(
            by_capture.into_iter().map(|(name, flows)| Capture { path: folder.join(name), flows }),
        );
    }
    captures
}
