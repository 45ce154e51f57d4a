//! Reads and checks `model.toml`.
//!
//! [`RawManifest`] mirrors the file, and unknown keys are errors. [`Manifest`] is what the rest of
//! the crate uses; it has passed every check that needs no other file.

use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;

use super::error::BundleError;

mod options;
mod target;

pub use options::{CONTEXT, Confusion, Depth, HostLabels, PortLabel};
use options::{RawHosts, RawPort};
use target::RawTarget;
pub use target::{TARGETS, Target};

/// The most labels a bundle may have. A class is kept in 12 bits, and one value is reserved for
/// "unknown", which does not count as a label.
pub const LABELS_MAX: usize = 4095;

/// The longest series a model may ask for, in elements.
const K_MAX: i64 = 32;

/// Name of the class of a flow whose confidence is below `min_confidence`. The last label may have
/// this name too: then the model has an output column for flows that are none of the labels.
const UNKNOWN: &str = "unknown";

/// A key, and what is wrong with its value.
type Problem = (String, String);

/// Names of the features that a bundle may ask for. A feature gives one number per element of a
/// series.
pub const FEATURES: [&str; 4] =
    ["signed_length", "payload_length", "inter_arrival_us", "tcp_flags"];

/// Names of the units that a bundle may ask for. The unit says which packets of a flow are the
/// elements of its series. The first is the default.
pub const UNITS: [&str; 2] = ["packet", "data"];

const PRECISIONS: [&str; 3] = ["fp32", "fp16", "int8"];

/// A label. Labels stand in the order of the model's output columns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelInfo {
    /// Name of the class.
    pub name: String,
    /// Wider group that the class belongs to, in the terms of the model's author.
    pub taxonomy: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    name: String,
}

/// `[learn]` of `model.toml`: how a tuner came to the model. It may say more, for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Learned {
    /// By which share of itself the tuner's measure changed last; near 0 once it has settled.
    pub stability: Option<f64>,
    /// Time of the newest sample that it has learned from, µs since the epoch.
    pub until_us: Option<i64>,
}

/// The file as it is. Integers are wider than their range, so that the error for a bad one can name
/// the range.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    #[serde(rename = "schema_version")]
    _schema_version: i64, // checked before the rest is read
    name: String,
    version: String,
    file: String,
    sha256: String,
    golden_sha256: Option<[String; 2]>,
    k: i64,
    unit: Option<String>, // schema 1 without it is from before there was a choice
    features: Vec<String>,
    precision: String,
    ranges: Option<String>,
    ranges_sha256: Option<String>,
    min_confidence: f64,
    #[serde(default)]
    midstream: bool,
    depths: Option<Vec<i64>>,
    confidence: Option<Vec<f64>>,
    contradiction: Option<Vec<f64>>,
    context: Option<Vec<String>>,
    input: Tensor,
    context_input: Option<Tensor>,
    output: Tensor,
    labels: Vec<LabelInfo>,
    #[serde(default)]
    ports: Vec<RawPort>,
    hosts: Option<RawHosts>,
    target: Option<RawTarget>,
    learn: Option<Learned>,
}

/// A manifest that passed its checks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub name: String,
    pub version: String,
    /// A plain file name within the bundle's folder.
    pub file: String,
    /// 64 hexadecimal digits, lower case.
    pub sha256: String,
    /// Hashes of golden inputs and outputs.
    pub golden_sha256: Option<[String; 2]>,
    pub k: usize,
    /// One of [`UNITS`].
    pub unit: String,
    /// Names from [`FEATURES`], in the order of the channels.
    pub features: Vec<String>,
    pub precision: String,
    /// A plain file name within the bundle's folder, and the file's hash.
    pub ranges: Option<(String, String)>,
    /// 0 to 1.
    pub min_confidence: f32,
    pub midstream: bool,
    /// At least one, rising; the last has `k` elements.
    pub depths: Vec<Depth>,
    /// Names from [`CONTEXT`], in the order of the second input's columns.
    pub context: Vec<String>,
    pub input_name: String,
    /// Given if `context` names anything.
    pub context_input_name: Option<String>,
    pub output_name: String,
    /// Without "unknown".
    pub labels: Vec<LabelInfo>,
    /// The model has a last output column "unknown", after the labels.
    pub has_unknown: bool,
    pub ports: Vec<PortLabel>,
    /// None if hosts are not named.
    pub hosts: Option<HostLabels>,
    /// None if the labels are no bands.
    pub target: Option<Target>,
    pub learned: Learned,
}

impl Manifest {
    /// Parses and checks `text`. `path` is used in errors only.
    pub fn parse(text: &str, path: &Path) -> Result<Self, BundleError> {
        let shown = path.display();
        let syntax = |error: &toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| 1 + before.matches('\n').count());
            let message = error.message().replace('\n', " ");
            BundleError::Refused(format!("{shown}:{line}: {message}"))
        };
        // The version comes first: keys of a later schema would otherwise be reported as unknown.
        let table: toml::Table = text.parse().map_err(|error| syntax(&error))?;
        if let Some(version) =
            table.get("schema_version").filter(|version| version.as_integer() != Some(1))
        {
            return Err(BundleError::Refused(format!(
                "{shown}: schema_version is {version}, but this program reads schema 1; get a \
                 bundle made for it"
            )));
        }
        let raw = toml::from_str(text).map_err(|error| syntax(&error))?;
        Self::check(raw)
            .map_err(|(key, problem)| BundleError::Refused(format!("{shown}: {key} {problem}")))
    }

    /// Checks the raw form.
    fn check(raw: RawManifest) -> Result<Self, Problem> {
        let k = usize::try_from(raw.k).ok().filter(|_| (1..=K_MAX).contains(&raw.k)).ok_or_else(
            || ("k".to_owned(), format!("is {}, but must be 1 to {K_MAX} packets", raw.k)),
        )?;
        check_range(|| "min_confidence".to_owned(), raw.min_confidence)?;
        for (key, text) in [
            ("name", &raw.name),
            ("version", &raw.version),
            ("input.name", &raw.input.name),
            ("output.name", &raw.output.name),
        ] {
            check_text(key, text)?;
        }
        check_file("file", &raw.file)?;
        let sha256 = check_sha256("sha256", &raw.sha256)?;
        let golden_sha256 = match raw.golden_sha256 {
            None => None,
            Some([inputs, outputs]) => {
                let check = |text: &str| check_sha256("golden_sha256", text);
                Some([check(&inputs)?, check(&outputs)?])
            }
        };
        let ranges = match (raw.ranges, raw.ranges_sha256) {
            (None, None) => None,
            (Some(file), Some(sha256)) => {
                check_file("ranges", &file)?;
                Some((file, check_sha256("ranges_sha256", &sha256)?))
            }
            _ => {
                let problem = "goes with ranges, and one of the two is missing; fenxi-train \
                    ranges writes both";
                return refuse("ranges_sha256", problem);
            }
        };
        if !PRECISIONS.contains(&raw.precision.as_str()) {
            let found = raw.precision;
            return refuse("precision", format!("is {found:?}, but must be one of {PRECISIONS:?}"));
        }
        let unit = raw.unit.unwrap_or_else(|| UNITS[0].to_owned());
        if !UNITS.contains(&unit.as_str()) {
            return refuse("unit", format!("is {unit:?}, but must be one of {UNITS:?}"));
        }
        check_features(&raw.features)?;
        let mut depths = options::depths(raw.depths.as_deref(), raw.confidence.as_deref(), k)?;
        let are_named = raw.depths.is_some();
        options::contradiction(&mut depths, are_named, raw.contradiction.as_deref())?;
        let (context, context_input_name) =
            options::context(raw.context, raw.context_input, &raw.input.name)?;
        let (labels, has_unknown) = without_unknown(raw.labels)?;
        let ports = options::ports(&raw.ports, &labels)?;
        let hosts = raw.hosts.map(|hosts| options::hosts(&hosts, &labels));
        let hosts = hosts.transpose()?;
        let bands = labels.len();
        let others = [("ports", !ports.is_empty()), ("hosts", hosts.is_some())];
        let target = raw.target.map(|target| target.check(bands, has_unknown, others));
        let target = target.transpose()?;
        Ok(Self {
            name: raw.name,
            version: raw.version,
            file: raw.file,
            sha256,
            golden_sha256,
            k,
            unit,
            features: raw.features,
            precision: raw.precision,
            ranges,
            min_confidence: raw.min_confidence as f32,
            midstream: raw.midstream,
            depths,
            context,
            input_name: raw.input.name,
            context_input_name,
            output_name: raw.output.name,
            labels,
            has_unknown,
            ports,
            hosts,
            target,
            learned: raw.learn.unwrap_or_default(),
        })
    }
}

fn refuse<T>(key: impl Into<String>, problem: impl Into<String>) -> Result<T, Problem> {
    Err((key.into(), problem.into()))
}

fn check_range(key: impl FnOnce() -> String, share: f64) -> Result<(), Problem> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    refuse(key(), format!("is {share}, but must be 0 to 1"))
}

fn check_text(key: &str, text: &str) -> Result<(), Problem> {
    if text.is_empty() || text.len() > 128 || text.chars().any(char::is_control) {
        return refuse(key, format!("is {text:?}, but must be 1 to 128 bytes of printable text"));
    }
    Ok(())
}

/// The hash in lower case.
fn check_sha256(key: &str, text: &str) -> Result<String, Problem> {
    let sha256 = text.to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return refuse(key, "must be 64 hexadecimal digits, as `sha256sum` prints them");
    }
    Ok(sha256)
}

/// A bundle's files must be in its folder, so a path is refused.
fn check_file(key: &str, file: &str) -> Result<(), Problem> {
    check_text(key, file)?;
    if Path::new(file).file_name().is_none_or(|name| name != file) {
        let problem = format!("is {file:?}, but must be the name of a file in the bundle's folder");
        return refuse(key, problem);
    }
    Ok(())
}

fn check_features(features: &[String]) -> Result<(), Problem> {
    if features.is_empty() {
        let problem = format!("is empty, but must name at least one of {FEATURES:?}");
        return refuse("features", problem);
    }
    for (at, feature) in features.iter().enumerate() {
        if !FEATURES.contains(&feature.as_str()) {
            let problem = format!(
                "asks for {feature:?}, which this program cannot compute (it can {FEATURES:?})"
            );
            return refuse("features", problem);
        }
        if features[..at].contains(feature) {
            return refuse("features", format!("names {feature:?} twice"));
        }
    }
    Ok(())
}

/// Checks the labels and takes "unknown" off their end. Returns the others, and whether it was
/// there.
fn without_unknown(mut labels: Vec<LabelInfo>) -> Result<(Vec<LabelInfo>, bool), Problem> {
    let has_unknown = labels
        .pop_if(|last| last.name == UNKNOWN)
        .map(|unknown| check_text(&format!("labels[{}].taxonomy", labels.len()), &unknown.taxonomy))
        .transpose()?
        .is_some();
    check_labels(&labels, has_unknown)?;
    Ok((labels, has_unknown))
}

fn check_labels(labels: &[LabelInfo], has_unknown: bool) -> Result<(), Problem> {
    if labels.is_empty() || labels.len() > LABELS_MAX {
        let besides = if has_unknown { " besides \"unknown\"" } else { "" };
        let found = labels.len();
        let problem = format!("has {found} entries{besides}, but must have 1 to {LABELS_MAX}");
        return refuse("labels", problem);
    }
    let mut names = HashSet::new();
    for (at, label) in labels.iter().enumerate() {
        let key = format!("labels[{at}].name");
        check_text(&key, &label.name)?;
        check_text(&format!("labels[{at}].taxonomy"), &label.taxonomy)?;
        if label.name == UNKNOWN {
            let problem = format!(
                "is \"{UNKNOWN}\", which only the last label may be called: the model's column for \
                 flows that are none of the others; move it and its column to the end, or rename it"
            );
            return refuse(key, problem);
        }
        if !names.insert(&label.name) {
            let name = &label.name;
            return refuse(key, format!("is {name:?}, which an earlier label is already called"));
        }
    }
    Ok(())
}
