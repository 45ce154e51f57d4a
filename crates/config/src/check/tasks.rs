//! The tasks: what the sections say, and what a `[[task]]` says instead.

use crate::checked::{Analytics, BatchPolicy, Cache, DEFAULT_TASK, Device, RUNNABLE_TASKS, Task};
use crate::draft::{Draft, PolicyName, TaskDraft};
use crate::keys::{KeyId, TaskKey};
use crate::layers::Table;
use crate::layout::Layout;
use crate::setting::Setting;

use super::Reader;
use super::devices::{DeviceTables, Sharing};

/// The tasks in the order of their tables; one by default.
pub(super) fn tasks(
    read: &Reader<'_>,
    draft: &Draft,
    devices: &DeviceTables<'_>,
    problems: &mut Vec<String>,
) -> Vec<Task> {
    let tables = &read.settings.tasks;
    let one_by_default = tables.is_empty().then_some(None);
    let tables = tables.iter().map(Some).chain(one_by_default);
    let tasks: Vec<Task> = tables
        .map(|table| Source { read, table }.task(draft, devices, problems))
        .collect();
    if let Some(second) = read.settings.tasks.get(RUNNABLE_TASKS) {
        problems.push(format!(
            "{}: task.{}: several tasks are not supported yet; keep one [[task]]",
            second.origin, second.name
        ));
    }
    tasks
}

/// Where a task's values come from.
struct Source<'a> {
    read: &'a Reader<'a>,
    table: Option<&'a Table>,
}

impl Source<'_> {
    fn task(&self, draft: &Draft, devices: &DeviceTables<'_>, problems: &mut Vec<String>) -> Task {
        let name = self.table.map_or(DEFAULT_TASK, |table| &table.name);
        let mut own = TaskDraft {
            name: name.to_owned(),
            model: draft.model.path.clone(),
            devices: draft.accel.devices.clone(),
            batching: draft.batching.clone(),
            cache: draft.cache.clone(),
        };
        for &id in TaskKey::ALL {
            let Some(setting) = self.own(id) else {
                continue;
            };
            if let Err(why) = id.store(&mut own, setting) {
                let (origin, key) = (&setting.origin, id.key().name());
                problems.push(format!("{origin}: task.{name}.{key}: {why}"));
            }
        }
        self.check_cache(&own.cache, draft.flow.k, problems);
        let is_on = own.cache.prefix > 0 && own.cache.entries > 0;
        Task {
            devices: self.devices(&own.devices, draft, devices, problems),
            name: own.name,
            model: own.model,
            batching: Analytics {
                policy: match own.batching.policy {
                    PolicyName::CarryOver => BatchPolicy::CarryOver,
                    PolicyName::Timeout => BatchPolicy::Timeout,
                    PolicyName::None => BatchPolicy::None,
                    PolicyName::Slo => BatchPolicy::Slo {
                        latency_goal: own.batching.latency_goal,
                        delta: own.batching.slo_delta,
                    },
                },
                timeout: own.batching.timeout,
                phi: own.batching.phi,
                batch_sizes: own.batching.batch_sizes,
                max_wait: own.batching.max_wait,
            },
            cache: is_on.then_some(own.cache),
        }
    }

    /// What the table says of a key, unless a later layer overrides it in the section: `--set model.path=...` holds
    /// for a task whose table stands in a file.
    fn own(&self, id: TaskKey) -> Option<&Setting> {
        let own = self.table?.of_task(id)?;
        let section = section_key(id).map(|id| self.read.settings.setting(id));
        let is_outranked = section.is_some_and(|section| section.origin.rank() > own.origin.rank());
        (!is_outranked).then_some(own)
    }

    /// Path, value and origin of what holds for the task, for messages.
    fn named(&self, id: TaskKey, section: KeyId) -> String {
        match (self.table, self.own(id)) {
            (Some(table), Some(own)) => {
                let (name, key) = (&table.name, id.key().name());
                format!("task.{name}.{key} = {} ({})", own.value, own.origin)
            }
            _ => self.read.named(section),
        }
    }

    /// Whether a value was refused that plays a part in one of these.
    fn is_refused(&self, keys: &[KeyId]) -> bool {
        self.table.is_some_and(|table| table.refused)
            || keys
                .iter()
                .any(|id| self.read.settings.setting(*id).refused)
    }

    fn check_cache(&self, cache: &Cache, k: usize, problems: &mut Vec<String>) {
        let is_on = cache.prefix > 0 && cache.entries > 0;
        if is_on && cache.prefix > k && !self.is_refused(&[KeyId::CachePrefix, KeyId::FlowK]) {
            problems.push(format!(
                "{} with {}: impossible combination: the prefix is longer than the series",
                self.named(TaskKey::CachePrefix, KeyId::CachePrefix),
                self.read.named(KeyId::FlowK),
            ));
        }
    }

    /// One device for each of the layout's, as far as any are named.
    fn devices(
        &self,
        names: &[String],
        draft: &Draft,
        tables: &DeviceTables<'_>,
        problems: &mut Vec<String>,
    ) -> Vec<Device> {
        let layout = &draft.pipeline.layout;
        let sharing = Sharing {
            is_only_one: layout.devices <= layout.analytics_managers,
        };
        let mut devices = Vec::new();
        for name in names {
            match tables.find(name, draft, sharing) {
                Ok(device) => devices.push(device),
                Err(why) if why.is_empty() => {}
                Err(why) => problems.push(self.unknown_device(&why)),
            }
        }
        let is_refused = self.is_refused(&[KeyId::AccelDevices, KeyId::PipelineLayout]);
        // A text that is no layout was reported when it was stored, and 1:1:1 stands in its place.
        let layout_setting = self.read.settings.setting(KeyId::PipelineLayout);
        let has_layout = layout_setting
            .value
            .as_str()
            .and_then(Layout::parse)
            .is_some();
        if names.len() != 1 && names.len() != layout.devices && has_layout && !is_refused {
            problems.push(format!(
                "{} with {}: impossible combination: name one device for each of the layout's {}, or one for all",
                self.named(TaskKey::Devices, KeyId::AccelDevices),
                self.read.named(KeyId::PipelineLayout),
                layout.devices
            ));
        }
        match devices.as_slice() {
            [device] => vec![device.clone(); layout.devices],
            _ => devices,
        }
    }

    fn unknown_device(&self, why: &str) -> String {
        match (self.table, self.own(TaskKey::Devices)) {
            (Some(table), Some(own)) => {
                format!("{}: task.{}.devices: {why}", own.origin, table.name)
            }
            _ => {
                let id = KeyId::AccelDevices;
                let origin = &self.read.settings.setting(id).origin;
                format!("{origin}: {}: {why}", id.key().path)
            }
        }
    }
}

/// The key of a section that holds where a task leaves its own key out.
fn section_key(id: TaskKey) -> Option<KeyId> {
    match id {
        TaskKey::Name => None,
        TaskKey::Model => Some(KeyId::ModelPath),
        TaskKey::Devices => Some(KeyId::AccelDevices),
        TaskKey::Policy => Some(KeyId::AnalyticsPolicy),
        TaskKey::LatencyGoalMs => Some(KeyId::AnalyticsLatencyGoalMs),
        TaskKey::CachePrefix => Some(KeyId::CachePrefix),
        TaskKey::CacheEntries => Some(KeyId::CacheEntries),
    }
}
