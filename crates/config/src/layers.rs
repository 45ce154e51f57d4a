//! The layers: built-in defaults, then the files in their order, then `FENXI_*` variables, then
//! `--set`; later ones win.
//!
//! All go through one `Layer`, so a value is checked in the same way wherever it comes from, and
//! each keeps its [`Origin`](crate::origin::Origin). Nothing here stops at the first problem: a
//! wrong value is noted, the layer below keeps its place, and reading goes on.

use crate::settings::Settings;

mod layer;
mod values;

use layer::{Layer, Source};

/// Names the configuration file.
pub const FILE_VARIABLE: &str = "FENXI_CONFIG";

/// `FENXI_*` variables that are not configuration keys: the library, the tests, the build and the
/// trainer read them. Any command may find them in its environment.
const OTHER_VARIABLES: [&str; 5] =
    ["FENXI_ONNXRUNTIME", "FENXI_REQUIRE_ALL", "FENXI_REVISION", "FENXI_TRAIN_VENV", FILE_VARIABLE];

/// A file of the configuration.
#[derive(Debug, Clone)]
pub struct FileLayer {
    /// As origins and problems name it.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// Reads all layers on top of the defaults. Problems are one line each, in the order in which a
/// user would look for them.
pub(crate) fn read(
    mut settings: Settings,
    files: &[FileLayer],
    variables: &[(String, String)],
    sets: &[String],
    problems: &mut Vec<String>,
) -> Settings {
    for FileLayer { name, text } in files {
        let source = Source::File { name: name.as_str().into(), text };
        Layer::new(source, &mut settings, problems).read_file(text);
    }
    for (name, value) in variables {
        if name.starts_with("FENXI_") && !OTHER_VARIABLES.contains(&name.as_str()) {
            let source = Source::Variable(name.as_str().into());
            Layer::new(source, &mut settings, problems).read_variable(name, value);
        }
    }
    for set in sets {
        Layer::new(Source::Set, &mut settings, problems).read_set(set);
    }
    settings.settle();
    settings
}
