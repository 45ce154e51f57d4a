//! The file of a device profile.
//!
//! A profile holds for one model on one device. Another model, or the same model on another
//! provider, has other times, and a policy that trusts the wrong times misses its goal without a
//! visible reason. So the file says what was measured, and reading it compares. Machine and library
//! are recorded but not compared: a user may measure on one machine for a thousand like it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Conditions, Measured, Point, Profile, ProfileKey};
use crate::bundle::Bundle;
use crate::file::{ReadError, read_regular};

/// The only schema so far.
const SCHEMA_VERSION: u32 = 1;

/// The most bytes read of a file; a real one has about 2,000.
const BYTES_MAX: u64 = 1 << 20;

/// Why a profile is not used.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The file does not exist or cannot be read.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        cause: ReadError,
    },
    /// The file is not a profile, or one that was measured with something else.
    #[error("{0}; measure again with `fenxi profile`")]
    Refused(String),
}

/// Where the line of a profile comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// It was fitted to the points.
    #[default]
    Measured,
    /// A run found that its batches take something else, and fitted it to these. The points are
    /// older.
    Run,
}

/// A profile, and what it was measured with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    schema_version: u32,
    /// The device's name in the configuration.
    pub device: String,
    /// The requested provider, such as "cpu".
    pub provider: String,
    /// The provider that ran the model, such as "CPUExecutionProvider".
    pub effective: String,
    /// Version of the ONNX Runtime library; empty if it is unknown or no library was used.
    pub library: String,
    /// The model's name and version.
    pub model: String,
    /// SHA-256 of the model, in hex.
    pub model_sha256: String,
    /// Description of the machine.
    pub machine: String,
    /// Resident memory that loading the model added, in KiB.
    pub memory_kib: u64,
    t0_us: f64,
    t1_us: f64,
    /// The batchiness β of the line at the largest size.
    #[serde(default)]
    pub batchiness: f64,
    /// R² of the line fitted to the points.
    #[serde(default)]
    pub r_squared: f64,
    /// Where the line comes from.
    #[serde(default)]
    pub origin: Origin,
    points: Vec<Point>,
    /// What else it depends on, in files that a start stores for the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) conditions: Option<Conditions>,
}

impl ProfileFile {
    /// A profile of a bundle. The fields about device and machine are empty, for the caller to
    /// fill.
    pub fn new(bundle: &Bundle, measured: &Measured) -> Self {
        let line = measured.fit();
        Self {
            schema_version: SCHEMA_VERSION,
            device: String::new(),
            provider: String::new(),
            effective: String::new(),
            library: String::new(),
            model: format!("{} {}", bundle.name(), bundle.version()),
            model_sha256: bundle.sha256().to_owned(),
            machine: String::new(),
            memory_kib: 0,
            t0_us: line.t0_us,
            t1_us: line.t1_us,
            batchiness: measured.batchiness(line),
            r_squared: measured.r_squared(line),
            origin: Origin::Measured,
            points: measured.points().to_vec(),
            conditions: None,
        }
    }

    /// A profile for a [`ProfileFolder`](super::ProfileFolder). The provider that did the work, and
    /// the machine, are for people.
    pub fn for_folder(
        bundle: &Bundle,
        measured: &Measured,
        key: &ProfileKey,
        effective: &str,
        machine: &str,
    ) -> Self {
        Self {
            device: key.device.clone(),
            provider: key.provider.clone(),
            effective: effective.to_owned(),
            library: key.library.clone(),
            machine: machine.to_owned(),
            conditions: Some(key.conditions.clone()),
            ..Self::new(bundle, measured)
        }
    }

    /// The same with the line that a run has found.
    #[must_use]
    pub fn found_by_run(&self, line: Profile) -> Self {
        let largest = self.points.iter().map(|point| point.rows).max();
        Self {
            t0_us: line.t0_us,
            t1_us: line.t1_us,
            batchiness: line.batchiness(largest.unwrap_or(1)),
            origin: Origin::Run,
            ..self.clone()
        }
    }

    /// Reads a profile and checks that it is one of this bundle on this provider.
    ///
    /// # Errors
    /// The file does not exist, is not a profile, or is one of another model or provider.
    pub fn read(path: &Path, bundle: &Bundle, provider: &str) -> Result<Self, ProfileError> {
        let file = Self::open(path)?;
        file.agrees(
            path,
            &[
                ("the model", &file.model_sha256, bundle.sha256()),
                ("the provider", &file.provider, provider),
            ],
        )?;
        Ok(file)
    }

    /// Reads a profile, whatever it is of.
    pub(super) fn open(path: &Path) -> Result<Self, ProfileError> {
        let bytes = read_regular(path, BYTES_MAX)
            .map_err(|cause| ProfileError::Read { path: path.to_owned(), cause })?;
        let text = std::str::from_utf8(&bytes).map_err(|_| "it is not UTF-8 text".to_owned());
        text.and_then(Self::parse).map_err(|problem| {
            ProfileError::Refused(format!("{}: is not a profile: {problem}", path.display()))
        })
    }

    /// Compares what the file says with what is expected.
    pub(super) fn agrees(
        &self,
        path: &Path,
        pairs: &[(&str, &str, &str)],
    ) -> Result<(), ProfileError> {
        let differs = pairs.iter().find(|(_, found, expected)| found != expected);
        let Some((what, found, expected)) = differs else {
            return Ok(());
        };
        let path = path.display();
        Err(ProfileError::Refused(format!(
            "{path}: was measured with {what} {found}, but {expected} is asked for"
        )))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut file: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let sound = |us: f64| us.is_finite() && us >= 0.0;
        if file.schema_version != SCHEMA_VERSION {
            let found = file.schema_version;
            Err(format!("schema_version is {found}, {SCHEMA_VERSION} is known"))
        } else if !sound(file.t0_us) || !sound(file.t1_us) {
            Err("t0_us and t1_us are to be numbers from 0".to_owned())
        } else if let Some(measured) = Measured::from_points(file.points.clone()) {
            // Both follow from the rest, so what the file says of them is not trusted, and older
            // files need not say it.
            file.batchiness = measured.batchiness(file.profile());
            file.r_squared = measured.r_squared(measured.fit());
            Ok(file)
        } else {
            Err("points are to have different sizes and times above 0".to_owned())
        }
    }

    /// The file's text.
    ///
    /// # Errors
    /// A number cannot be written as TOML, which would be a bug in this crate.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The line.
    pub fn profile(&self) -> Profile {
        Profile { t0_us: self.t0_us, t1_us: self.t1_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::tests::good_bundle;

    fn file(bundle: &Bundle) -> ProfileFile {
        let points = [(1, 10.0), (8, 24.0)].map(|(rows, us)| Point {
            rows,
            median_us: us,
            min_us: us - 1.0,
            runs: 5,
        });
        ProfileFile {
            device: "fast".to_owned(),
            provider: "cpu".to_owned(),
            ..ProfileFile::new(bundle, &Measured::from_points(points.to_vec()).unwrap())
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let (dir, bundle) = good_bundle();
        let written = file(&bundle);
        let path = dir.path().join("cpu.toml");
        std::fs::write(&path, written.to_toml().unwrap()).unwrap();
        let read = ProfileFile::read(&path, &bundle, "cpu").unwrap();
        assert_eq!(read, written);
        let Profile { t0_us, t1_us } = read.profile();
        assert!((t0_us - 8.0).abs() < 1e-9 && (t1_us - 2.0).abs() < 1e-9);
        // (8 + 8·2) / (8·(8 + 2)), and two points are on a line.
        assert!((read.batchiness - 0.3).abs() < 1e-9 && read.r_squared > 1.0 - 1e-9);
    }

    #[test]
    fn a_file_without_the_figures_that_follow_from_the_rest_is_read() {
        let (dir, bundle) = good_bundle();
        let path = dir.path().join("cpu.toml");
        let text = file(&bundle).to_toml().unwrap();
        let is_older = |line: &&str| {
            let newer = ["batchiness", "r_squared", "origin"];
            !newer.iter().any(|key| line.starts_with(key))
        };
        let older: Vec<&str> = text.lines().filter(is_older).collect();
        assert_eq!(older.len() + 3, text.lines().count());
        std::fs::write(&path, older.join("\n")).unwrap();
        let read = ProfileFile::read(&path, &bundle, "cpu").unwrap();
        assert_eq!(read, file(&bundle));
    }

    #[test]
    fn what_disagrees_is_named() {
        let (dir, bundle) = good_bundle();
        let path = dir.path().join("cpu.toml");
        let refusal = |text: &str, provider| {
            std::fs::write(&path, text).unwrap();
            let error = ProfileFile::read(&path, &bundle, provider).unwrap_err();
            let message = error.to_string();
            assert!(message.contains("cpu.toml: ") && !message.contains('\n'), "{message}");
            message
        };
        let text = file(&bundle).to_toml().unwrap();
        let other = text.replace(bundle.sha256(), &"0".repeat(64));
        for (text, provider, part) in [
            (text.as_str(), "cuda", "with the provider cpu, but cuda is asked for"),
            (&other, "cpu", "with the model 000"),
            (
                &text.replace("schema_version = 1", "schema_version = 2"),
                "cpu",
                "schema_version is 2",
            ),
            (&text.replace("t0_us = ", "t0_us = -"), "cpu", "t0_us and t1_us"),
            (&text.replace("rows = 8", "rows = 1"), "cpu", "different sizes"),
            (&format!("colour = 1\n{text}"), "cpu", "unknown field `colour`"),
            ("", "cpu", "missing field"),
            ("\u{0}", "cpu", "is not a profile"),
        ] {
            let message = refusal(text, provider);
            assert!(message.contains(part), "{part}: {message}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = ProfileFile::read(&path, &bundle, "cpu").unwrap_err();
        assert!(matches!(error, ProfileError::Read { .. }), "{error}");
    }
}
