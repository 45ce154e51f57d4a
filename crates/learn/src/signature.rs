//! Signatures of candidates that come from elsewhere, as minisign makes them. What is signed is
//! `model.toml`, which has the hashes of all other files.

use std::path::Path;

use accel::{Bundle, read_regular};
use minisign_verify::{Error, PublicKey, Signature};

use crate::refusal::Refusal;

/// The signature, in the bundle's folder.
const FILE: &str = "model.toml.minisig";

/// The most bytes read of a signature or a key; minisign writes some 300.
const BYTES_MAX: u64 = 4096;

/// The key of `learn.key`.
pub struct Key(PublicKey);

impl Key {
    /// The key of `learn.key`: itself, or the path of its file.
    ///
    /// # Errors
    /// It is neither, in one line.
    pub fn read(given: &str) -> Result<Key, String> {
        if let Ok(key) = PublicKey::from_base64(given) {
            return Ok(Key(key));
        }
        let text = read_text(Path::new(given)).map_err(|why| {
            let cure = "set the second line of a file that `minisign -G` writes, or its path";
            format!("learn.key: no public key of minisign, nor a file: {given}: {why}; {cure}")
        })?;
        let key = PublicKey::decode(&text);
        key.map(Key).map_err(|why| format!("learn.key: {given}: {why}"))
    }

    /// Whether the owner of the key has signed all files of the bundle.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(&self, bundle: &Bundle) -> Result<(), Refusal> {
        let unsigned = |why: String| Refusal::new("unsigned", why);
        let text = read_text(&bundle.dir().join(FILE))
            .map_err(|why| unsigned(format!("{FILE}: {why}; learn.key asks for a signature")))?;
        let signature = Signature::decode(&text);
        let signature = signature.map_err(|why| unsigned(format!("{FILE}: {why}")))?;
        if !bundle.hashes_all_files() {
            let why = "model.toml has no golden_sha256, so its signature does not cover them";
            return Err(unsigned(why.to_owned()));
        }
        let verified = self.0.verify(bundle.manifest_text().as_bytes(), &signature, false);
        verified.map_err(|why| {
            let name = match why {
                Error::UnexpectedKeyId => "wrong_key",
                _ => "forged",
            };
            Refusal::new(name, format!("{FILE}: {why}"))
        })
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let bytes = read_regular(path, BYTES_MAX).map_err(|why| why.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// Of another pair.
    const OTHER: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";

    fn signed() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bundles/signed-volume")
    }

    fn key() -> Key {
        Key::read(signed().join("key.pub").to_str().unwrap()).unwrap()
    }

    /// A copy with one file changed.
    fn with(file: &str, change: impl Fn(&str) -> String) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("golden")).unwrap();
        for name in ["model.onnx", "golden/inputs.csv", "golden/outputs.csv", "model.toml", FILE] {
            fs::copy(signed().join(name), dir.path().join(name)).unwrap();
        }
        let text = fs::read_to_string(signed().join(file)).unwrap();
        fs::write(dir.path().join(file), change(&text)).unwrap();
        dir
    }

    fn refusal(dir: &TempDir) -> Refusal {
        key().check(&Bundle::open(dir.path()).unwrap()).unwrap_err()
    }

    #[test]
    fn a_key_is_given_as_text_or_by_its_file() {
        let bundle = Bundle::open(&signed()).unwrap();
        assert_eq!(key().check(&bundle), Ok(()));
        let text = fs::read_to_string(signed().join("key.pub")).unwrap();
        let given = Key::read(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(given.check(&bundle), Ok(()));
        for none in ["RWQ", "/nowhere/key.pub", "/dev/zero", signed().join(FILE).to_str().unwrap()]
        {
            let failure = Key::read(none).err().unwrap().to_string();
            assert!(failure.starts_with("learn.key: ") && failure.contains(none), "{failure}");
        }
    }

    #[test]
    fn what_is_not_signed_by_the_key_is_refused_by_name() {
        let unsigned = with(FILE, str::to_owned);
        fs::remove_file(unsigned.path().join(FILE)).unwrap();
        assert_eq!(refusal(&unsigned).name, "unsigned");
        let endless = with(FILE, |text| text.repeat(20));
        assert_eq!(refusal(&endless).name, "unsigned");
        let uncovered = with("model.toml", |text| {
            text.lines()
                .filter(|it| !it.starts_with("golden_sha256"))
                .collect::<Vec<_>>()
                .join("\n")
        });
        let refused = refusal(&uncovered);
        assert!(refused.name == "unsigned" && refused.why.contains("golden_sha256"), "{refused:?}");
        let changed = with("model.toml", |text| text.replace("[65536]", "[65537]"));
        assert_eq!(refusal(&changed).name, "forged");
        let retold = with(FILE, |text| text.replace("file:model.toml", "file:other.toml"));
        assert_eq!(refusal(&retold).name, "forged");
        let other = Key::read(OTHER).unwrap().check(&Bundle::open(&signed()).unwrap());
        assert_eq!(other.unwrap_err().name, "wrong_key");
        // The files that `model.toml` has the hashes of.
        for file in ["golden/inputs.csv", "golden/outputs.csv"] {
            let why = Bundle::open(with(file, |text| text.repeat(2)).path()).unwrap_err();
            assert!(why.to_string().contains("golden_sha256"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn any_signature_is_answered(text in "(untrusted comment: .{0,9}\n)?[A-Za-z+/=\n]{0,200}") {
            let dir = with(FILE, |_| text.clone());
            prop_assert_eq!(refusal(&dir).name, "unsigned");
        }
    }
}
