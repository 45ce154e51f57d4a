//! The replay: makes the recorded calls in the recorded order, on one thread, and compares counters
//! with the recorded ones.

use std::path::Path;

use analytics::{NewModel, Settings, Standby, Task};
use dataplane::inline::FlowManager;
use flowmgr::record::Record;
use flowmgr::{BURST_MAX, Fate, Packet, RuleMemory, RulesChange};
use serde::Serialize;

use super::counts::{Counting, difference};
use super::device::Script;
use super::event::Call;
use super::event::{Answer, CountsByName, Event, Frame, Who};
use super::forms::{DeviceFacts, ModelSwap, TaskConfig, TaskStart, TaskSwap};
use super::header::Header;
use super::managers::{Managers, Series};
use super::reader::{self, Next};
use super::{EVENTS_FILE, HEADER_FILE};
use crate::error::RecordingError;

/// No packet socket gives a longer frame.
const CAPTURED_MAX: u32 = 1 << 20;

/// The result of a replay.
pub struct Replayed {
    /// Counters of all flow managers.
    pub flows: flowmgr::Counters,
    /// Counters of all analytics managers, by task.
    pub tasks: Vec<analytics::Counters>,
    /// Swaps of models, in which all analytics managers take part.
    pub swaps: u64,
    /// Packets of each flow manager.
    pub packets_by_worker: Vec<u64>,
    /// Bytes captured of these packets.
    pub bytes: u64,
    /// The kind of memory pages that hold the flow tables.
    pub pages: flowmgr::Pages,
    /// The comparison.
    pub report: Report,
}

/// Compares the replay's counters with the run's.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether all recorded counters are the same, and there were some.
    pub same: bool,
    /// The first difference, where there is one.
    pub first_difference: Option<Difference>,
    /// Events replayed.
    pub events: u64,
    /// How often counters were compared.
    pub compared: u64,
    /// Why the recording ends.
    pub end: String,
    /// Version that recorded it.
    pub fenxi: String,
    /// When the run started.
    pub started: String,
    /// Requests to the run and their outcomes.
    pub notes: Vec<String>,
}

/// The first difference between recording and replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Number of the event, from 1.
    pub event: u64,
    /// Time of the run, s.
    pub at_s: f64,
    /// The difference in words.
    pub what: String,
}

/// Replays the recording in a folder; `out` takes the records.
///
/// # Errors
/// No recording, or a damaged one; no memory for its tables.
pub fn replay(
    dir: &Path,
    record_series: flowmgr::SeriesShare,
    out: &mut dyn FnMut(&mut Record),
) -> Result<(Header, Replayed), RecordingError> {
    let header = Header::read(dir)?;
    let path = dir.join(EVENTS_FILE);
    let broken = |error: reader::ReadError| {
        let text = format!("{}: {error}", path.display());
        match error {
            reader::ReadError::Io(_) => RecordingError::NoInput(text),
            _ => RecordingError::Damaged(text),
        }
    };
    let mut events = reader::open(&path).map_err(broken)?;
    let managers = Managers::new(&header, record_series).map_err(|why| {
        RecordingError::Damaged(format!("{}: {why}", dir.join(HEADER_FILE).display()))
    })?;
    let mut replayer = Replayer {
        managers,
        header,
        script: Script::default(),
        work: Work::default(),
        now_ns: 0,
        report: Report::default(),
    };
    let end = loop {
        match events.next().map_err(broken)? {
            Next::Event(event) => {
                replayer.report.events = events.number;
                replayer.take(event, out).map_err(|why| {
                    let (number, at) = (events.number, events.at);
                    RecordingError::Damaged(format!(
                        "{}: event {number}, at byte {at}: {why}",
                        path.display()
                    ))
                })?;
            }
            Next::End => break "it breaks off behind a whole event".to_owned(),
            Next::Torn => break "it breaks off within an event".to_owned(),
        }
    };
    if replayer.report.end.is_empty() {
        replayer.report.end = end;
    }
    Ok(replayer.finish())
}

struct Replayer {
    managers: Managers,
    header: Header,
    script: Script,
    work: Work,
    /// Time of the last event that has one.
    now_ns: u64,
    report: Report,
}

/// Room for a burst.
#[derive(Default)]
struct Work {
    /// Zeros between two bursts.
    data: Vec<u8>,
    packets: Vec<Packet>,
    fates: Vec<Fate>,
    bytes: u64,
}

impl Replayer {
    fn take(&mut self, event: Event<'_>, out: &mut dyn FnMut(&mut Record)) -> Result<(), String> {
        match event {
            Event::Burst { manager, now_ns, from, frames } => {
                self.now_ns = now_ns;
                let manager = self.managers.flow(manager)?;
                from.tell(manager);
                self.work.burst(manager, &frames, now_ns)?;
            }
            Event::Count { manager, from, flows } => {
                let manager = self.managers.flow(manager)?;
                from.tell(manager);
                for flow in &flows {
                    manager.count(&flow.into());
                }
            }
            Event::Pass { manager, time_us } => self.managers.flow(manager)?.pass(time_us),
            Event::Settle { manager, now_ns, most } => {
                self.now_ns = now_ns;
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                self.managers.flow(manager)?.settle_some(most, now_ns, out);
            }
            Event::Configure { manager, mut settings } => {
                if !self.header.takes(&settings) {
                    return Err("the settings are out of range".to_owned());
                }
                self.managers.flow(manager)?.configure(&mut settings);
            }
            Event::ChangeRules {
                manager,
                has_bounds,
                has_behaviours,
                label_tasks,
                is_renumbered,
            } => {
                let mut change = RulesChange {
                    has_bounds,
                    has_behaviours,
                    // Only by packet time, which is not recorded.
                    has_hours: false,
                    label_tasks,
                    is_renumbered,
                    ..RulesChange::default()
                };
                let manager = self.managers.flow(manager)?;
                if !manager.has_rules() {
                    let memory = RuleMemory::new(self.header.flow.max_flows);
                    change.memory = Some(memory.map_err(|error| error.to_string())?);
                }
                manager.change_rules(&mut change);
            }
            Event::AnswerRules { manager, now_ns, answers } => {
                self.now_ns = now_ns;
                self.answer_rules(manager, now_ns, &answers)?;
            }
            Event::Drain { manager } => self.managers.flow(manager)?.drain(),
            Event::Start { manager, tasks } => self.start(manager, tasks)?,
            Event::Round { manager, now_ns, drains, costs, calls } => {
                self.now_ns = now_ns;
                self.check_classes(&calls)?;
                self.script.set(calls, costs);
                let series = self.managers.series(manager)?;
                if drains {
                    series.drain();
                }
                series.round(now_ns);
                if let Some(how) = self.script.strayed() {
                    let who = Who::Series(manager);
                    self.differ(format!("{who} does something else than recorded: {how}"));
                }
            }
            Event::Prepare { manager, task, swap } => self.prepare(manager, task, &swap)?,
            Event::Commit { manager, task } => self.managers.task(manager, task)?.commit(),
            Event::Abort { manager, task } => drop(self.managers.task(manager, task)?.abort()),
            Event::Counted { who, counts } => self.compare(who, &counts)?,
            Event::Note { text } => self.report.notes.push(text),
            Event::End { reason } => self.report.end = reason,
        }
        Ok(())
    }

    /// What answers do to the packets of a burst is not replayed, only counted.
    fn answer_rules(
        &mut self,
        manager: u32,
        now_ns: u64,
        answers: &[Answer],
    ) -> Result<(), String> {
        let answers: Vec<_> = answers.iter().map(|answer| answer.0).collect();
        let classes = self.header.tasks[0].classes.len();
        let mut named = answers.iter().filter_map(|answer| answer.class);
        if let Some(class) = named.find(|class| usize::from(*class) >= classes) {
            return Err(format!("class {class}, and there are {classes}"));
        }
        let manager = self.managers.flow(manager)?;
        let (asked, given) = (manager.rule_questions().len(), answers.len());
        if asked != given {
            return Err(format!("{given} answers about rules, and {asked} are asked for"));
        }
        manager.answer_rules(&answers, &mut [], &[], now_ns, &mut Vec::new());
        Ok(())
    }

    fn start(&mut self, manager: u32, starts: Vec<TaskStart>) -> Result<(), String> {
        let series = self.managers.series.get_mut(manager as usize);
        let Some((series, inputs)) = series.and_then(|series| match series {
            Series::Waits(inputs) if inputs.len() == starts.len() => {
                let inputs = std::mem::take(inputs);
                Some((series, inputs))
            }
            _ => None,
        }) else {
            return Err(format!("analytics manager {manager} cannot start here"));
        };
        let both = starts.into_iter().zip(inputs);
        let tasks = both.map(|(start, inputs)| {
            check_devices(&start.devices)?;
            if !self.header.takes_words(&start.config.0) {
                return Err("a task names label words that there are not".to_owned());
            }
            let accelerators = self.script.accelerators(&start.devices);
            let mut task = Task::new(start.config.0, inputs, accelerators)
                .map_err(|error| error.to_string())?;
            task.set_cost_clock(self.script.cost_clock());
            Ok(task)
        });
        let tasks = tasks.collect::<Result<_, String>>()?;
        *series = Series::Works(Box::new(analytics::Manager::new(tasks)));
        Ok(())
    }

    /// The task accepts or refuses the swap, as it did in the run.
    fn prepare(&mut self, manager: u32, task: u32, swap: &TaskSwap) -> Result<(), String> {
        let model = match &swap.model {
            Some(ModelSwap { devices, generation, coming }) => {
                check_devices(devices)?;
                Some(NewModel {
                    accelerators: self.script.accelerators(devices),
                    generation: *generation,
                    coming: *coming,
                })
            }
            None => None,
        };
        let change = |(old, new): &(TaskConfig, TaskConfig)| Settings::change(&old.0, &new.0);
        let settings = swap.settings.as_ref().map(change).transpose();
        let settings = settings.map_err(|error| error.to_string())?;
        let task = self.managers.task(manager, task)?;
        // A live thread takes what is retired before it takes the next step.
        drop(task.take_retired());
        drop(task.prepare(Standby { model, settings }));
        Ok(())
    }

    /// A class that no model has, and so no device gives, would have no counter.
    fn check_classes(&self, calls: &[Call]) -> Result<(), String> {
        let classes = self.header.tasks.iter().map(|task| task.classes.len());
        let classes = classes.max().unwrap_or(0);
        let results = calls.iter().filter_map(|call| match call {
            Call::Results(results) => Some(results),
            _ => None,
        });
        match results.flatten().find(|(class, _)| usize::from(*class) >= classes) {
            Some((class, _)) => Err(format!("class {class}, and there are {classes}")),
            None => Ok(()),
        }
    }

    fn compare(&mut self, who: Who, recorded: &CountsByName) -> Result<(), String> {
        let classes = &self.header.tasks[0].classes;
        let replayed = match who {
            Who::Flow(manager) => self.managers.flow(manager)?.counts(classes),
            Who::Series(manager) => self.managers.series(manager)?.counts(classes),
        };
        self.report.compared += 1;
        if let Some((name, was, is, all)) = difference(recorded, &replayed) {
            let more = match all {
                1 => String::new(),
                all => format!(" (and {} more counters)", all - 1),
            };
            self.differ(format!("{who}: {name}: recorded {was}, replayed {is}{more}"));
        }
        Ok(())
    }

    fn differ(&mut self, what: String) {
        let (event, at_s) = (self.report.events, self.now_ns as f64 / 1e9);
        self.report.first_difference.get_or_insert(Difference { event, at_s, what });
    }

    fn finish(self) -> (Header, Replayed) {
        let Replayer { managers, header, work, mut report, .. } = self;
        let counters = managers.flow.iter().map(FlowManager::counters);
        let mut flows = flowmgr::Counters::new(&header.flow.tasks);
        counters.clone().for_each(|it| flows.merge(it));
        let mut tasks = vec![analytics::Counters::none(); header.tasks.len()];
        // A manager whose devices were never open has counted nothing.
        for manager in &managers.series {
            if let Series::Works(manager) = manager {
                let both = tasks.iter_mut().zip(manager.tasks());
                both.for_each(|(sum, task)| sum.merge(task.counters()));
            }
        }
        report.same = report.first_difference.is_none() && report.compared > 0;
        report.fenxi.clone_from(&header.fenxi);
        report.started.clone_from(&header.started);
        let pages = managers.flow.iter().map(FlowManager::pages).min();
        let replayed = Replayed {
            packets_by_worker: counters.map(|it| it.verdicts.total()).collect(),
            swaps: managers.swaps(),
            flows,
            tasks,
            bytes: work.bytes,
            pages: pages.unwrap_or(flowmgr::Pages::Plain),
            report,
        };
        (header, replayed)
    }
}

impl Work {
    /// The frames, with zeros where their payload was.
    fn burst(
        &mut self,
        manager: &mut FlowManager,
        frames: &[Frame<'_>],
        now_ns: u64,
    ) -> Result<(), String> {
        if frames.len() > BURST_MAX {
            return Err(format!("a burst of {} packets", frames.len()));
        }
        let Work { data, packets, fates, bytes } = self;
        packets.clear();
        let mut at = 0;
        for frame in frames {
            let (captured, kept) = (frame.captured, frame.kept.len());
            if captured > CAPTURED_MAX || kept > captured as usize {
                return Err(format!("a frame of {captured} bytes with {kept} kept"));
            }
            packets.push(frame.packet(at));
            at += frame.captured as usize;
        }
        *bytes += at as u64;
        if data.len() < at {
            data.resize(at, 0);
        }
        for (frame, packet) in frames.iter().zip(&*packets) {
            data[packet.at..][..frame.kept.len()].copy_from_slice(&frame.kept);
        }
        manager.burst(data, packets, now_ns, fates);
        // The walk writes into headers only.
        for (frame, packet) in frames.iter().zip(&*packets) {
            data[packet.at..][..frame.kept.len()].fill(0);
        }
        Ok(())
    }
}

fn check_devices(devices: &[DeviceFacts]) -> Result<(), String> {
    match devices.iter().find(|facts| !facts.is_possible()) {
        Some(facts) => Err(format!("device {} is impossible", facts.requested)),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "replayer_tests.rs"]
mod tests;
