//! The tasks: what the sections say, and what a `[[task]]` says instead.

use crate::checked::{
    Batching, Cache, DEFAULT_TASK, Device, GOAL_KEYS, MarkAs, PolicyName, TASKS_MAX, Task,
    TaskKeys, section_key,
};
use crate::keys::Keyed;
use crate::layout::Layout;
use crate::origin::Origin;
use crate::settings::{Setting, Settings, Table};
use crate::suggest;
use crate::when::{Term, When, shortened};

use super::Common;
use super::devices::{DeviceTables, Use};

mod graph;

/// What the tables say over the sections, in their order; one by default.
pub(super) fn read<'a>(settings: &'a Settings, problems: &mut Vec<String>) -> Vec<Asked<'a>> {
    let tables: Vec<&Table> = settings.tables("task").collect();
    if let Some(table) = tables.get(TASKS_MAX) {
        problems.push(format!(
            "{}: task.{}: expected {TASKS_MAX} tasks at most; leave some out",
            table.origin, table.name
        ));
    }
    if tables.is_empty() {
        return vec![Asked::new(settings, None, true, problems)];
    }
    let tables = tables.into_iter().enumerate();
    tables.map(|(at, table)| Asked::new(settings, Some(table), at == 0, problems)).collect()
}

/// The tasks, checked one by one and against each other.
pub(super) fn checked(
    asked: Vec<Asked<'_>>,
    common: &Common,
    devices: &DeviceTables<'_>,
    problems: &mut Vec<String>,
) -> Vec<Task> {
    let whens = graph::resolve(&asked, problems);
    let tasks = asked.into_iter().zip(whens);
    let mut tasks: Vec<Task> =
        tasks.map(|(task, when)| task.checked(when, common, devices, problems)).collect();
    graph::check(&tasks, problems);
    check_policies(&tasks, problems);
    number_devices(&mut tasks);
    tasks
}

/// One controller plans for all tasks, so their goals are kept in one way.
fn check_policies(tasks: &[Task], problems: &mut Vec<String>) {
    let first = |policy| tasks.iter().find(|task| task.batching.name == policy);
    if let (Some(slo), Some(on_off)) = (first(PolicyName::Slo), first(PolicyName::OnOff)) {
        problems.push(format!(
            "{}: task.{}: impossible combination: its policy is \"on-off\", and task {} has \
             \"slo\"; give both the same",
            on_off.origin, on_off.name, slo.name
        ));
    }
}

/// Devices of one name are the same device, whichever task names them.
fn number_devices(tasks: &mut [Task]) {
    let mut names: Vec<String> = Vec::new();
    let mut number = |device: &mut Device| {
        let known = names.iter().position(|name| *name == device.name);
        device.number = known.unwrap_or(names.len()) as u8;
        if known.is_none() {
            names.push(device.name.clone());
        }
    };
    for device in tasks.iter_mut().flat_map(|task| &mut task.devices) {
        number(device);
        if let Some(otherwise) = device.otherwise.as_deref_mut() {
            number(otherwise);
        }
    }
}

/// A task as it is read.
pub(super) struct Asked<'a> {
    pub settings: &'a Settings,
    pub name: &'a str,
    /// What the table says over the sections.
    pub keys: TaskKeys,
    table: Option<&'a Table>,
    /// The sections describe the labels of the first task.
    is_first: bool,
}

impl<'a> Asked<'a> {
    fn new(
        settings: &'a Settings,
        table: Option<&'a Table>,
        is_first: bool,
        problems: &mut Vec<String>,
    ) -> Asked<'a> {
        let mut asked = Asked {
            settings,
            name: table.map_or(DEFAULT_TASK, |table| &table.name),
            keys: TaskKeys::defaults(),
            table,
            is_first,
        };
        // 0: all bits of `mark`.
        asked.keys.mark_mask = 0;
        for key in TaskKeys::SECTION.keys {
            let name = key.name();
            let section = section_key(name, is_first).map(|path| settings.setting(path));
            let own = settings.of_task(table, is_first, name);
            let Some(setting) = own.or(section) else {
                continue;
            };
            let mut stored = asked.keys.store(name, setting);
            // A table is found by its name, so the name cannot be set to another one.
            if name == "name" && setting.value.as_str() != Some(asked.name) {
                stored = Err(format!("the task is called {}", asked.name));
            }
            if let (Err(why), Some(own), Some(table)) = (stored, own, table) {
                problems.push(table.complaint(key, own, &why));
            }
        }
        asked
    }

    /// What the table says of a key, unless a later layer overrides it in the section.
    pub(super) fn own(&self, key: &str) -> Option<&'a Setting> {
        self.settings.of_task(self.table, self.is_first, key)
    }

    /// The path of the key that holds for the task, and its value: its own, or the section's.
    fn holds(&self, key: &str) -> (String, Option<&'a Setting>) {
        let own = format!("task.{}.{key}", self.name);
        // Messages about marks of any task name mark.mask where a task has no mask.
        match (self.own(key), section_key(key, true)) {
            (None, Some(path)) => (path.to_owned(), Some(self.settings.setting(path))),
            (setting, _) => (own, setting),
        }
    }

    /// The key that holds for the task: its own or the section's.
    pub(super) fn path(&self, key: &str) -> String {
        self.holds(key).0
    }

    /// Where the key was set that holds for the task, or else where it was first named.
    pub(super) fn origin(&self, key: &str) -> &'a Origin {
        let named_at = self.table.map_or(&Origin::BuiltIn, |table| &table.origin);
        self.holds(key).1.map_or(named_at, |setting| &setting.origin)
    }

    /// Path, value and origin of what holds for the task, for messages.
    fn named(&self, key: &str) -> String {
        let (path, setting) = self.holds(key);
        let value = setting.map(|setting| setting.value.to_string());
        format!("{path} = {} ({})", value.unwrap_or_default(), self.origin(key))
    }

    /// Whether a value was refused that plays a part in one of these.
    pub(super) fn is_refused(&self, paths: &[&str]) -> bool {
        self.table.is_some_and(|table| table.refused) || self.settings.is_refused(paths)
    }

    /// The bits that its labels may write.
    pub(super) fn mark_mask(&self) -> u32 {
        let keys = &self.keys;
        match (keys.mark.is_empty(), keys.mark_mask) {
            (true, _) => 0,
            (false, 0) => keys.mark.iter().fold(0, |mask, row| mask | row.value),
            (false, mask) => mask,
        }
    }

    fn checked(
        self,
        when: When,
        common: &Common,
        devices: &DeviceTables<'_>,
        problems: &mut Vec<String>,
    ) -> Task {
        self.check_cache(common.flow.k, problems);
        self.check_batching(problems);
        self.check_goal(problems);
        self.check_in_ports(&common.interfaces, problems);
        let is_dscp = self.is_first && common.mark.holds == MarkAs::Dscp;
        let [origin, model_origin, depths_origin, when_origin, policy_origin] =
            ["", "model", "depths", "when", "policy"].map(|key| self.origin(key).clone());
        Task {
            name: self.name.to_owned(),
            origin,
            model_origin,
            depths_origin,
            when,
            when_origin,
            devices: self.devices(common, devices, problems),
            devices_why: String::new(),
            batching: self.batching(common.batching.phi),
            policy_origin,
            cache: self.has_cache().then_some(Cache {
                prefix: self.keys.cache_prefix,
                entries: self.keys.cache_entries,
                audit: common.cache.audit,
            }),
            priority: self.keys.priority,
            min_confidence: self.keys.min_confidence,
            mark_mask: match is_dscp {
                true => common.mark.mask,
                false => self.mark_mask(),
            },
            mark: match is_dscp {
                true => common.mark.class.clone(),
                false => self.keys.mark,
            },
            model: self.keys.model,
            depths: self.keys.depths,
            dscp: self.keys.dscp,
            records: self.keys.records,
        }
    }

    fn batching(&self, phi: f64) -> Batching {
        Batching {
            name: self.keys.policy,
            timeout: self.keys.timeout,
            phi,
            batch_sizes: self.keys.batch_sizes.clone(),
            max_wait: self.keys.max_wait,
            latency_goal: self.keys.latency_goal,
            slo_delta: self.keys.slo_delta,
        }
    }

    fn has_cache(&self) -> bool {
        self.keys.cache_prefix > 0 && self.keys.cache_entries > 0
    }

    fn check_cache(&self, k: usize, problems: &mut Vec<String>) {
        let is_longer = self.has_cache() && self.keys.cache_prefix > k;
        if is_longer && !self.is_refused(&["cache.prefix", "flow.k"]) {
            let line = format!(
                "{} with {}: impossible combination: the prefix is longer than the series",
                self.named("cache_prefix"),
                self.settings.named("flow.k"),
            );
            report(problems, line);
        }
    }

    fn check_batching(&self, problems: &mut Vec<String>) {
        let is_sorted = self.keys.batch_sizes.is_sorted_by(|a, b| a < b);
        if !is_sorted && !self.is_refused(&["analytics.batch_sizes"]) {
            let line = format!(
                "{}: batch sizes must ascend, each of them named once",
                self.named("batch_sizes")
            );
            report(problems, line);
        }
        let times = ["analytics.max_wait_ms", "analytics.timeout_ms"];
        if self.keys.max_wait < self.keys.timeout && !self.is_refused(&times) {
            let line = format!(
                "{} with {}: impossible combination: the longest wait is shorter than the timeout",
                self.named("max_wait_ms"),
                self.named("timeout_ms"),
            );
            report(problems, line);
        }
    }

    /// A goal of the task's own that its policy does not plan for. A later layer may choose another
    /// policy for a comparison, as `--set analytics.policy=max` does for a file with goals.
    fn check_goal(&self, problems: &mut Vec<String>) {
        let policy = self.settings.policy_without_goal(self.table, self.is_first);
        let Some(policy) = policy else {
            return;
        };
        for key in GOAL_KEYS {
            let Some(own) = self.own(key) else {
                continue;
            };
            if policy.origin.rank() <= own.origin.rank() {
                let (origin, name) = (&own.origin, self.name);
                problems.push(format!(
                    "{origin}: task.{name}.{key}: no effect: {} plans for no goal; set \
                     task.{name}.policy = \"slo\", or leave {key} out",
                    self.named("policy")
                ));
            }
        }
    }

    /// Interfaces by name, where these are known; a replay needs none.
    fn check_in_ports(&self, interfaces: &[String], problems: &mut Vec<String>) {
        let in_ports = self.keys.when.terms.iter();
        let in_ports = in_ports.filter_map(|term| match term {
            Term::InPort(names) => Some((term, names)),
            _ => None,
        });
        for (term, names) in in_ports {
            let unknown = names.iter().find(|name| !interfaces.contains(name));
            let Some(unknown) = unknown.filter(|_| !interfaces.is_empty()) else {
                continue;
            };
            let near = suggest(unknown, interfaces.iter().map(String::as_str));
            problems.push(format!(
                "{}: task.{}.when: {}: there is no interface {}; io.interfaces has {}{near}",
                self.origin("when"),
                self.name,
                shortened(&term.to_string()),
                shortened(unknown),
                interfaces.join(", ")
            ));
        }
    }

    /// One device for each of the layout's, as far as any are named; if none is, the model decides.
    fn devices(
        &self,
        common: &Common,
        tables: &DeviceTables<'_>,
        problems: &mut Vec<String>,
    ) -> Vec<Device> {
        let (layout, names) = (&common.layout, &self.keys.devices);
        let of = Use {
            is_only_one: layout.devices <= layout.analytics_managers,
            batch_sizes: &self.keys.batch_sizes,
        };
        let mut devices = Vec::new();
        let mut find = |name: &str| match tables.find(name, &common.accel, of) {
            Ok(device) => Some(device),
            Err(why) if why.is_empty() => None,
            Err(why) => {
                report(problems, self.unknown_device(&why));
                None
            }
        };
        if names.is_empty() {
            let [first, second] = accel::DEFAULTS.map(&mut find);
            let otherwise = second.map(Box::new);
            devices.extend(first.map(|first| Device { otherwise, ..first }));
        }
        devices.extend(names.iter().filter_map(|name| find(name)));
        let is_refused = self.is_refused(&["accel.devices", "pipeline.layout"]);
        // A text that is no layout was reported when it was stored, and 1:1:1 stands in its place.
        let has_layout = Layout::parse(self.settings.word("pipeline.layout")).is_some();
        let fits = names.len() <= 1 || names.len() == layout.devices;
        if !fits && has_layout && !is_refused {
            let line = format!(
                "{} with {}: impossible combination: name one device for each of the layout's {}, \
                 or one for all",
                self.named("devices"),
                self.settings.named("pipeline.layout"),
                layout.devices
            );
            report(problems, line);
        }
        match devices.as_slice() {
            [device] => vec![device.clone(); layout.devices.max(1)],
            _ => devices,
        }
    }

    fn unknown_device(&self, why: &str) -> String {
        format!("{}: {}: {why}", self.origin("devices"), self.path("devices"))
    }
}

/// Several tasks may take the same slip from a section.
fn report(problems: &mut Vec<String>, line: String) {
    if !problems.contains(&line) {
        problems.push(line);
    }
}

impl Settings {
    /// What the table of a task says of a key, unless a later layer overrides it in the section:
    /// `--set model.path=...` holds for a task whose table stands in a file.
    pub(crate) fn of_task<'a>(
        &self,
        table: Option<&'a Table>,
        is_first: bool,
        key: &str,
    ) -> Option<&'a Setting> {
        let own = table?.get(key)?;
        let section = section_key(key, is_first).map(|path| self.setting(path));
        let is_outranked = section.is_some_and(|section| section.origin.rank() > own.origin.rank());
        (!is_outranked).then_some(own)
    }

    /// The policy that a task has, where it has no goal to keep: `policy` of the table, or of the
    /// section.
    pub(crate) fn policy_without_goal<'a>(
        &'a self,
        table: Option<&'a Table>,
        is_first: bool,
    ) -> Option<&'a Setting> {
        let own = self.of_task(Some(table?), is_first, "policy");
        let policy = own.unwrap_or_else(|| self.setting("analytics.policy"));
        let name = policy.value.as_str().and_then(PolicyName::parse);
        let has_none = name.is_some_and(|name| !name.has_goal());
        (has_none && !policy.refused).then_some(policy)
    }
}
