//! The reference's tables, and flow records in their form.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::common;

/// The length of the shipped model's series; the reference has the first 32.
const K: usize = 10;

/// A flow, as both sides tell it.
#[derive(Debug, PartialEq)]
pub struct Flow {
    pub number: u64,
    pub proto: u64,
    pub source: (IpAddr, u64),
    pub destination: (IpAddr, u64),
    pub first_us: i64,
    pub packets: u64,
    pub bytes: u64,
    pub lengths: Vec<i64>,
    pub offsets_us: Vec<i64>,
    pub community_id: String,
}

impl Flow {
    /// Of TCP or UDP.
    pub fn is_of_reference(&self) -> bool {
        matches!(self.proto, 6 | 17)
    }
}

/// A row of the reference's tables; its other columns are not compared.
#[derive(Deserialize)]
struct Row {
    capture: String,
    flow: u64,
    proto: u64,
    src: IpAddr,
    sport: u64,
    dst: IpAddr,
    dport: u64,
    first_us: i64,
    packets: u64,
    bytes: u64,
    lengths: String,
    offsets_us: String,
    community_id: String,
}

impl From<Row> for Flow {
    fn from(row: Row) -> Flow {
        let numbers = |text: &str| {
            let numbers = text.split_whitespace().take(K);
            numbers.map(|number| number.parse().expect("a number")).collect()
        };
        Flow {
            number: row.flow,
            proto: row.proto,
            source: (row.src, row.sport),
            destination: (row.dst, row.dport),
            first_us: row.first_us,
            packets: row.packets,
            bytes: row.bytes,
            lengths: numbers(&row.lengths),
            offsets_us: numbers(&row.offsets_us),
            community_id: row.community_id,
        }
    }
}

/// A flow record, as the reference would tell it.
pub fn recorded(record: &Value) -> Flow {
    let number = |field: &str| record[field].as_u64().expect("a count");
    let text = |field: &str| record[field].as_str().expect("a text");
    let numbers = |field: &str| {
        let numbers = record[field].as_array().expect("--series asks for them");
        numbers.iter().map(|number| number.as_i64().expect("a whole number")).collect()
    };
    let first: Timestamp = text("first").parse().expect("RFC 3339");
    Flow {
        number: number("flow_id"),
        proto: number("proto"),
        source: (text("src").parse().expect("an address"), number("src_port")),
        destination: (text("dst").parse().expect("an address"), number("dst_port")),
        first_us: first.as_microsecond(),
        packets: number("packets_fwd") + number("packets_rev"),
        bytes: number("bytes_fwd") + number("bytes_rev"),
        lengths: numbers("series"),
        offsets_us: numbers("series_us"),
        community_id: text("community_id").to_owned(),
    }
}

/// What the reference says of a folder of captures.
pub struct Reference {
    pub folder: PathBuf,
    /// An object per capture: `capture`, `status`, `packets`, `flows`, `verdicts`.
    pub counts: Vec<Value>,
    /// In order of flow number, by capture.
    pub flows: HashMap<String, Vec<Flow>>,
}

impl Reference {
    fn load(data: &Path, folder: &str, flows: &str) -> Reference {
        let file = std::fs::File::open(data.join(flows)).expect("the reference's flows");
        let mut by_capture: HashMap<String, Vec<Flow>> = HashMap::new();
        for row in csv::Reader::from_reader(flate2::read::GzDecoder::new(file)).deserialize() {
            let row: Row = row.expect("a row");
            by_capture.entry(row.capture.clone()).or_default().push(row.into());
        }
        Reference {
            folder: data.join("captures").join(folder),
            counts: common::json_lines(&data.join(format!("reference/{folder}_counts.jsonl"))),
            flows: by_capture,
        }
    }

    /// The references of both folders of captures.
    pub fn all(data: &Path) -> [Reference; 2] {
        [
            Reference::load(data, "train", "series/train.csv.gz"),
            Reference::load(data, "odd", "reference/odd_flows.csv.gz"),
        ]
    }
}
