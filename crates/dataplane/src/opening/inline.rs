//! Labels inline: a flow manager has series answered at once, by an analytics manager of its own.
//!
//! Only the device `native` does. Where `pipeline.layout` leaves it open, labels are inline
//! where that costs the packets' walk little.

use analytics::Manager;
use config::Config;
use config::checked::{Device, Task};
use config::layout::Layout;
use cring::{Label, Labels, Slot};
use flowmgr::Part;

use crate::Error;
use crate::opening::session::refused;
use crate::opening::tasks::OpenTask;

/// Time between two series on a link of 13.4 M packets/s and 37,300 series/s (FENXI, §6), ns.
const SERIES_EVERY_NS: f64 = 26_800.0;

/// The share of this time that labels inline may take.
const SHARE_MAX: f64 = 0.1;

/// A flow manager whose series may be answered at once.
pub type FlowManager = flowmgr::Manager<Option<Inline>>;

/// The part of a flow manager that answers series.
pub struct Inline {
    /// Has all tasks; those whose series go through rings have no devices here.
    pub manager: Manager,
    /// The task of each label word.
    task_of_word: Vec<usize>,
    /// The run's clock, in ns.
    clock: Box<dyn Fn() -> u64 + Send>,
}

impl Inline {
    /// Answers by this manager's tasks; `task_of_word` has the number of each label word's task.
    /// Time stands still until there is a clock.
    pub fn new(manager: Manager, task_of_word: Vec<usize>) -> Inline {
        Inline { manager, task_of_word, clock: Box::new(|| 0) }
    }

    /// Sets the run's clock, in ns.
    pub fn set_clock(&mut self, clock: impl Fn() -> u64 + Send + 'static) {
        self.clock = Box::new(clock);
    }
}

impl Part for Inline {
    fn answer(&mut self, asked: &Slot, labels: &dyn Labels, given: Option<Label>) -> Label {
        let task = self.task_of_word[usize::from(asked.series.task)];
        self.manager.tasks_mut()[task].answer(asked, labels, given, &self.clock)
    }
}

/// What speaks for or against labels inline, besides the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// A live run: they must be quick.
    Quick,
    /// A replay: its results must not depend on how quick the machine is.
    Same,
    /// A recording, which knows series in rings only.
    Rings,
}

/// Decides which tasks have their series answered at once, and returns the configuration of the run
/// with its layout.
///
/// # Errors
/// `pipeline.layout` asks for labels inline, and they are impossible.
pub fn choose(config: &Config, tasks: &mut [OpenTask], wants: Wants) -> Result<Config, Error> {
    let mut chosen = config.clone();
    let layout = config.pipeline.layout;
    if !layout.is_auto && !layout.is_inline() {
        return Ok(chosen);
    }
    for number in 0..tasks.len() {
        let why_not = why_not(tasks, number, wants);
        if let (Some(why), true) = (&why_not, layout.is_inline()) {
            return Err(Error::config(format!(
                "pipeline.layout = \"{layout}\": labels inline are impossible for task {}: {why}; \
                 use 1:1:1, or auto",
                tasks[number].name
            )));
        }
        tasks[number].is_inline = why_not.is_none();
        tasks[number].labels_why = match why_not {
            Some(why) => format!("by analytics managers: {why}"),
            None => "inline".to_owned(),
        };
    }
    if wants == Wants::Quick && tasks.iter().any(|task| task.is_inline) {
        let rows_ns = rows_ns(tasks)?;
        let share = rows_ns / SERIES_EVERY_NS;
        let is_quick = share <= SHARE_MAX;
        for task in tasks.iter_mut().filter(|task| task.is_inline) {
            task.is_inline = is_quick || !layout.is_auto;
            let how = if task.is_inline { "inline" } else { "by analytics managers" };
            task.labels_why = format!(
                "{how}: a flow worker would spend {:.1} % of its time on {:.2} us a series (auto: \
                 at most {:.0} %)",
                100.0 * share,
                rows_ns / 1e3,
                100.0 * SHARE_MAX
            );
        }
    }
    if layout.is_auto && tasks.iter().all(|task| task.is_inline) {
        chosen.pipeline.layout = Layout::inline(1);
        for task in tasks {
            task.config.pipeline.layout = chosen.pipeline.layout;
        }
    }
    Ok(chosen)
}

/// Whether a device can answer a series at once.
pub(crate) fn answers_at_once(device: &Device) -> bool {
    device.provider.answers_at_once
}

/// Why a task's series cannot be answered at once, or are not where that is left open; the tasks
/// before it are decided.
fn why_not(tasks: &[OpenTask], number: usize, wants: Wants) -> Option<String> {
    let task = &tasks[number];
    let layout = task.config.pipeline.layout;
    let devices = &task.config.accel.devices;
    if let Some(device) = devices.iter().find(|device| !answers_at_once(device)) {
        return Some(format!(
            "it runs on the device {}, which does not answer at once",
            device.name
        ));
    }
    if devices.iter().any(|device| device.faults.is_some()) {
        return Some("its device is to fail".to_owned());
    }
    if devices.iter().any(|device| device.fixed_sizes) {
        return Some("its batches have fixed sizes".to_owned());
    }
    if wants == Wants::Rings {
        return Some("a recording needs rings".to_owned());
    }
    let mut after = task.series.asked.after.iter();
    if let Some(other) = after.find(|it| it.index() >= number || !tasks[it.index()].is_inline) {
        return Some(format!(
            "its when names task {}, which is answered later",
            tasks[other.index()].name
        ));
    }
    let is_set = |task: &Task| task.cache.is_some() || !task.policy_origin.is_default();
    let batches = task.config.tasks.iter().any(is_set);
    (layout.is_auto && batches).then(|| "its batching or its cache is configured".to_owned())
}

/// What a row of each task that could be answered at once takes, one after the other, in ns.
fn rows_ns(tasks: &[OpenTask]) -> Result<f64, Error> {
    let mut all_ns = 0.0;
    for task in tasks.iter().filter(|task| task.is_inline) {
        all_ns += accel::native_row_ns(&task.bundle).map_err(refused)?;
    }
    Ok(all_ns)
}
