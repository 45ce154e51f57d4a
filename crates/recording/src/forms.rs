//! How types of other crates are written: their fields, as serde's derive needs them.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use accel::{DeviceError, Profile, Sizes};
use analytics::{Accelerator, After, CacheConfig, Need, Policy, Test};
use cring::{Context, Depth, Feature, Features, TaskWords, Unit};
use flowmgr::hash::HashKind;
use flowmgr::{Action, Actions, Asked, Bounds, Direction, Effect, Inside, PortLabel, SeriesTask};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// No device takes a batch of more rows.
const ROWS_MAX: usize = 1 << 20;

/// A module for serde's `with`: a field is written as another type, and read back from it.
macro_rules! written_as {
    ($module:ident, $type:ty as $form:ty, $write:expr, $read:expr) => {
        mod $module {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type) -> $form = $write;
                write(value).serialize(to)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let read: fn($form) -> $type = $read;
                <$form>::deserialize(from).map(read)
            }
        }
    };
}

/// The same for a list whose items have a form.
macro_rules! list {
    ($module:ident, $type:ty, $form:literal) => {
        mod $module {
            use super::*;

            #[derive(Serialize, Deserialize)]
            struct Item(#[serde(with = $form)] $type);

            pub fn serialize<S: Serializer>(list: &[$type], to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(list.iter().cloned().map(Item))
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<$type>, D::Error> {
                let items = Vec::<Item>::deserialize(from)?;
                Ok(items.into_iter().map(|item| item.0).collect())
            }
        }
    };
}

/// [`flowmgr::Config`], without the fields that differ between managers, or between a run and its replay.
#[derive(Serialize, Deserialize)]
#[serde(remote = "flowmgr::Config")]
pub struct FlowConfigForm {
    #[serde(with = "tasks")]
    tasks: Vec<SeriesTask>,
    #[serde(with = "asked")]
    asked: Vec<Asked>,
    #[serde(with = "InsideForm")]
    inside: Inside,
    #[serde(with = "FlowSettingsForm")]
    settings: flowmgr::Settings,
    #[serde(with = "HashForm")]
    hash: HashKind,
    max_flows: usize,
    buckets: usize,
    #[serde(skip, default = "on_arrival")]
    effect: Effect,
    #[serde(skip)]
    record_series: flowmgr::SeriesShare,
    #[serde(with = "ports")]
    ports: Vec<PortLabel>,
    #[serde(skip)]
    flow_id_first: u64,
    flow_id_step: u64,
    expects_counts: bool,
    #[serde(with = "behaviour")]
    behaviour: Option<Bounds>,
}

/// Only live runs are recorded.
fn on_arrival() -> Effect {
    Effect::Arrival
}

list!(tasks, SeriesTask, "SeriesTaskForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "SeriesTask")]
struct SeriesTaskForm {
    k: usize,
    #[serde(with = "UnitForm")]
    unit: Unit,
    #[serde(with = "feature_set")]
    features: Features,
    midstream: bool,
    classes: usize,
    sure: u16,
    contradicts: Option<u16>,
    is_deeper: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Unit", rename_all = "snake_case")]
enum UnitForm {
    Packet,
    Data,
}

list!(features, Feature, "FeatureForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Feature", rename_all = "snake_case")]
enum FeatureForm {
    SignedLength,
    PayloadLength,
    InterArrival,
    TcpFlags,
}

#[derive(Serialize, Deserialize)]
struct FeatureList(#[serde(with = "features")] Vec<Feature>);
written_as!(
    feature_set,
    Features as FeatureList,
    |features| FeatureList(features.iter().collect()),
    |list| list.0.into_iter().collect()
);

list!(asked, Asked, "AskedForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Asked")]
struct AskedForm {
    protocols: Vec<u8>,
    ports: Vec<RangeInclusive<u16>>,
    in_ports: Vec<u8>,
    #[serde(with = "directions")]
    directions: Vec<Direction>,
    sample: Option<u32>,
    by_rule: bool,
    after: Vec<u8>,
}

list!(directions, Direction, "DirectionForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Direction", rename_all = "snake_case")]
enum DirectionForm {
    Out,
    In,
    Inside,
    Outside,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Inside")]
struct InsideForm(Vec<(IpAddr, u8)>);

#[derive(Serialize, Deserialize)]
#[serde(remote = "HashKind", rename_all = "snake_case")]
enum HashForm {
    Keyed { seed: u64 },
    Fenxi,
}

list!(ports, PortLabel, "PortLabelForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "PortLabel")]
struct PortLabelForm {
    task: u8,
    protocol: u8,
    port: u16,
    class: u16,
    precision: u16,
}

#[derive(Serialize, Deserialize)]
struct BoundsItem(#[serde(with = "BoundsForm")] Bounds);
written_as!(
    behaviour,
    Option<Bounds> as Option<BoundsItem>,
    |bounds| bounds.map(BoundsItem),
    |item| item.map(|item| item.0)
);
#[derive(Serialize, Deserialize)]
#[serde(remote = "Bounds")]
struct BoundsForm {
    bulk_bytes: u32,
    small_bytes: u32,
    interactive_packets_max: u32,
    realtime_packets_min: u32,
    hold_s: u8,
    idle_s: u16,
}

/// [`flowmgr::Settings`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "flowmgr::Settings")]
pub struct FlowSettingsForm {
    idle_timeout_s: u16,
    closed_timeout_s: u16,
    half_open_timeout_s: u16,
    established_timeout_s: u16,
    active_timeout_s: u32,
    end_on_fin_rst: bool,
    #[serde(rename = "dscp", with = "dscp")]
    actions: Actions,
}

/// The DSCP by class of the first task, and of other tasks with their numbers.
type DscpByTask = (Vec<Option<u8>>, Vec<(u8, Vec<Option<u8>>)>);
written_as!(
    dscp,
    Actions as DscpByTask,
    |actions| {
        let others = actions.other_tasks().enumerate().map(|(place, task)| {
            let classes = 0..cring::CLASSES_MAX as u16;
            let by_class = classes.map(|class| actions.dscp_of_other(place, class));
            let mut by_class: Vec<_> = by_class.collect();
            let last = by_class.iter().rposition(Option::is_some);
            by_class.truncate(last.map_or(0, |last| last + 1));
            (task, by_class)
        });
        (actions.dscp_by_class(), others.collect())
    },
    |(first, others)| {
        let first = Actions::of_dscp(&first);
        others.iter().fold(first, |actions, (task, by_class)| {
            actions.and_dscp_of(*task, by_class)
        })
    }
);

/// [`Action`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Action")]
pub struct ActionForm {
    dscp: Option<u8>,
    drop: bool,
    mirror: bool,
}

/// The initial state of a task of an analytics manager.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskStart {
    pub config: TaskConfig,
    pub devices: Vec<DeviceFacts>,
}

/// What a task prepares for a swap.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskSwap {
    /// Another model's devices, and its generation.
    pub model: Option<(Vec<DeviceFacts>, u16)>,
    /// From this configuration to that.
    pub settings: Option<(TaskConfig, TaskConfig)>,
}

/// [`analytics::Config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskConfig(#[serde(with = "TaskConfigForm")] pub analytics::Config);

#[derive(Serialize, Deserialize)]
#[serde(remote = "analytics::Config")]
struct TaskConfigForm {
    k: usize,
    #[serde(with = "features")]
    features: Vec<Feature>,
    #[serde(with = "contexts")]
    context: Vec<Context>,
    #[serde(with = "PolicyForm")]
    policy: Policy,
    #[serde(with = "CacheForm")]
    cache: CacheConfig,
    probe: Vec<f32>,
    word: u8,
    priority: u8,
    #[serde(with = "AfterForm")]
    after: After,
}

list!(contexts, Context, "ContextForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Context")]
enum ContextForm {
    Protocol,
    ServerPort,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Policy")]
enum PolicyForm {
    None,
    Max,
    Timeout {
        timeout: Duration,
    },
    CarryOver {
        timeout: Duration,
        phi: f64,
        max_wait: Duration,
    },
    Slo {
        latency_goal: Duration,
        delta: f64,
    },
    OnOff {
        latency_goal: Duration,
        delta: f64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CacheConfig")]
struct CacheForm {
    prefix: usize,
    entries: usize,
    audit: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "After")]
struct AfterForm {
    #[serde(with = "needs")]
    needs: Vec<Need>,
}

list!(needs, Need, "NeedForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Need")]
struct NeedForm {
    #[serde(with = "TaskWordsForm")]
    words: TaskWords,
    #[serde(with = "TestForm")]
    test: Test,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TaskWords")]
struct TaskWordsForm {
    first: u8,
    #[serde(with = "depths")]
    depths: Vec<Depth>,
}

list!(depths, Depth, "DepthForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "Depth")]
struct DepthForm {
    sure: u16,
    classes: usize,
    contradicts: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Test")]
enum TestForm {
    Confidence(RangeInclusive<u16>),
    Class { is_wanted: Vec<bool>, without: bool },
}

/// The properties of a device that managers read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub requested: String,
    pub effective: String,
    #[serde(with = "SizesForm")]
    pub sizes: Sizes,
    /// Floats in a row of its input.
    pub row_len: usize,
    /// Floats in a row of its context.
    pub context: usize,
    /// T₀ and T₁, µs.
    pub profile: Option<(f64, f64)>,
    pub deadline: Option<Duration>,
    pub lane: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Sizes")]
enum SizesForm {
    Any { cap: usize },
    Fixed(Vec<usize>),
}

impl DeviceFacts {
    pub fn of(accelerator: &mut Accelerator) -> DeviceFacts {
        let device = accelerator.device.as_mut();
        let row_len = device.input(1).len();
        let context = device.context(1).len();
        let profile = accelerator.profile;
        DeviceFacts {
            requested: device.requested().to_owned(),
            effective: device.effective().to_owned(),
            sizes: device.sizes().clone(),
            row_len,
            context,
            profile: profile.map(|it| (it.t0_us, it.t1_us)),
            deadline: accelerator.deadline,
            lane: accelerator.lane,
        }
    }

    pub fn profile(&self) -> Option<Profile> {
        self.profile.map(|(t0_us, t1_us)| Profile { t0_us, t1_us })
    }

    /// Whether such a device can be: its input is allocated by these numbers.
    pub fn is_possible(&self) -> bool {
        (1..=ROWS_MAX).contains(&self.sizes.largest())
            && (1..=cring::K_MAX * Feature::ALL.len()).contains(&self.row_len)
            && self.context <= Context::ALL.len()
    }
}

/// [`DeviceError`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeviceFailure(#[serde(with = "DeviceErrorForm")] pub DeviceError);

#[derive(Serialize, Deserialize)]
#[serde(remote = "DeviceError")]
enum DeviceErrorForm {
    Busy {
        device: String,
    },
    Rows {
        device: String,
        rows: usize,
        #[serde(with = "SizesForm")]
        sizes: Sizes,
    },
    Run {
        device: String,
        rows: usize,
        cause: String,
    },
    Output {
        device: String,
        rows: usize,
        classes: usize,
        found: String,
    },
    NotAProbability {
        row: usize,
        class: usize,
        value: f32,
    },
    Gone {
        device: String,
        cause: String,
    },
}
