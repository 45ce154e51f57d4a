//! What is asked of flows, and what is done with the answers.

use std::path::PathBuf;
use std::time::Duration;

use cring::K_MAX;
use policy::{Dscp, LabelRule};

use super::mark::mappings;
use super::model::min_confidence;
use super::{Batching, Cache, Device, Mapping, PolicyName};
use crate::kind::{
    BATCH_SIZES, CACHE_ENTRIES, CACHE_PREFIX, DEVICES, Kind, LATENCY_GOAL_MS, MARK_MASK,
    MAX_WAIT_MS, MIN_CONFIDENCE, SLO_DELTA_SHARE, TIMEOUT_MS, integer,
};
use crate::origin::Origin;
use crate::section;
use crate::setting::Setting;
use crate::when::{Needed, Term, When};

/// The most tasks. Answers that a flow manager waits for, one for each model and depth, are
/// numbered below it.
pub const TASKS_MAX: usize = cring::TASKS_MAX;

/// Name of the task of a configuration without `[[task]]`.
pub const DEFAULT_TASK: &str = "default";

/// The longest name of a task, in bytes: it becomes a label of metrics and a field of records.
const TASK_NAME_MAX: usize = 32;
/// What rules write where no task is asked.
const NO_TASK: &str = "none";

/// Depths of a model. Flow managers have a task for each.
const DEPTHS: Kind = Kind::IntegerList { least: 0, min: 1, max: K_MAX as i64, most: TASKS_MAX };

/// The keys of a task that only policies with a goal read.
pub(crate) const GOAL_KEYS: [&str; 2] = ["latency_goal_ms", "slo_delta"];

section! {
    /// A `[[task]]` table over what the sections say.
    pub struct TaskKeys = List "task";

    /// name of the task; no two tasks have the same
    name: String = restart "name", Kind::Text, "\"default\"", "letters, digits, - and _" => name;
    /// folder of the model bundle; the default is model.path
    model: Option<PathBuf> = live "model", Kind::Text, "\"\"", "path" => Setting::file;
    /// depths at which the model runs, ascending; each counts as a task
    depths: Vec<usize> = restart "depths", DEPTHS, "[]", "packets, [] = all" => depths;
    /// on which flows the model runs, such as port = 443 and other.confidence < 0.9, where all
    /// terms hold (configs/1-1-1.toml lists them)
    when: When<String> = restart "when", Kind::Text, "\"\"",
        "terms joined by and, empty = always" => when;
    /// where the model runs; the default is accel.devices
    devices: Vec<String> = live "devices", DEVICES, "[]", "";
    /// when a batch fires; the default is analytics.policy
    policy: PolicyName = live "policy", Kind::OneOf(PolicyName::NAMES), "\"carry-over\"", "";
    /// policies slo and on-off: the latency goal; the default is analytics.latency_goal_ms
    latency_goal: Duration = live "latency_goal_ms", LATENCY_GOAL_MS, "2.0",
        "milliseconds" => Setting::milliseconds;
    /// policies slo and on-off: what is kept in reserve; the default is analytics.slo_delta
    slo_delta: f64 = live "slo_delta", SLO_DELTA_SHARE, "0.05", "share of the goal";
    /// how long the oldest series waits before a batch is composed; the default is
    /// analytics.timeout_ms
    timeout: Duration = live "timeout_ms", TIMEOUT_MS, "10.0",
        "milliseconds" => Setting::milliseconds;
    /// no series is carried over for longer than this; the default is analytics.max_wait_ms
    max_wait: Duration = live "max_wait_ms", MAX_WAIT_MS, "50.0",
        "milliseconds" => Setting::milliseconds;
    /// batch sizes to choose from, ascending; the default is analytics.batch_sizes
    batch_sizes: Vec<usize> = live "batch_sizes", BATCH_SIZES, "[8, 16, 32, 64, 128, 256]",
        "series";
    /// length of the prefix; the default is cache.prefix
    cache_prefix: usize = live "cache_prefix", CACHE_PREFIX, "0", "packets, 0 = off";
    /// size of the prefix cache; the default is cache.entries
    cache_entries: usize = live "cache_entries", CACHE_ENTRIES, "65536", "prefixes, 0 = off";
    /// where devices cannot keep up, series of the task with the lowest priority are shed first
    priority: u8 = live "priority", integer(0, 9), "5", "";
    /// a flow whose likeliest class is less likely than this gets the label unknown; the first
    /// task's default is model.min_confidence
    min_confidence: Option<f32> = live "min_confidence", MIN_CONFIDENCE, "-1.0",
        "probability, negative = as the bundle says" => min_confidence;
    /// label or taxonomy of this task to DSCP; the default of the first task is tag.dscp
    dscp: Vec<Mapping<Dscp>> = live "dscp", Kind::Map(&Kind::Dscp), "{}",
        "DSCP: a name or 0 to 63" => mappings;
    /// mode mark: label or taxonomy of this task to bits of the connection mark; the default of
    /// the first task is mark.class
    mark: Vec<Mapping<u32>> = live "mark", Kind::Map(&MARK_MASK), "{}",
        "bits of the connection mark, within mark_mask" => mappings;
    /// mode mark: the bits that labels of this task may write, which no other task has; the
    /// default is all bits of mark, and mark.mask for the first task
    mark_mask: u32 = live "mark_mask", MARK_MASK, "0xff000000", "bits of the connection mark";
    /// whether labels of this task appear in records
    records: bool = restart "records", Kind::Bool, "true", "";
}

/// The key of a section that holds where a task leaves its own key out. The sections describe the
/// labels of the first task.
pub(crate) fn section_key(key: &str, is_first: bool) -> Option<&'static str> {
    Some(match key {
        "model" => "model.path",
        "devices" => "accel.devices",
        "policy" => "analytics.policy",
        "latency_goal_ms" => "analytics.latency_goal_ms",
        "slo_delta" => "analytics.slo_delta",
        "timeout_ms" => "analytics.timeout_ms",
        "max_wait_ms" => "analytics.max_wait_ms",
        "batch_sizes" => "analytics.batch_sizes",
        "cache_prefix" => "cache.prefix",
        "cache_entries" => "cache.entries",
        "min_confidence" if is_first => "model.min_confidence",
        "dscp" if is_first => "tag.dscp",
        "mark" if is_first => "mark.class",
        "mark_mask" if is_first => "mark.mask",
        _ => return None,
    })
}

fn name(setting: &Setting) -> Result<String, String> {
    let name: String = setting.get()?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name == NO_TASK {
        return Err(format!(
            "task = \"{NO_TASK}\" in a rule of policy.rules means that no model is asked; choose \
             another name"
        ));
    }
    match (1..=TASK_NAME_MAX).contains(&name.len()) && name.chars().all(is_word) {
        true => Ok(name),
        false => Err(format!("expected 1 to {TASK_NAME_MAX} letters, digits, - and _")),
    }
}

fn when(setting: &Setting) -> Result<When<String>, String> {
    let when = When::parse(&setting.get::<String>()?).map_err(|error| error.to_string())?;
    match when.terms.iter().find(|term| matches!(term, Term::Vlan(_))) {
        Some(term) => Err(format!("{term}: only services ask for VLANs; leave the term out")),
        None => Ok(when),
    }
}

fn depths(setting: &Setting) -> Result<Vec<usize>, String> {
    let depths: Vec<usize> = setting.get()?;
    match depths.is_sorted_by(|a, b| a < b) {
        true => Ok(depths),
        false => Err(format!(
            "found {}, expected depths that rise, each of them named once",
            setting.value
        )),
    }
}

/// What is asked of flows: one model, about which flows, how its series are batched, cached and
/// inferred, and what its labels lead to.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Unique among the tasks; [`DEFAULT_TASK`] where the configuration names none.
    pub name: String,
    /// Where the task was first named.
    pub origin: Origin,
    /// Folder of the model bundle; `None`: the bundle that ships with the program.
    pub model: Option<PathBuf>,
    /// Where that was set.
    pub model_origin: Origin,
    /// The depths of the model at which it is asked, rising; empty: all of them.
    pub depths: Vec<usize>,
    /// Where that was set, or the task was first named.
    pub depths_origin: Origin,
    /// Which flows it is asked about.
    pub when: When,
    /// Where that was set.
    pub when_origin: Origin,
    /// One per device of the layout, in its order.
    pub devices: Vec<Device>,
    /// Why the model runs there; empty where devices were named, or before the model was open.
    pub devices_why: String,
    /// When a batch fires.
    pub batching: Batching,
    /// Where the policy was set.
    pub policy_origin: Origin,
    /// The prefix cache; `None`: off.
    pub cache: Option<Cache>,
    /// Where devices cannot keep up, series of the task with the lowest number are shed first; 0 to
    /// 9.
    pub priority: u8,
    /// Least confidence of a label; `None`: as the bundle says.
    pub min_confidence: Option<f32>,
    /// Label to DSCP, by label. `Config::tag` repeats the first task's.
    pub dscp: Vec<Mapping<Dscp>>,
    /// Label to bits of the connection mark, by label. `Config::mark` repeats the first task's.
    pub mark: Vec<Mapping<u32>>,
    /// The bits that `mark` may write; no other task has them. 0 where `mark` is empty.
    pub mark_mask: u32,
    /// Whether its labels stand in records.
    pub records: bool,
}

impl Task {
    /// The names of its devices and, where the model decided, why: `native (default: native takes
    /// this model)`.
    pub fn shown_devices(&self) -> String {
        let mut names: Vec<&str> = self.devices.iter().map(|device| &*device.name).collect();
        names.dedup();
        match &*self.devices_why {
            "" => names.join(", "),
            why => format!("{} ({why})", names.join(", ")),
        }
    }

    /// What its labels ask for by `dscp`.
    pub fn dscp_rules(&self) -> Vec<LabelRule> {
        let table = format!("task.{}.dscp", self.name);
        self.dscp.iter().map(|row| row.dscp_rule(&table)).collect()
    }

    /// What its labels ask for by `mark`.
    pub fn mark_rules(&self) -> Vec<LabelRule> {
        let table = format!("task.{}.mark", self.name);
        let rows = self.mark.iter();
        rows.map(|row| row.mark_rule(self.mark_mask, &table)).collect()
    }
}

/// The terms of a task and of all tasks that it needs: where one of them is not asked, this one is
/// not asked either. The tasks wait for each other in no circle.
pub fn needed(tasks: &[Task], number: usize) -> Vec<Needed<'_>> {
    let mut reached = vec![number];
    let mut at = 0;
    while let Some(&number) = reached.get(at) {
        for &needed in tasks[number].when.tasks() {
            if !reached.contains(&needed) {
                reached.push(needed);
            }
        }
        at += 1;
    }
    let terms = reached.into_iter().flat_map(|task| {
        let terms = tasks[task].when.terms.iter();
        terms.map(move |term| Needed { task, term })
    });
    terms.collect()
}
