//! The tasks: what the sections say, and what a `[[task]]` says instead.

use crate::checked::{BatchPolicy, DEFAULT_TASK, Device, MAX_TASKS, MarkAs, Task};
use crate::draft::{Draft, LabelsDraft, TaskDraft};
use crate::keys::{GOAL_KEYS, KeyId, TaskKey};
use crate::layers::Table;
use crate::layout::Layout;
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::setting::Setting;
use crate::when::{Term, When, shortened};

use super::Reader;
use super::devices::{DeviceTables, Use};

mod graph;

/// The default of `task.NAME.priority`.
const PRIORITY: u8 = 5;

/// What the tables say over the sections, in their order; one by default.
pub(super) fn read<'a>(
    read: &'a Reader<'a>,
    draft: &Draft,
    problems: &mut Vec<String>,
) -> Vec<Asked<'a>> {
    let tables = &read.settings.tasks;
    let one_by_default = tables.is_empty().then_some(None);
    let tables = tables.iter().map(Some).chain(one_by_default);
    let asked = tables.enumerate().map(|(at, table)| {
        let is_first = at == 0;
        let source = Source {
            read,
            table,
            is_first,
        };
        Asked {
            draft: source.draft(draft, problems),
            source,
        }
    });
    let asked: Vec<_> = asked.collect();
    if let Some(table) = read.settings.tasks.get(MAX_TASKS) {
        problems.push(format!(
            "{}: task.{}: expected {MAX_TASKS} tasks at most; leave some out",
            table.origin, table.name
        ));
    }
    asked
}

/// The tasks, checked one by one and against each other.
pub(super) fn checked(
    asked: Vec<Asked<'_>>,
    draft: &Draft,
    devices: &DeviceTables<'_>,
    problems: &mut Vec<String>,
) -> Vec<Task> {
    let whens = graph::resolve(&asked, problems);
    let tasks = asked.into_iter().zip(whens);
    let mut tasks: Vec<Task> = tasks
        .map(|(task, when)| task.checked(when, draft, devices, problems))
        .collect();
    graph::check(&tasks, problems);
    check_policies(&tasks, problems);
    number_devices(&mut tasks);
    tasks
}

/// One controller plans for all tasks, so their goals are kept in one way.
fn check_policies(tasks: &[Task], problems: &mut Vec<String>) {
    let first =
        |is_it: fn(&BatchPolicy) -> bool| tasks.iter().find(|it| is_it(&it.batching.policy));
    let slo = first(|policy| matches!(policy, BatchPolicy::Slo { .. }));
    let on_off = first(|policy| matches!(policy, BatchPolicy::OnOff { .. }));
    if let (Some(slo), Some(on_off)) = (slo, on_off) {
        problems.push(format!(
            "{}: task.{}: impossible combination: its policy is \"on-off\", and that of task {} is \"slo\"; give both the same",
            on_off.origin, on_off.name, slo.name
        ));
    }
}

/// Devices of one name are the same device, whichever task names them.
fn number_devices(tasks: &mut [Task]) {
    let mut names: Vec<String> = Vec::new();
    for device in tasks.iter_mut().flat_map(|task| &mut task.devices) {
        let known = names.iter().position(|name| *name == device.name);
        device.number = known.unwrap_or(names.len()) as u8;
        if known.is_none() {
            names.push(device.name.clone());
        }
    }
}

/// A task as it is read.
pub(super) struct Asked<'a> {
    /// Its values.
    pub draft: TaskDraft,
    source: Source<'a>,
}

/// Where a task's values come from.
struct Source<'a> {
    read: &'a Reader<'a>,
    table: Option<&'a Table>,
    /// The sections describe the labels of the first task.
    is_first: bool,
}

impl Source<'_> {
    /// The table's values over those of the sections.
    fn draft(&self, draft: &Draft, problems: &mut Vec<String>) -> TaskDraft {
        let name = self.table.map_or(DEFAULT_TASK, |table| &table.name);
        let of_first = LabelsDraft {
            min_confidence: draft.model.min_confidence,
            dscp: draft.tag.dscp.clone(),
            mark: draft.mark.class.clone(),
            mark_mask: draft.mark.mask,
        };
        let mut own = TaskDraft {
            name: name.to_owned(),
            model: draft.model.path.clone(),
            depths: Vec::new(),
            when: When::default(),
            devices: draft.accel.devices.clone(),
            batching: draft.batching.clone(),
            cache: draft.cache.clone(),
            priority: PRIORITY,
            labels: if self.is_first {
                of_first
            } else {
                LabelsDraft::default()
            },
            records: true,
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
        own
    }

    fn own(&self, id: TaskKey) -> Option<&Setting> {
        self.read.settings.of_task(self.table?, self.is_first, id)
    }
}

impl<'a> Asked<'a> {
    /// What the table says of a key, unless a later layer overrides it in the section.
    pub(super) fn own(&self, id: TaskKey) -> Option<&Setting> {
        self.source.own(id)
    }

    /// The settings, and how messages name them.
    pub(super) fn read(&self) -> &'a Reader<'a> {
        self.source.read
    }

    /// The key that holds for the task: its own, or that of the section.
    pub(super) fn path(&self, id: TaskKey, section: KeyId) -> String {
        match self.own(id) {
            Some(_) => format!("task.{}.{}", self.draft.name, id.key().name()),
            None => section.key().path.to_owned(),
        }
    }

    /// Where the key was set that holds for the task.
    pub(super) fn origin(&self, id: TaskKey, section: KeyId) -> &Origin {
        match self.own(id) {
            Some(own) => &own.origin,
            None => &self.read().settings.setting(section).origin,
        }
    }

    /// Where the task was first named.
    fn named_at(&self) -> &Origin {
        self.source
            .table
            .map_or(&Origin::BuiltIn, |table| &table.origin)
    }

    /// Path, value and origin of what holds for the task, for messages.
    fn named(&self, id: TaskKey, section: KeyId) -> String {
        match self.own(id) {
            Some(own) => format!(
                "{} = {} ({})",
                self.path(id, section),
                own.value,
                own.origin
            ),
            None => self.read().named(section),
        }
    }

    /// Whether a value was refused that plays a part in one of these.
    pub(super) fn is_refused(&self, keys: &[KeyId]) -> bool {
        let is_refused = |id: &KeyId| self.read().settings.setting(*id).refused;
        self.source.table.is_some_and(|table| table.refused) || keys.iter().any(is_refused)
    }

    /// The bits that its labels may write.
    pub(super) fn mark_mask(&self) -> u32 {
        let labels = &self.draft.labels;
        match (labels.mark.is_empty(), labels.mark_mask) {
            (true, _) => 0,
            (false, 0) => labels.mark.iter().fold(0, |mask, row| mask | row.mark),
            (false, mask) => mask,
        }
    }

    /// What the first task says of its labels goes over the sections.
    pub(super) fn over_sections(&self, draft: &mut Draft) {
        let labels = &self.draft.labels;
        draft.model.min_confidence = labels.min_confidence;
        draft.tag.dscp = labels.dscp.clone();
        draft.mark.class = labels.mark.clone();
        draft.mark.mask = labels.mark_mask;
    }

    fn checked(
        self,
        when: When,
        draft: &Draft,
        devices: &DeviceTables<'_>,
        problems: &mut Vec<String>,
    ) -> Task {
        self.check_cache(draft.flow.k, problems);
        self.check_batching(problems);
        self.check_goal(problems);
        self.check_in_ports(&draft.io.interfaces, problems);
        let devices = self.devices(draft, devices, problems);
        let is_dscp = self.source.is_first && draft.mark.holds == MarkAs::Dscp;
        let mark_mask = match is_dscp {
            true => draft.mark.mask,
            false => self.mark_mask(),
        };
        let when_origin = self.when_origin().clone();
        let policy_origin = self.origin(TaskKey::Policy, KeyId::AnalyticsPolicy).clone();
        let model_origin = self.origin(TaskKey::Model, KeyId::ModelPath).clone();
        let depths = self.own(TaskKey::Depths);
        let depths_origin = depths.map_or(self.named_at(), |own| &own.origin).clone();
        let origin = self.named_at().clone();
        let own = self.draft;
        let is_on = own.cache.prefix > 0 && own.cache.entries > 0;
        Task {
            name: own.name,
            origin,
            model: own.model,
            model_origin,
            depths: own.depths,
            depths_origin,
            when,
            when_origin,
            devices,
            batching: own.batching.checked(),
            policy_origin,
            cache: is_on.then_some(own.cache),
            priority: own.priority,
            min_confidence: own.labels.min_confidence,
            dscp: own.labels.dscp,
            mark: match is_dscp {
                true => draft.mark.class.clone(),
                false => own.labels.mark,
            },
            mark_mask,
            records: own.records,
        }
    }

    fn check_cache(&self, k: usize, problems: &mut Vec<String>) {
        let cache = &self.draft.cache;
        let is_on = cache.prefix > 0 && cache.entries > 0;
        if is_on && cache.prefix > k && !self.is_refused(&[KeyId::CachePrefix, KeyId::FlowK]) {
            let line = format!(
                "{} with {}: impossible combination: the prefix is longer than the series",
                self.named(TaskKey::CachePrefix, KeyId::CachePrefix),
                self.read().named(KeyId::FlowK),
            );
            report(problems, line);
        }
    }

    fn check_batching(&self, problems: &mut Vec<String>) {
        let batching = &self.draft.batching;
        let sizes = [KeyId::AnalyticsBatchSizes];
        if !batching.batch_sizes.is_sorted_by(|a, b| a < b) && !self.is_refused(&sizes) {
            let line = format!(
                "{}: batch sizes must ascend, each of them named once",
                self.named(TaskKey::BatchSizes, KeyId::AnalyticsBatchSizes)
            );
            report(problems, line);
        }
        let times = [KeyId::AnalyticsMaxWaitMs, KeyId::AnalyticsTimeoutMs];
        if batching.max_wait < batching.timeout && !self.is_refused(&times) {
            let line = format!(
                "{} with {}: impossible combination: the longest wait is shorter than the timeout",
                self.named(TaskKey::MaxWaitMs, KeyId::AnalyticsMaxWaitMs),
                self.named(TaskKey::TimeoutMs, KeyId::AnalyticsTimeoutMs),
            );
            report(problems, line);
        }
    }

    /// A goal of the task's own that its policy does not plan for. A later layer may choose another policy for a comparison, as
    /// `--set analytics.policy=max` does for a file with goals.
    fn check_goal(&self, problems: &mut Vec<String>) {
        let Source { table, read, .. } = self.source;
        let policy = table.and_then(|table| {
            let settings = read.settings;
            settings.policy_without_goal(table, self.source.is_first)
        });
        let Some(policy) = policy else {
            return;
        };
        for id in GOAL_KEYS {
            let Some(own) = self.own(id) else {
                continue;
            };
            if policy.origin.rank() <= own.origin.rank() {
                let (origin, name, key) = (&own.origin, &self.draft.name, id.key().name());
                problems.push(format!(
                    "{origin}: task.{name}.{key}: no effect: {} plans for no goal; set task.{name}.policy = \"slo\", or leave {key} out",
                    self.named(TaskKey::Policy, KeyId::AnalyticsPolicy)
                ));
            }
        }
    }

    /// Interfaces by name, where these are known; a replay needs none.
    fn check_in_ports(&self, interfaces: &[String], problems: &mut Vec<String>) {
        let in_ports = self.draft.when.terms.iter();
        let in_ports = in_ports.filter_map(|term| match term {
            Term::InPort(names) => Some((term, names)),
            _ => None,
        });
        for (term, names) in in_ports {
            let unknown = names.iter().find(|name| !interfaces.contains(name));
            let Some(unknown) = unknown.filter(|_| !interfaces.is_empty()) else {
                continue;
            };
            let near = nearest(unknown, interfaces.iter().map(String::as_str));
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            problems.push(format!(
                "{}: task.{}.when: {}: there is no interface {}; io.interfaces has {}{near}",
                self.when_origin(),
                self.draft.name,
                shortened(&term.to_string()),
                shortened(unknown),
                interfaces.join(", ")
            ));
        }
    }

    /// Where the key `when` was set, or the task was first named.
    fn when_origin(&self) -> &Origin {
        let own = self.own(TaskKey::When).map(|setting| &setting.origin);
        own.unwrap_or(self.named_at())
    }

    /// One device for each of the layout's, as far as any are named.
    fn devices(
        &self,
        draft: &Draft,
        tables: &DeviceTables<'_>,
        problems: &mut Vec<String>,
    ) -> Vec<Device> {
        let (layout, names) = (&draft.pipeline.layout, &self.draft.devices);
        let of = Use {
            is_only_one: layout.devices <= layout.analytics_managers,
            batch_sizes: &self.draft.batching.batch_sizes,
        };
        let mut devices = Vec::new();
        for name in names {
            match tables.find(name, draft, of) {
                Ok(device) => devices.push(device),
                Err(why) if why.is_empty() => {}
                Err(why) => report(problems, self.unknown_device(&why)),
            }
        }
        let is_refused = self.is_refused(&[KeyId::AccelDevices, KeyId::PipelineLayout]);
        // A text that is no layout was reported when it was stored, and 1:1:1 stands in its place.
        let layout_setting = self.read().settings.setting(KeyId::PipelineLayout);
        let has_layout = layout_setting
            .value
            .as_str()
            .and_then(Layout::parse)
            .is_some();
        if names.len() != 1 && names.len() != layout.devices && has_layout && !is_refused {
            let line = format!(
                "{} with {}: impossible combination: name one device for each of the layout's {}, or one for all",
                self.named(TaskKey::Devices, KeyId::AccelDevices),
                self.read().named(KeyId::PipelineLayout),
                layout.devices
            );
            report(problems, line);
        }
        match devices.as_slice() {
            [device] => vec![device.clone(); layout.devices],
            _ => devices,
        }
    }

    fn unknown_device(&self, why: &str) -> String {
        let (id, section) = (TaskKey::Devices, KeyId::AccelDevices);
        format!(
            "{}: {}: {why}",
            self.origin(id, section),
            self.path(id, section)
        )
    }
}

/// Several tasks may take the same slip from a section.
fn report(problems: &mut Vec<String>, line: String) {
    if !problems.contains(&line) {
        problems.push(line);
    }
}
