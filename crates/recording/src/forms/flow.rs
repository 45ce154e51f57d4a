//! Types of the flow manager.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use cring::{Feature, Features, Unit};
use flowmgr::hash::HashKind;
use flowmgr::{
    Action, Actions, Asked, Bounds, DepthConfig, Direction, Effect, Inside, PortLabel, Target,
    TargetOf, TaskConfig, TaskId,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::features;

/// [`flowmgr::Config`], without the fields that differ between managers, or between a run and its
/// replay.
#[derive(Serialize, Deserialize)]
#[serde(remote = "flowmgr::Config")]
pub struct FlowConfigForm {
    #[serde(with = "tasks")]
    tasks: Vec<TaskConfig>,
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
    #[serde(skip)]
    samples: flowmgr::SeriesShare,
    #[serde(skip)]
    flow_id_first: u64,
    flow_id_step: u64,
    expects_counts: bool,
    #[serde(with = "behaviour")]
    behaviour: Option<Bounds>,
    servers: Option<usize>,
    // Records are not replayed.
    #[serde(skip)]
    measured: measure::Features,
}

/// Only live runs are recorded.
fn on_arrival() -> Effect {
    Effect::Arrival
}

list!(tasks, TaskConfig, "TaskConfigForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "TaskConfig")]
struct TaskConfigForm {
    #[serde(with = "UnitForm")]
    unit: Unit,
    #[serde(with = "feature_set")]
    features: Features,
    midstream: bool,
    classes: usize,
    #[serde(with = "depths")]
    depths: Vec<DepthConfig>,
    #[serde(with = "AskedForm")]
    asked: Asked,
    #[serde(with = "ports")]
    ports: Vec<PortLabel>,
    #[serde(with = "target")]
    target: Option<Target>,
}

list!(depths, DepthConfig, "DepthConfigForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "DepthConfig")]
struct DepthConfigForm {
    k: usize,
    sure: u16,
    contradicts: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Unit", rename_all = "snake_case")]
enum UnitForm {
    Packet,
    Data,
}

#[derive(Serialize, Deserialize)]
struct FeatureList(#[serde(with = "features")] Vec<Feature>);
written_as!(
    feature_set,
    Features as FeatureList,
    |features| FeatureList(features.iter().collect()),
    |list| list.0.into_iter().collect()
);

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
    #[serde(with = "task_ids")]
    after: Vec<TaskId>,
}

list!(task_ids, TaskId, "TaskIdForm");
#[derive(Serialize, Deserialize)]
#[serde(remote = "TaskId")]
struct TaskIdForm(u8);

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
    protocol: u8,
    port: u16,
    class: u16,
    precision: u16,
}

#[derive(Serialize, Deserialize)]
struct TargetItem(#[serde(with = "TargetForm")] Target);
written_as!(
    target,
    Option<Target> as Option<TargetItem>,
    |target| target.clone().map(TargetItem),
    |item| item.map(|item| item.0)
);
#[derive(Serialize, Deserialize)]
#[serde(remote = "Target")]
struct TargetForm {
    #[serde(with = "TargetOfForm")]
    of: TargetOf,
    edges: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "TargetOf")]
enum TargetOfForm {
    Volume,
    Duration,
    Rate,
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

/// The DSCP by task and class.
type DscpByTask = Vec<Vec<Option<u8>>>;
written_as!(dscp, Actions as DscpByTask, |actions| actions.dscp(), Actions::of_tasks);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Action")]
pub struct ActionForm {
    dscp: Option<u8>,
    drop: bool,
    mirror: bool,
}
