//! The model bundle, and the hosts that it may name.

use std::path::PathBuf;
use std::time::Duration;

use super::mark::{Mapping, mappings};
use crate::kind::{Kind, MIN_CONFIDENCE, float};
use crate::network::Network;
use crate::section;
use crate::setting::Setting;

section! {
    /// The model bundle.
    pub struct Model = One "model";

    /// folder of the model bundle; empty: the one that ships with the program
    path: Option<PathBuf> = live "path", Kind::Text, "\"\"", "path" => Setting::file;
    /// a flow whose likeliest class is less likely than this gets the label unknown
    min_confidence: Option<f32> = live "min_confidence", MIN_CONFIDENCE, "-1.0",
        "probability, negative = as the bundle says" => min_confidence;
    /// how long a model may take to open, warm up and pass its test; then a start fails with exit
    /// code 69, and a reload keeps the old model; raise it for devices that compile a model for
    /// minutes
    open_timeout: Duration = live "open_timeout_s", float(0.1, 86_400.0), "50.0",
        "seconds" => Setting::seconds;
    /// min_confidence for single labels, which overrides it; "task.label" names the label of a
    /// task, and others are the first task's
    class_confidence: Vec<Mapping<f32>> = live "class_confidence", Kind::Map(&float(0.0, 1.0)),
        "{}", "probability" => mappings;
}

pub(super) fn min_confidence(setting: &Setting) -> Result<Option<f32>, String> {
    Ok(Some(setting.get()?).filter(|share| *share >= 0.0))
}

section! {
    /// Hosts that flows name.
    pub struct Hosts = One "hosts";

    /// where the hosts are that a model with [hosts] names: the end of a flow in one of these
    /// networks, and no other; empty: the private end, or the originator
    networks: Vec<Network> = restart "networks", Kind::TextList { least: 0 }, "[]",
        "ADDRESS/BITS" => networks;
    /// the task whose labels name hosts; its model needs a table [hosts]
    task: Option<String> = restart "task", Kind::Text, "\"\"",
        "name of a task, empty = the first" => Setting::word;
}

fn networks(setting: &Setting) -> Result<Vec<Network>, String> {
    setting.list(str::parse)
}
