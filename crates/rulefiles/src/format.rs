//! Formats of rule files.

use std::path::Path;

/// How rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// CSV: a row per rule.
    Csv,
    /// Filters of the ClassBench generator.
    ClassBench,
}

impl Format {
    /// All names.
    pub const NAMES: [&'static str; 3] = ["toml", "csv", "classbench"];

    /// The format with this name.
    pub fn parse(name: &str) -> Option<Format> {
        match name {
            "toml" => Some(Format::Toml),
            "csv" => Some(Format::Csv),
            "classbench" => Some(Format::ClassBench),
            _ => None,
        }
    }

    /// Detects the format by the file's extension, otherwise by its first byte.
    pub(crate) fn detect(path: &Path, first: Option<u8>) -> Option<Format> {
        let extension = path.extension().map(|it| it.to_string_lossy().to_ascii_lowercase());
        let by_extension = extension.as_deref().and_then(Format::parse);
        by_extension.or((first == Some(b'@')).then_some(Format::ClassBench))
    }
}
