//! What managers and devices are given, in a form that can be written down. Floats are texts, since JSON readers do not
//! promise to give back the same bits.

use std::time::Duration;

use accel::{Profile, Sizes};
use analytics::{Accelerator, CacheConfig, Policy, Settings};
use cring::{Feature, Unit};
use flowmgr::hash::HashKind;
use flowmgr::{Actions, SeriesTask};
use serde::{Deserialize, Serialize};

/// More rows in a batch are none that a device has.
const ROWS_MAX: usize = 1 << 20;

/// A flow manager's configuration, but for what differs between the managers of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowConfig {
    k: usize,
    #[serde(default)]
    data: bool,
    #[serde(default = "lengths")]
    features: Vec<String>,
    hash: HashForm,
    max_flows: usize,
    buckets: usize,
    midstream: bool,
    settings: FlowSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HashForm {
    Keyed { seed: u64 },
    Fenxi,
}

/// What is collected where a recording does not say it.
fn lengths() -> Vec<String> {
    vec![Feature::SignedLength.name().to_owned()]
}

fn names(features: impl IntoIterator<Item = Feature>) -> Vec<String> {
    let names = features.into_iter().map(Feature::name);
    names.map(str::to_owned).collect()
}

/// Features by their names; a name that is none says nothing.
fn by_name(names: &[String]) -> impl Iterator<Item = Feature> {
    let known = |name: &String| Feature::ALL.into_iter().find(|it| it.name() == name);
    names.iter().filter_map(known)
}

/// [`flowmgr::Settings`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowSettings {
    idle_timeout_s: u16,
    closed_timeout_s: u16,
    half_open_timeout_s: u16,
    established_timeout_s: u16,
    active_timeout_s: u32,
    end_on_fin_rst: bool,
    dscp: Vec<Option<u8>>,
}

impl FlowConfig {
    /// For all flow managers of a run.
    pub fn of(config: &flowmgr::Config) -> FlowConfig {
        let task = config.tasks[0];
        FlowConfig {
            k: task.k,
            data: task.unit == Unit::Data,
            features: names(task.features.iter()),
            hash: match config.hash {
                HashKind::Keyed { seed } => HashForm::Keyed { seed },
                HashKind::Fenxi => HashForm::Fenxi,
            },
            max_flows: config.max_flows,
            buckets: config.buckets,
            midstream: task.midstream,
            settings: FlowSettings {
                idle_timeout_s: config.idle_timeout_s,
                closed_timeout_s: config.closed_timeout_s,
                half_open_timeout_s: config.half_open_timeout_s,
                established_timeout_s: config.established_timeout_s,
                active_timeout_s: config.active_timeout_s,
                end_on_fin_rst: config.end_on_fin_rst,
                dscp: config.actions.dscp_by_class(),
            },
        }
    }

    /// For the flow manager `number` of `managers`.
    pub fn config(&self, number: usize, managers: usize, record_series: bool) -> flowmgr::Config {
        let settings = &self.settings;
        flowmgr::Config {
            tasks: vec![self.task()],
            idle_timeout_s: settings.idle_timeout_s,
            closed_timeout_s: settings.closed_timeout_s,
            half_open_timeout_s: settings.half_open_timeout_s,
            established_timeout_s: settings.established_timeout_s,
            active_timeout_s: settings.active_timeout_s,
            end_on_fin_rst: settings.end_on_fin_rst,
            hash: match self.hash {
                HashForm::Keyed { seed } => HashKind::Keyed { seed },
                HashForm::Fenxi => HashKind::Fenxi,
            },
            max_flows: self.max_flows,
            buckets: self.buckets,
            effect: flowmgr::Effect::Arrival,
            actions: Actions::of_dscp(&settings.dscp),
            record_series,
            flow_id_first: number as u64,
            flow_id_step: managers as u64,
        }
    }

    fn task(&self) -> SeriesTask {
        SeriesTask {
            k: self.k,
            unit: if self.data { Unit::Data } else { Unit::Packet },
            features: by_name(&self.features).collect(),
            midstream: self.midstream,
            classes: self.settings.dscp.len(),
        }
    }

    /// Whether its settings can be, for so many classes; all else the manager checks itself.
    pub fn is_possible(&self, classes: usize) -> bool {
        self.settings.is_possible(classes)
    }

    /// Packets in a series.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Flows, buckets and task, by which the table takes its memory.
    pub fn table(&self) -> (usize, usize, SeriesTask) {
        (self.max_flows, self.buckets, self.task())
    }
}

impl FlowSettings {
    pub fn of(settings: &flowmgr::Settings) -> FlowSettings {
        FlowSettings {
            idle_timeout_s: settings.idle_timeout_s,
            closed_timeout_s: settings.closed_timeout_s,
            half_open_timeout_s: settings.half_open_timeout_s,
            established_timeout_s: settings.established_timeout_s,
            active_timeout_s: settings.active_timeout_s,
            end_on_fin_rst: settings.end_on_fin_rst,
            dscp: settings.actions.dscp_by_class(),
        }
    }

    /// Whether a configuration can say so, for so many classes.
    pub fn is_possible(&self, classes: usize) -> bool {
        self.idle_timeout_s <= 32_000
            && (1..=300).contains(&self.closed_timeout_s)
            && self.dscp.len() == classes
            && self.dscp.iter().flatten().all(|dscp| *dscp < 64)
    }

    pub fn settings(&self) -> flowmgr::Settings {
        flowmgr::Settings {
            idle_timeout_s: self.idle_timeout_s,
            closed_timeout_s: self.closed_timeout_s,
            half_open_timeout_s: self.half_open_timeout_s,
            established_timeout_s: self.established_timeout_s,
            active_timeout_s: self.active_timeout_s,
            end_on_fin_rst: self.end_on_fin_rst,
            actions: Actions::of_dscp(&self.dscp),
        }
    }
}

/// What an analytics manager begins with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesStart {
    pub config: SeriesConfig,
    pub devices: Vec<DeviceFacts>,
}

/// [`analytics::Config`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesConfig {
    k: usize,
    #[serde(default = "lengths")]
    features: Vec<String>,
    policy: PolicyForm,
    prefix: usize,
    entries: usize,
    audit: Exact,
    probe: Vec<Exact32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyForm {
    None,
    Timeout {
        timeout: Duration,
    },
    CarryOver {
        timeout: Duration,
        phi: Exact,
        max_wait: Duration,
    },
    Slo {
        latency_goal: Duration,
        delta: Exact,
    },
}

impl SeriesConfig {
    pub fn of(config: &analytics::Config) -> SeriesConfig {
        let CacheConfig {
            prefix,
            entries,
            audit,
        } = config.cache;
        SeriesConfig {
            k: config.k,
            features: names(config.features.iter().copied()),
            policy: match config.policy {
                Policy::None => PolicyForm::None,
                Policy::Timeout { timeout } => PolicyForm::Timeout { timeout },
                Policy::CarryOver {
                    timeout,
                    phi,
                    max_wait,
                } => PolicyForm::CarryOver {
                    timeout,
                    phi: Exact(phi),
                    max_wait,
                },
                Policy::Slo {
                    latency_goal,
                    delta,
                } => PolicyForm::Slo {
                    latency_goal,
                    delta: Exact(delta),
                },
            },
            prefix,
            entries,
            audit: Exact(audit),
            probe: config.probe.iter().copied().map(Exact32).collect(),
        }
    }

    pub fn config(&self) -> analytics::Config {
        analytics::Config {
            task: 0,
            k: self.k,
            features: by_name(&self.features).collect(),
            policy: match self.policy {
                PolicyForm::None => Policy::None,
                PolicyForm::Timeout { timeout } => Policy::Timeout { timeout },
                PolicyForm::CarryOver {
                    timeout,
                    phi: Exact(phi),
                    max_wait,
                } => Policy::CarryOver {
                    timeout,
                    phi,
                    max_wait,
                },
                PolicyForm::Slo {
                    latency_goal,
                    delta: Exact(delta),
                } => Policy::Slo {
                    latency_goal,
                    delta,
                },
            },
            cache: CacheConfig {
                prefix: self.prefix,
                entries: self.entries,
                audit: self.audit.0,
            },
            probe: self.probe.iter().map(|value| value.0).collect(),
        }
    }

    /// For a manager that nothing is known of, since its devices never were open.
    pub fn unknown(k: usize) -> SeriesConfig {
        SeriesConfig {
            k,
            features: lengths(),
            policy: PolicyForm::None,
            prefix: 0,
            entries: 0,
            audit: Exact(0.0),
            probe: Vec::new(),
        }
    }
}

/// What an analytics manager is to change to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Another model's devices, and its generation.
    pub model: Option<(Vec<DeviceFacts>, u16)>,
    /// From this configuration to that.
    pub settings: Option<(SeriesConfig, SeriesConfig)>,
}

impl Offer {
    /// The settings, as the exchange makes them.
    ///
    /// # Errors
    /// Settings that are impossible in themselves.
    pub fn change(&self) -> Result<Option<Settings>, analytics::ConfigError> {
        let settings = self.settings.as_ref();
        settings
            .map(|(old, new)| Settings::change(&old.config(), &new.config()))
            .transpose()
    }
}

/// What managers ask of a device, beside its answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub requested: String,
    pub effective: String,
    pub sizes: SizesForm,
    /// Floats in a row of its input.
    pub row_len: usize,
    /// T₀ and T₁, µs.
    profile: Option<(Exact, Exact)>,
    deadline: Option<Duration>,
}

/// [`Sizes`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizesForm {
    Any { cap: usize },
    Fixed(Vec<usize>),
}

impl From<&Sizes> for SizesForm {
    fn from(sizes: &Sizes) -> SizesForm {
        match sizes {
            Sizes::Any { cap } => SizesForm::Any { cap: *cap },
            Sizes::Fixed(sizes) => SizesForm::Fixed(sizes.clone()),
        }
    }
}

impl From<SizesForm> for Sizes {
    fn from(sizes: SizesForm) -> Sizes {
        match sizes {
            SizesForm::Any { cap } => Sizes::Any { cap },
            SizesForm::Fixed(sizes) => Sizes::Fixed(sizes),
        }
    }
}

impl DeviceFacts {
    pub fn of(accelerator: &mut Accelerator) -> DeviceFacts {
        let device = accelerator.device.as_mut();
        let row_len = device.input(1).len();
        let profile = accelerator.profile;
        DeviceFacts {
            requested: device.requested().to_owned(),
            effective: device.effective().to_owned(),
            sizes: device.sizes().into(),
            row_len,
            profile: profile.map(|it| (Exact(it.t0_us), Exact(it.t1_us))),
            deadline: accelerator.deadline,
        }
    }

    /// Where nothing is known.
    pub fn unknown(k: usize) -> DeviceFacts {
        DeviceFacts {
            requested: "none".to_owned(),
            effective: "none".to_owned(),
            sizes: SizesForm::Any { cap: 1 },
            row_len: k,
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

    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether such a device can be: its input is allocated by these numbers.
    pub fn is_possible(&self) -> bool {
        let rows = Sizes::from(self.sizes.clone()).largest();
        (1..=ROWS_MAX).contains(&rows)
            && (1..=cring::K_MAX * Feature::ALL.len()).contains(&self.row_len)
    }
}

/// A float whose text gives back the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Exact(pub f64);

/// The same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Exact32(pub f32);

impl From<Exact> for String {
    fn from(value: Exact) -> String {
        value.0.to_string()
    }
}

impl From<Exact32> for String {
    fn from(value: Exact32) -> String {
        value.0.to_string()
    }
}

impl TryFrom<String> for Exact {
    type Error = std::num::ParseFloatError;

    fn try_from(text: String) -> Result<Exact, Self::Error> {
        text.parse().map(Exact)
    }
}

impl TryFrom<String> for Exact32 {
    type Error = std::num::ParseFloatError;

    fn try_from(text: String) -> Result<Exact32, Self::Error> {
        text.parse().map(Exact32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_float_comes_back_with_the_same_bits(value in any::<f64>(), small in any::<f32>()) {
            let text = serde_json::to_string(&(Exact(value), Exact32(small))).unwrap();
            let (back, small_back): (Exact, Exact32) = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.0.to_bits(), value.to_bits());
            prop_assert_eq!(small_back.0.to_bits(), small.to_bits());
        }
    }
}
