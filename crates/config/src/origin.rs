//! Where a value was set.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a value was set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    #[default]
    BuiltIn,
    /// The default of the mode of this name, which is another one than the built-in.
    Mode(&'static str),
    /// The default for this many bytes of memory, which are too few for the built-in.
    Memory(u64),
    /// A line of a configuration file, counted from 1.
    File {
        /// The file as it was named.
        file: Arc<str>,
        /// The line.
        line: usize,
    },
    /// This environment variable.
    Variable(Arc<str>),
    /// `--set`.
    Set,
}

impl Origin {
    /// Whether nobody set the value.
    pub fn is_default(&self) -> bool {
        matches!(self, Origin::BuiltIn | Origin::Mode(_) | Origin::Memory(_))
    }

    /// Number of the layer; a greater one overrides the others.
    pub fn rank(&self) -> usize {
        match self {
            Origin::BuiltIn | Origin::Mode(_) | Origin::Memory(_) => 0,
            Origin::File { .. } => 1,
            Origin::Variable(_) => 2,
            Origin::Set => 3,
        }
    }

    /// The file that a path means. A relative one is meant from the folder of the configuration
    /// file that it stands in, so that it means the same wherever the program is started;
    /// elsewhere, from the working directory.
    pub fn resolve(&self, path: &str) -> PathBuf {
        match self {
            Origin::File { file, .. } => Path::new(&**file).with_file_name("").join(path),
            _ => PathBuf::from(path),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built-in"),
            Origin::Mode(mode) => write!(f, "default of mode {mode}"),
            Origin::Memory(bytes) => write!(f, "default for {} MiB of memory", bytes >> 20),
            Origin::File { file, line } => write!(f, "{file}:{line}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Set => f.write_str("--set"),
        }
    }
}
