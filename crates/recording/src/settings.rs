//! Configurations as JSON: the fields of other crates' types. Names stand for features and units. Floats are texts, since
//! JSON readers do not promise to give back the same bits.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use accel::{DeviceError, Profile, Sizes};
use analytics::{Accelerator, CacheConfig, Policy};
use cring::{Context, Feature, Features, Unit};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, CLOSED_TIMEOUT_S, Effect, PortLabel, SeriesTask, TIMEOUT_S_MAX};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// No device takes a batch of more rows.
const ROWS_MAX: usize = 1 << 20;

/// [`flowmgr::Config`], without the fields that differ between managers, or between a run and its replay.
#[derive(Serialize, Deserialize)]
#[serde(remote = "flowmgr::Config")]
pub struct FlowConfigForm {
    #[serde(with = "tasks")]
    tasks: Vec<SeriesTask>,
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
    #[serde(skip)]
    flow_id_step: u64,
    expects_counts: bool,
    #[serde(with = "bounds")]
    behaviour: Option<flowmgr::Bounds>,
    /// Runs with a `when` are not recorded.
    #[serde(skip)]
    asked: Vec<flowmgr::Asked>,
    #[serde(skip)]
    inside: flowmgr::Inside,
}

/// Only live runs are recorded.
fn on_arrival() -> Effect {
    Effect::Arrival
}

mod bounds {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "flowmgr::Bounds")]
    struct BoundsForm {
        bulk_bytes: u32,
        small_bytes: u32,
        interactive_packets_max: u32,
        realtime_packets_min: u32,
        hold_s: u8,
        idle_s: u16,
    }

    #[derive(Serialize, Deserialize)]
    struct Form(#[serde(with = "BoundsForm")] flowmgr::Bounds);

    pub fn serialize<S: Serializer>(
        bounds: &Option<flowmgr::Bounds>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bounds.map(Form).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<flowmgr::Bounds>, D::Error> {
        Ok(Option::<Form>::deserialize(deserializer)?.map(|form| form.0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "HashKind", rename_all = "snake_case")]
enum HashForm {
    Keyed { seed: u64 },
    Fenxi,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SeriesTask")]
struct TaskForm {
    k: usize,
    #[serde(with = "units")]
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
#[serde(remote = "PortLabel")]
struct PortForm {
    task: u8,
    protocol: u8,
    port: u16,
    class: u16,
    precision: u16,
}

/// [`flowmgr::Settings`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowSettings(#[serde(with = "FlowSettingsForm")] pub flowmgr::Settings);

#[derive(Serialize, Deserialize)]
#[serde(remote = "flowmgr::Settings")]
struct FlowSettingsForm {
    idle_timeout_s: u16,
    closed_timeout_s: u16,
    half_open_timeout_s: u16,
    established_timeout_s: u16,
    active_timeout_s: u32,
    end_on_fin_rst: bool,
    #[serde(rename = "dscp", with = "dscp")]
    actions: Actions,
}

impl FlowSettings {
    /// Whether a manager of so many classes takes them: it does not check them itself.
    pub fn is_possible(&self, classes: usize) -> bool {
        self.0.idle_timeout_s <= TIMEOUT_S_MAX
            && CLOSED_TIMEOUT_S.contains(&self.0.closed_timeout_s)
            && self.0.actions.classes() == classes
    }
}

/// The initial state of an analytics manager.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SeriesStart {
    pub config: SeriesConfig,
    pub devices: Vec<DeviceFacts>,
}

/// [`analytics::Config`] of the first task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesConfig(#[serde(with = "SeriesConfigForm")] pub analytics::Config);

#[derive(Serialize, Deserialize)]
#[serde(remote = "analytics::Config")]
struct SeriesConfigForm {
    k: usize,
    #[serde(with = "features")]
    features: Vec<Feature>,
    #[serde(with = "contexts")]
    context: Vec<Context>,
    #[serde(with = "PolicyForm")]
    policy: Policy,
    #[serde(with = "CacheForm")]
    cache: CacheConfig,
    #[serde(with = "exact_list")]
    probe: Vec<f32>,
    /// Runs of several tasks are not recorded.
    #[serde(skip)]
    word: u8,
    #[serde(skip)]
    priority: u8,
    #[serde(skip)]
    after: analytics::After,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Policy", rename_all = "snake_case")]
enum PolicyForm {
    None,
    Timeout {
        timeout: Duration,
    },
    CarryOver {
        timeout: Duration,
        #[serde(with = "exact")]
        phi: f64,
        max_wait: Duration,
    },
    Slo {
        latency_goal: Duration,
        #[serde(with = "exact")]
        delta: f64,
    },
    Max,
    OnOff {
        latency_goal: Duration,
        #[serde(with = "exact")]
        delta: f64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CacheConfig")]
struct CacheForm {
    prefix: usize,
    entries: usize,
    #[serde(with = "exact")]
    audit: f64,
}

impl SeriesConfig {
    /// For a manager whose devices were never open, so that its configuration was not recorded.
    pub fn unknown(k: usize) -> SeriesConfig {
        SeriesConfig(analytics::Config {
            k,
            features: vec![Feature::SignedLength],
            context: Vec::new(),
            policy: Policy::None,
            cache: CacheConfig {
                prefix: 0,
                entries: 0,
                audit: 0.0,
            },
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: analytics::After::default(),
        })
    }
}

/// What an analytics manager prepares for a swap.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SwapForm {
    /// Another model's devices, and its generation.
    pub model: Option<(Vec<DeviceFacts>, u16)>,
    /// From this configuration to that.
    pub settings: Option<(SeriesConfig, SeriesConfig)>,
}

/// The properties of a device that managers read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    profile: Option<(Exact<f64>, Exact<f64>)>,
    pub deadline: Option<Duration>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Sizes", rename_all = "snake_case")]
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
            profile: profile.map(|it| (Exact(it.t0_us), Exact(it.t1_us))),
            deadline: accelerator.deadline,
        }
    }

    /// For a device that was never open.
    pub fn unknown(k: usize) -> DeviceFacts {
        DeviceFacts {
            requested: "none".to_owned(),
            effective: "none".to_owned(),
            sizes: Sizes::Any { cap: 1 },
            row_len: k,
            context: 0,
            profile: None,
            deadline: None,
        }
    }

    pub fn profile(&self) -> Option<Profile> {
        self.profile.map(|(t0, t1)| Profile {
            t0_us: t0.0,
            t1_us: t1.0,
        })
    }

    /// Whether such a device can be: its input is allocated by these numbers.
    pub fn is_possible(&self) -> bool {
        (1..=ROWS_MAX).contains(&self.sizes.largest())
            && (1..=cring::K_MAX * Feature::ALL.len()).contains(&self.row_len)
            && self.context <= Context::ALL.len()
    }
}

/// [`DeviceError`], as it is read.
#[derive(Deserialize)]
pub struct ReadError(#[serde(with = "DeviceErrorForm")] pub DeviceError);

/// The same, as it is written.
#[derive(Serialize)]
pub struct WrittenError<'a>(#[serde(with = "DeviceErrorForm")] pub &'a DeviceError);

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
        #[serde(with = "exact32")]
        value: f32,
    },
    Gone {
        device: String,
        cause: String,
    },
}

/// A float whose text gives back the same bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact<T>(pub T);

impl<T: Display> Serialize for Exact<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Exact<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Exact<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Exact).map_err(D::Error::custom)
    }
}

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
                let read: fn($form) -> Result<$type, String> = $read;
                read(<$form>::deserialize(from)?).map_err(D::Error::custom)
            }
        }
    };
}

written_as!(exact, f64 as Exact<f64>, |value| Exact(*value), |it| Ok(
    it.0
));
written_as!(exact32, f32 as Exact<f32>, |value| Exact(*value), |it| Ok(
    it.0
));
written_as!(
    exact_list,
    Vec<f32> as Vec<Exact<f32>>,
    |values| values.iter().copied().map(Exact).collect(),
    |list| Ok(list.into_iter().map(|it| it.0).collect())
);
written_as!(
    dscp,
    Actions as Vec<Option<u8>>,
    Actions::dscp_by_class,
    |by_class| match by_class.iter().flatten().find(|&&dscp| dscp > 63) {
        Some(dscp) => Err(format!("dscp {dscp} is out of range: 0 to 63")),
        None => Ok(Actions::of_dscp(&by_class)),
    }
);
written_as!(
    units,
    Unit as String,
    |unit| unit.name().to_owned(),
    |name| by_name(&Unit::ALL, Unit::name, &name)
);
written_as!(
    features,
    Vec<Feature> as Vec<String>,
    |features| features.iter().map(|it| it.name().to_owned()).collect(),
    |names| {
        let feature = |name: &String| by_name(&Feature::ALL, Feature::name, name);
        names.iter().map(feature).collect()
    }
);
written_as!(
    contexts,
    Vec<Context> as Vec<String>,
    |context| context.iter().map(|it| it.name().to_owned()).collect(),
    |names| {
        let context = |name: &String| by_name(&Context::ALL, Context::name, name);
        names.iter().map(context).collect()
    }
);
written_as!(
    ports,
    Vec<PortLabel> as Vec<Port>,
    |ports| ports.iter().copied().map(Port).collect(),
    |list| Ok(list.into_iter().map(|port| port.0).collect())
);
written_as!(
    feature_set,
    Features as FeatureList,
    |features| FeatureList(features.iter().collect()),
    |list| Ok(list.0.into_iter().collect())
);
written_as!(
    tasks,
    Vec<SeriesTask> as Vec<Task>,
    |tasks| tasks.iter().copied().map(Task).collect(),
    |list| Ok(list.into_iter().map(|task| task.0).collect())
);

#[derive(Serialize, Deserialize)]
struct FeatureList(#[serde(with = "features")] Vec<Feature>);

#[derive(Serialize, Deserialize)]
struct Task(#[serde(with = "TaskForm")] SeriesTask);

#[derive(Serialize, Deserialize)]
struct Port(#[serde(with = "PortForm")] PortLabel);

fn by_name<T: Copy>(all: &[T], name_of: fn(T) -> &'static str, name: &str) -> Result<T, String> {
    let found = all.iter().copied().find(|&it| name_of(it) == name);
    found.ok_or_else(|| format!("{name}: there is no such name"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_float_comes_back_with_the_same_bits(value in any::<f64>(), small in any::<f32>()) {
            let text = serde_json::to_string(&(Exact(value), Exact(small))).unwrap();
            let (back, small_back): (Exact<f64>, Exact<f32>) = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.0.to_bits(), value.to_bits());
            prop_assert_eq!(small_back.0.to_bits(), small.to_bits());
        }
    }
}
