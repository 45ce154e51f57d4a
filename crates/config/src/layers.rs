//! The layers: built-in defaults, then the files in their order, then `FENXI_*` variables, then `--set`; later ones
//! win.
//!
//! All go through one `Layer`, so a value is checked in the same way wherever it comes from, and
//! each keeps its [`Origin`]. Nothing here stops at the first problem: a wrong value is noted, the
//! layer below keeps its place, and reading goes on. The tables of devices, sets and tasks are read in `layers/tables.rs`.

use crate::checked::{Capture, IoMode, MarkAs};
use crate::draft::PolicyName;
use crate::keys::{KEYS, KeyId, TaskKey};
use crate::origin::Origin;
use crate::setting::{Entries, Setting};
use packetio::Backend;
use policy::DSCP_MASK;
use toml::Value;

mod layer;
mod tables;
mod values;

use layer::{Layer, Source};

pub use tables::{Section, Table};

/// Names the configuration file.
pub const FILE_VARIABLE: &str = "FENXI_CONFIG";

/// `FENXI_*` variables that are not configuration keys: the library, tests, the trainer, experiments, the build. They may
/// stand in the environment of any command.
const OTHER_VARIABLES: [&str; 6] = [
    "FENXI_LAB",
    "FENXI_ONNXRUNTIME",
    "FENXI_REQUIRE_ALL",
    "FENXI_REVISION",
    "FENXI_TRAIN_VENV",
    FILE_VARIABLE,
];

/// A file of the configuration.
#[derive(Debug, Clone)]
pub struct FileLayer {
    /// As origins and problems name it.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// What the layers came to, before the keys are checked against each other.
#[derive(Debug, Clone)]
pub struct Settings {
    /// In the order of [`KEYS`].
    values: Vec<Setting>,
    /// The built-in entries of maps, in the order of [`KEYS`].
    built_in: Vec<Entries>,
    /// The `[device.NAME]` tables.
    pub devices: Vec<Table>,
    /// The `[nftset.NAME]` tables.
    pub nft_sets: Vec<Table>,
    /// The `[[task]]` tables.
    pub tasks: Vec<Table>,
}

impl Settings {
    /// The setting of a key.
    pub fn setting(&self, id: KeyId) -> &Setting {
        &self.values[id as usize]
    }

    /// What the table of a task says of a key, unless a later layer overrides it in the section: `--set model.path=...` holds
    /// for a task whose table stands in a file.
    pub fn of_task<'a>(
        &self,
        table: &'a Table,
        is_first: bool,
        id: TaskKey,
    ) -> Option<&'a Setting> {
        let own = table.of_task(id)?;
        let section = id.section_key(is_first).map(|id| self.setting(id));
        let is_outranked = section.is_some_and(|section| section.origin.rank() > own.origin.rank());
        (!is_outranked).then_some(own)
    }

    /// The policy that a task has, where it has no goal to keep: `policy` of the table, or of the section.
    pub fn policy_without_goal<'a>(
        &'a self,
        table: &'a Table,
        is_first: bool,
    ) -> Option<&'a Setting> {
        let own = self.of_task(table, is_first, TaskKey::Policy);
        let policy = own.unwrap_or_else(|| self.setting(KeyId::AnalyticsPolicy));
        let name = policy.value.as_str().and_then(PolicyName::parse);
        let has_none = name.is_some_and(|name| !name.has_goal());
        (has_none && !policy.refused).then_some(policy)
    }

    /// Sets the default of a key, unless the key was set; `is_of_mark`: the default belongs to mode mark.
    fn set_default(&mut self, id: KeyId, value: &str, is_of_mark: bool) {
        let setting = &mut self.values[id as usize];
        if setting.origin.is_default() && !setting.refused {
            setting.value = Value::String(value.to_owned());
            setting.origin = match is_of_mark {
                true => Origin::Mode(IoMode::Mark),
                false => Origin::BuiltIn,
            };
        }
    }

    /// Whether somebody set a key of the built-in policy, or the policy of a task that tasks with a goal of slo cannot stand beside.
    fn has_other_batching(&self) -> bool {
        let keys = [
            KeyId::AnalyticsTimeoutMs,
            KeyId::AnalyticsPhi,
            KeyId::AnalyticsMaxWaitMs,
        ];
        let is_set = |id: &KeyId| !self.setting(*id).origin.is_default();
        let is_other = |task: &Table| {
            let policy = task.of_task(TaskKey::Policy);
            let policy = policy.and_then(|policy| policy.value.as_str());
            let times = [TaskKey::TimeoutMs, TaskKey::MaxWaitMs];
            policy == Some(PolicyName::OnOff.name())
                || (policy.is_none() && times.iter().any(|id| task.of_task(*id).is_some()))
        };
        keys.iter().any(is_set) || self.tasks.iter().any(is_other)
    }

    /// These, with those of `running` where a key changes at a start only. Where there are other tasks or other nft sets than
    /// before, that holds for all of them.
    pub fn live_over(&self, running: &Settings) -> Settings {
        let mut mixture = self.clone();
        for (at, key) in KEYS.iter().enumerate() {
            if !key.is_live() {
                mixture.values[at] = running.values[at].clone();
            }
        }
        mixture.tasks = tables_live_over(Section::Task, &self.tasks, &running.tasks);
        mixture.nft_sets = tables_live_over(Section::NftSet, &self.nft_sets, &running.nft_sets);
        // The mode of the run stays.
        settle(&mut mixture);
        mixture
    }
}

/// `after` with what `before` says where a key changes at a start only; `before` where these are other tables.
fn tables_live_over(section: Section, after: &[Table], before: &[Table]) -> Vec<Table> {
    let names = |tables: &'_ [Table]| -> Vec<String> {
        tables.iter().map(|table| table.name.clone()).collect()
    };
    match names(before) == names(after) {
        true => {
            let pairs = after.iter().zip(before);
            let pairs = pairs.map(|(after, before)| after.live_over(section, before));
            pairs.collect()
        }
        false => before.to_vec(),
    }
}

/// Reads all layers on top of each other. Problems are one line each, in the order in which a user
/// would look for them.
pub fn read(
    files: &[FileLayer],
    variables: &[(String, String)],
    sets: &[String],
    problems: &mut Vec<String>,
) -> Settings {
    let unset = Setting::accepted(Value::Boolean(false), Origin::BuiltIn);
    let mut settings = Settings {
        values: vec![unset; KEYS.len()],
        built_in: vec![Entries::new(); KEYS.len()],
        devices: Vec::new(),
        nft_sets: Vec::new(),
        tasks: Vec::new(),
    };
    Layer::new(Source::BuiltIn, &mut settings, problems).read_defaults();
    let entries = settings.values.iter().map(|value| value.entries.clone());
    settings.built_in = entries.collect();
    for FileLayer { name, text } in files {
        let source = Source::File {
            name: name.as_str().into(),
            text,
        };
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
    settle(&mut settings);
    settings
}

/// The built-in values that depend on another key, so that what is shown is what is in effect.
fn settle(settings: &mut Settings) {
    let holds_dscp = settings.setting(KeyId::MarkAs).value.as_str() == Some(MarkAs::Dscp.name());
    let mask = &mut settings.values[KeyId::MarkMask as usize];
    if holds_dscp && mask.origin == Origin::BuiltIn && !mask.refused {
        mask.value = Value::Integer(DSCP_MASK.into());
    }
    let mode = settings.setting(KeyId::IoMode).value.as_str();
    let is_mark = mode == Some(IoMode::Mark.name());
    // Other backends take frames from the kernel, which mode mark refuses in a line of its own.
    let backend = settings.setting(KeyId::IoBackend).value.as_str();
    let is_first = is_mark && backend == Some(Backend::AfPacket.name());
    let capture = if is_first {
        Capture::First
    } else {
        Capture::All
    };
    settings.set_default(KeyId::IoCapture, capture.name(), is_first);
    // A connection gets its mark while its first packets pass, so labels must not wait for a batch.
    let is_mark = is_mark && !settings.has_other_batching();
    let policy = if is_mark {
        PolicyName::Slo
    } else {
        PolicyName::CarryOver
    };
    settings.set_default(KeyId::AnalyticsPolicy, policy.name(), is_mark);
}
