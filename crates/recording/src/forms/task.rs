//! Types of a task of an analytics manager, and of its devices.

use std::ops::RangeInclusive;
use std::time::Duration;

use accel::{DeviceError, Profile, Sizes};
use analytics::{Accelerator, After, CacheConfig, Coming, Need, Policy, Test};
use cring::{Context, Depth, Feature, TaskWords};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::features;

/// No device takes a batch of more rows.
const ROWS_MAX: usize = 1 << 20;

/// The initial state of a task of an analytics manager.
#[derive(Debug, Serialize, Deserialize)]
pub struct TaskStart {
    pub config: TaskConfig,
    pub devices: Vec<DeviceFacts>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct TaskSwap {
    pub model: Option<ModelSwap>,
    /// From this configuration to that.
    pub settings: Option<(TaskConfig, TaskConfig)>,
}

/// Another model.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelSwap {
    pub devices: Vec<DeviceFacts>,
    pub generation: u16,
    #[serde(with = "ComingForm")]
    pub coming: Coming,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Coming")]
enum ComingForm {
    Replaces,
    Canary,
    Promoted,
    Withdrawn,
}

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
    ServerVolume,
    ServerLogVolume,
    ServerDuration,
    ServerFlows,
    ServerGap,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Policy")]
enum PolicyForm {
    None,
    Max,
    Timeout { timeout: Duration },
    CarryOver { timeout: Duration, phi: f64, max_wait: Duration },
    Slo { latency_goal: Duration, delta: f64 },
    OnOff { latency_goal: Duration, delta: f64 },
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
    pub executor: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Sizes")]
enum SizesForm {
    Any { cap: usize },
    Fixed(Vec<usize>),
}

impl DeviceFacts {
    pub fn new(accelerator: &mut Accelerator) -> DeviceFacts {
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
            executor: accelerator.executor,
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
