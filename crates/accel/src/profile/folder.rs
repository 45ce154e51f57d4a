//! Profiles that one start measures and the next ones use.
//!
//! A profile that nobody asked for must hold exactly for what it is used with, so each file says
//! with what it was measured. What a configuration says is in the name of the file, as a hash, so
//! that configurations which share a folder do not take turns in replacing each other's files. What
//! the machine says, the library's version and the CPU, is in the file: after an upgrade the
//! profile is measured again and takes the place of the old one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ProfileError, ProfileFile};

/// Bytes of the hash that are in a name.
const HASHED: usize = 8;

/// What the times of a model on a device depend on, beside model, provider and library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Model of the CPU, as the kernel names it.
    pub cpu: String,
    /// Options of the provider, by name.
    pub options: Vec<(String, String)>,
    /// Library of a plug-in provider; empty without one.
    pub plugin: String,
    /// The configured batch sizes.
    pub batch_sizes: Vec<usize>,
    /// Whether the device takes these only.
    pub fixed_sizes: bool,
    /// Whether the device has a thread of its own.
    pub own_thread: bool,
}

/// What a stored profile must be of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileKey {
    /// The device's name in the configuration.
    pub device: String,
    /// The requested provider.
    pub provider: String,
    /// SHA-256 of the model, in hex.
    pub model_sha256: String,
    /// Version of the ONNX Runtime library.
    pub library: String,
    /// All else.
    pub conditions: Conditions,
}

impl ProfileKey {
    /// Name of the file: the device, for people, and a hash of all that a configuration says.
    pub fn file_name(&self) -> String {
        let Conditions { cpu: _, options, plugin, batch_sizes, fixed_sizes, own_thread } =
            &self.conditions;
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            // With its length, so that no two lists of parts look the same.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        for text in [&self.device, &self.provider, &self.model_sha256, plugin] {
            add(text.as_bytes());
        }
        for (name, value) in options {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        add(&[u8::from(*fixed_sizes), u8::from(*own_thread)]);
        for size in batch_sizes {
            add(&size.to_le_bytes());
        }
        let hash = hash.finalize();
        let hash: String = hash[..HASHED].iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = |c: char| match c.is_ascii_alphanumeric() || c == '-' {
            true => c,
            false => '_',
        };
        // A device's name may be of any length, a file's may not.
        let device: String = self.device.chars().map(plain).take(64).collect();
        format!("{device}-{hash}.toml")
    }
}

/// A folder of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFolder(PathBuf);

impl ProfileFolder {
    /// The folder at `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The profile of `key`; none where there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, is not a profile, or is one of something else.
    pub fn load(&self, key: &ProfileKey) -> Result<Option<ProfileFile>, ProfileError> {
        let path = self.0.join(key.file_name());
        let file = match ProfileFile::open(&path) {
            Ok(file) => file,
            Err(ProfileError::Read { cause, .. }) if cause.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let conditions = file.conditions.clone();
        let cpu = conditions.as_ref().map_or("", |it| &it.cpu);
        let rest = |conditions: Option<&Conditions>| match conditions {
            // The CPU is compared on its own, because its name says more than "other conditions".
            Some(it) => format!(
                "{:?}",
                (&it.options, &it.plugin, &it.batch_sizes, it.fixed_sizes, it.own_thread)
            ),
            None => "none".to_owned(),
        };
        file.agrees(
            &path,
            &[
                ("the model", &file.model_sha256, &key.model_sha256),
                ("the provider", &file.provider, &key.provider),
                ("ONNX Runtime", &file.library, &key.library),
                ("the CPU", cpu, &key.conditions.cpu),
                (
                    "options and batch sizes",
                    &rest(conditions.as_ref()),
                    &rest(Some(&key.conditions)),
                ),
            ],
        )?;
        Ok(Some(file))
    }

    /// Stores a profile for `key` atomically: a concurrent reader finds the old file or the new
    /// one. Makes the folder where there is none. Returns the path.
    ///
    /// # Errors
    /// The folder or the file cannot be made.
    pub fn store(&self, key: &ProfileKey, file: &ProfileFile) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.0)?;
        let name = key.file_name();
        let path = self.0.join(&name);
        // In the same folder, because only there a rename is one step.
        let temporary = self.0.join(temporary(&name));
        let text = file.to_toml().map_err(io::Error::other)?;
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let stored = written.and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = stored {
            // Where it was never made there is nothing to remove.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(path)
    }
}

/// The name of a file that becomes a profile. It is of this process and this call, because another
/// instance or another thread may store the same profile at the same time.
fn temporary(name: &str) -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.{}.{call}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::super::{Measured, Origin, Point, Profile};
    use super::*;
    use crate::bundle::Bundle;
    use crate::bundle::tests::good_bundle;

    fn key(bundle: &Bundle) -> ProfileKey {
        ProfileKey {
            device: "npu/0".to_owned(),
            provider: "openvino".to_owned(),
            model_sha256: bundle.sha256().to_owned(),
            library: "1.24.1".to_owned(),
            conditions: Conditions {
                cpu: "Some CPU @ 2 GHz".to_owned(),
                options: vec![("device_type".to_owned(), "NPU".to_owned())],
                plugin: String::new(),
                batch_sizes: vec![8, 64],
                fixed_sizes: true,
                own_thread: true,
            },
        }
    }

    fn file(bundle: &Bundle, key: &ProfileKey) -> ProfileFile {
        let points = [(8, 24.0), (64, 136.0)].map(|(rows, us)| Point {
            rows,
            median_us: us,
            min_us: us,
            runs: 5,
        });
        let measured = Measured::from_points(points.to_vec()).unwrap();
        ProfileFile::for_folder(bundle, &measured, key, "OpenVINOExecutionProvider", "here")
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let (dir, bundle) = good_bundle();
        let (key, folder) = (key(&bundle), dir.path().join("not/yet"));
        let folder = ProfileFolder::new(folder);
        assert_eq!(folder.load(&key).unwrap(), None);
        let stored = file(&bundle, &key);
        let path = folder.store(&key, &stored).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("npu_0-") && name.ends_with(".toml"), "{name}");
        assert_eq!(folder.load(&key).unwrap(), Some(stored.clone()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // A run finds another line, and its file takes the place of this one.
        let line = Profile { t0_us: 50.0, t1_us: 4.0 };
        folder.store(&key, &stored.found_by_run(line)).unwrap();
        let found = folder.load(&key).unwrap().unwrap();
        assert_eq!((found.profile(), found.origin), (line, Origin::Run));
        // (50 + 64·4) / (64·54).
        assert!((found.batchiness - 306.0 / 3456.0).abs() < 1e-9);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_configuration_says_is_in_the_name() {
        let (_dir, bundle) = good_bundle();
        let key = key(&bundle);
        let mut others = vec![key.clone(); 8];
        others[0].device = "npu".to_owned();
        others[1].provider = "cpu".to_owned();
        others[2].model_sha256 = "0".repeat(64);
        others[3].conditions.options = vec![("device_typeN".to_owned(), "PU".to_owned())];
        others[4].conditions.plugin = "/p.so".to_owned();
        others[5].conditions.batch_sizes = vec![8];
        others[6].conditions.fixed_sizes = false;
        others[7].conditions.own_thread = false;
        let mut names: Vec<String> = others.iter().map(ProfileKey::file_name).collect();
        names.push(key.file_name());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 9);
    }

    #[test]
    fn threads_that_store_the_same_profile_do_not_write_into_the_same_file() {
        assert_ne!(temporary("npu.toml"), temporary("npu.toml"));
        let (dir, bundle) = good_bundle();
        let folder = ProfileFolder::new(dir.path().join("p"));
        let (key, file) = (key(&bundle), file(&bundle, &key(&bundle)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| folder.store(&key, &file).unwrap());
            }
        });
        assert!(folder.load(&key).unwrap().is_some());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_does_not_fit_or_is_damaged_is_named() {
        let (dir, bundle) = good_bundle();
        let folder = ProfileFolder::new(dir.path().join("p"));
        let key = key(&bundle);
        let text = file(&bundle, &key).to_toml().unwrap();
        let path = folder.store(&key, &file(&bundle, &key)).unwrap();
        let no_conditions = text.split("[conditions]").next().unwrap();
        for (text, part) in [
            (&*text.replace("1.24.1", "1.25.0"), "ONNX Runtime 1.25.0"),
            (&text.replace("2 GHz", "3 GHz"), "the CPU Some CPU @ 3 GHz"),
            (&text.replace("[8, 64]", "[8, 32]").replace("    64,\n", ""), "batch sizes"),
            (&text.replace(bundle.sha256(), &"0".repeat(64)), "the model 000"),
            (no_conditions, "the CPU "),
            (&text[..text.len() / 2], "is not a profile"),
            ("", "is not a profile"),
        ] {
            fs::write(&path, text).unwrap();
            let error = folder.load(&key).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{part}: {error}\n{text}");
        }
        // A folder that cannot be one.
        let folder = ProfileFolder::new(path.join("below a file"));
        assert!(folder.store(&key, &file(&bundle, &key)).is_err());
    }
}
