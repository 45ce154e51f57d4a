//! A model bundle: a folder with `model.toml`, the model, and golden inputs and outputs.
//!
//! Opening a bundle reads every file, checks the model's hash, and checks all numbers against each
//! other. It needs no ONNX Runtime; the device that takes the bundle checks whether the model's own
//! input and output agree with the manifest.
//!
//! A bundle may come from an untrusted place. So every read is bounded, and the model's file must
//! be in the folder. What runs is what was hashed: [`Bundle::read_model`] hashes the bytes again
//! when it hands them to a device, and a model that keeps data in other files is refused
//! ([`external`]).

use std::fmt::Display;
use std::path::{Path, PathBuf};

use engine::Ranges;
use sha2::{Digest, Sha256};

use crate::device::Shape;
use crate::file::read_regular;

mod error;
mod external;
mod golden;
mod manifest;

pub use error::{BundleError, NoSuchDepths};
pub use golden::Golden;
use manifest::Manifest;
pub use manifest::{
    CONTEXT, Confusion, Depth, FEATURES, HostLabels, LABELS_MAX, LabelInfo, Learned, PortLabel,
    TARGETS, Target, UNITS,
};

const MANIFEST: &str = "model.toml";

/// The most bytes read of a model.
const MODEL_BYTES_MAX: u64 = 1 << 30;
/// The most bytes read of `model.toml`.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The most bytes read of either golden file.
const GOLDEN_BYTES_MAX: u64 = 64 << 20;
/// The most bytes read of the file of ranges.
const RANGES_BYTES_MAX: u64 = 1 << 20;

/// A bundle that passed its checks.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    dir: PathBuf,
    /// `model.toml` as it is.
    text: String,
    manifest: Manifest,
    golden: Golden,
    ranges: Option<Ranges>,
}

impl Bundle {
    /// Reads and checks the bundle in the folder `dir`.
    ///
    /// # Errors
    /// The first problem found, in the order folder, manifest, model, golden files, ranges.
    pub fn open(dir: &Path) -> Result<Self, BundleError> {
        if !dir.is_dir() {
            return Err(BundleError::Missing { path: dir.to_owned(), what: "folder" });
        }
        let path = dir.join(MANIFEST);
        let text = read_text(&path, MANIFEST_BYTES_MAX)?;
        let manifest = Manifest::parse(&text, &path)?;
        let (dir, golden, ranges) = (dir.to_owned(), Golden::default(), None);
        let mut bundle = Self { dir, text, manifest, golden, ranges };
        bundle.read_model()?;
        bundle.golden = bundle.read_golden()?;
        if let Some((file, sha256)) = &bundle.manifest.ranges {
            let path = bundle.dir.join(file);
            let text = read_hashed(&path, RANGES_BYTES_MAX, ("ranges_sha256", sha256))?;
            let ranges = Ranges::parse(&as_text(&path, text)?).map_err(|problem| {
                let path = path.display();
                BundleError::Refused(format!(
                    "{path}: {problem}; write it again with fenxi-train ranges"
                ))
            })?;
            bundle.ranges = Some(ranges);
        }
        Ok(bundle)
    }

    /// Reads the model and hashes it again, so that a file that was replaced after [`Bundle::open`]
    /// is refused.
    ///
    /// # Errors
    /// The file cannot be read, its hash is not the one in the manifest, or parts of the model are
    /// in other files.
    pub fn read_model(&self) -> Result<Vec<u8>, BundleError> {
        let path = self.model_path();
        let bytes = read_hashed(&path, MODEL_BYTES_MAX, ("sha256", self.sha256()))?;
        external::check(&bytes)
            .map_err(|problem| BundleError::Refused(format!("{}: {problem}", path.display())))?;
        Ok(bytes)
    }

    fn read_golden(&self) -> Result<Golden, BundleError> {
        let [inputs, outputs] =
            ["inputs.csv", "outputs.csv"].map(|name| self.dir.join("golden").join(name));
        let read = |path: &Path, at: usize| match &self.manifest.golden_sha256 {
            Some(hashes) => {
                let expected = ("golden_sha256", hashes[at].as_str());
                as_text(path, read_hashed(path, GOLDEN_BYTES_MAX, expected)?)
            }
            None => read_text(path, GOLDEN_BYTES_MAX),
        };
        let texts = [read(&inputs, 0)?, read(&outputs, 1)?];
        Golden::parse((&inputs, &texts[0]), (&outputs, &texts[1]), self.shape())
    }

    /// The text of `model.toml` that was read.
    pub fn manifest_text(&self) -> &str {
        &self.text
    }

    /// Whether `model.toml` has the hash of every other file, so that who signs it signs all.
    pub fn hashes_all_files(&self) -> bool {
        self.manifest.golden_sha256.is_some()
    }

    /// The folder that it was opened from.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// The model's version, in its author's numbering.
    pub fn version(&self) -> &str {
        &self.manifest.version
    }

    /// SHA-256 of the model's file, 64 hexadecimal digits in lower case.
    pub fn sha256(&self) -> &str {
        &self.manifest.sha256
    }

    /// Elements per series, 1 to 32.
    pub fn k(&self) -> usize {
        self.manifest.k
    }

    /// Which packets of a flow are the elements of its series, one of [`UNITS`]: "packet" for all
    /// of them, "data" for those with layer-4 payload.
    pub fn unit(&self) -> &str {
        &self.manifest.unit
    }

    /// The features by name, in the order of the channels; all are of [`FEATURES`], and none occurs
    /// twice.
    pub fn features(&self) -> &[String] {
        &self.manifest.features
    }

    /// "fp32", "fp16" or "int8".
    pub fn precision(&self) -> &str {
        &self.manifest.precision
    }

    /// The labels, in the order of the output columns. If the model has a column "unknown", it
    /// comes after the labels and is not among them.
    pub fn labels(&self) -> &[LabelInfo] {
        &self.manifest.labels
    }

    /// A flow whose confidence is below this number, 0 to 1, gets the class "unknown".
    pub fn min_confidence(&self) -> f32 {
        self.manifest.min_confidence
    }

    /// Whether the model was trained on TCP flows that begin mid-stream. If it was not, such flows
    /// get no label.
    pub fn midstream(&self) -> bool {
        self.manifest.midstream
    }

    /// When the model may be asked: after these numbers of elements, rising. There is at least one,
    /// and unless they were limited ([`Bundle::at_depths`]), the last is [`Bundle::k`]. A bundle
    /// that names none has only that one, at which every answer is sure.
    pub fn depths(&self) -> &[Depth] {
        &self.manifest.depths
    }

    /// This bundle, with the model asked at these of its depths only; at all of them if none is
    /// named. What comes after the last of them is not looked at.
    ///
    /// # Errors
    /// One is no depth of the bundle.
    pub fn at_depths(mut self, depths: &[usize]) -> Result<Self, NoSuchDepths> {
        if depths.is_empty() {
            return Ok(self);
        }
        let known = |elements: &usize| self.depths().iter().find(|it| it.elements == *elements);
        let kept: Option<Vec<Depth>> = depths.iter().map(|it| known(it).copied()).collect();
        match kept {
            Some(kept) => {
                self.manifest.depths = kept;
                Ok(self)
            }
            None => Err(NoSuchDepths {
                model: self.name().to_owned(),
                depths: self.depths().iter().map(|it| it.elements).collect(),
            }),
        }
    }

    /// The numbers of a flow as a whole that the model reads besides the series, in the order of
    /// the second input's columns; all are of [`CONTEXT`], and none occurs twice. Empty for a model
    /// that reads series only.
    pub fn context(&self) -> &[String] {
        &self.manifest.context
    }

    /// What flows to some ports are: from their first packet on ([`Bundle::is_ports_first`]), or
    /// where the model has no sure answer. No protocol and port occur twice.
    pub fn ports(&self) -> &[PortLabel] {
        &self.manifest.ports
    }

    /// Whether ports name flows with their first packets, and answers may contradict them
    /// ([`Depth::contradiction`]).
    pub fn is_ports_first(&self) -> bool {
        self.depths().iter().any(|depth| depth.contradiction.is_some())
    }

    /// What flows to a port of a transport protocol are.
    pub fn port(&self, protocol: u8, port: u16) -> Option<&PortLabel> {
        let mut ports = self.ports().iter();
        ports.find(|it| (it.protocol, it.port) == (protocol, port))
    }

    /// How hosts are named by the labels of their first flows; none if the bundle does not ask for
    /// that.
    pub fn hosts(&self) -> Option<&HostLabels> {
        self.manifest.hosts.as_ref()
    }

    /// What the labels are bands of; none if they are not.
    pub fn target(&self) -> Option<&Target> {
        self.manifest.target.as_ref()
    }

    /// What a tuner says of how the model was learned.
    pub fn learned(&self) -> Learned {
        self.manifest.learned
    }

    /// Name of the model's input: float32 `[N, channels, K]`.
    pub fn input_name(&self) -> &str {
        &self.manifest.input_name
    }

    /// Name of the model's second input: float32 `[N, context]`; none if the model has no context.
    pub fn context_input_name(&self) -> Option<&str> {
        self.manifest.context_input_name.as_deref()
    }

    /// Name of the model's output: float32 `[N, classes]`.
    pub fn output_name(&self) -> &str {
        &self.manifest.output_name
    }

    /// Path of the model's file.
    pub fn model_path(&self) -> PathBuf {
        self.dir.join(&self.manifest.file)
    }

    /// Channels, K, numbers of context and output columns.
    pub fn shape(&self) -> Shape {
        Shape {
            channels: self.features().len(),
            k: self.k(),
            context: self.context().len(),
            classes: self.labels().len() + usize::from(self.manifest.has_unknown),
        }
    }

    /// Ranges of channels, from which the engine makes its integers; none if the bundle has none.
    pub fn ranges(&self) -> Option<&Ranges> {
        self.ranges.as_ref()
    }

    /// Golden inputs, and the outputs that the model must give for them.
    pub fn golden(&self) -> &Golden {
        &self.golden
    }
}

/// Reads the whole file; fails if it is larger than `limit` bytes.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, BundleError> {
    read_regular(path, limit).map_err(|cause| match cause {
        cause if cause.is_not_found() => {
            BundleError::Missing { path: path.to_owned(), what: "file" }
        }
        cause => unreadable(path, &cause),
    })
}

/// Reads a file whose hash the manifest has under this key.
fn read_hashed(
    path: &Path,
    limit: u64,
    (key, sha256): (&str, &str),
) -> Result<Vec<u8>, BundleError> {
    let bytes = read(path, limit)?;
    let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found == sha256 {
        return Ok(bytes);
    }
    Err(BundleError::Refused(format!(
        "{}: its SHA-256 is {found}, but model.toml says {sha256}; the file was changed or \
         damaged: restore it, or correct the key {key} if the change is yours",
        path.display(),
    )))
}

fn read_text(path: &Path, limit: u64) -> Result<String, BundleError> {
    as_text(path, read(path, limit)?)
}

fn as_text(path: &Path, bytes: Vec<u8>) -> Result<String, BundleError> {
    String::from_utf8(bytes).map_err(|_| unreadable(path, &"it is not UTF-8 text"))
}

fn unreadable(path: &Path, cause: &dyn Display) -> BundleError {
    BundleError::Refused(format!("{}: cannot be read: {cause}", path.display()))
}

#[cfg(test)]
pub(crate) mod tests;
