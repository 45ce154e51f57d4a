//! The replay: makes the recorded calls in the recorded order, on one thread, and compares counters with the recorded ones.

use std::path::Path;

use analytics::{NewModel, Settings, Standby};
use flowmgr::record::Record;
use flowmgr::{Fate, Gso, Packet, RuleAnswer, RuleMemory, RulesChange};
use serde::Serialize;

use super::call::Call;
use super::counts;
use super::event::{Counts, Event, Frame, Who};
use super::header::Header;
use super::managers::Managers;
use super::reader::{self, Next};
use super::script::Script;
use super::settings::{DeviceFacts, SeriesConfig, SeriesStart, SwapForm};
use super::{EVENTS_FILE, HEADER_FILE};
use crate::error::RecordingError;

/// The result of a replay.
pub struct Replayed {
    /// Of all flow managers.
    pub flows: flowmgr::Counters,
    /// Of all analytics managers.
    pub series: analytics::Counters,
    /// Swaps of the model, in which all analytics managers take part.
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

/// The comparison of the replay's counters with those of the run.
#[derive(Debug, Serialize)]
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
    out: &mut dyn FnMut(Record),
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
    let managers = Managers::of(&header, record_series).map_err(|why| {
        RecordingError::Damaged(format!("{}: {why}", dir.join(HEADER_FILE).display()))
    })?;
    let mut replayer = Replayer {
        managers,
        classes: header.classes.clone(),
        max_flows: header.flow.max_flows,
        script: Script::default(),
        work: Work::default(),
        now_ns: 0,
        report: Report {
            same: false,
            first_difference: None,
            events: 0,
            compared: 0,
            end: String::new(),
            fenxi: header.fenxi.clone(),
            started: header.started.clone(),
            notes: Vec::new(),
        },
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
    let k = header.flow.tasks.first().map_or(1, |task| task.k);
    let replayed = replayer.finish(k);
    replayed.map(|replayed| (header, replayed))
}

struct Replayer {
    managers: Managers,
    classes: Vec<String>,
    /// Flows in a table, at most.
    max_flows: usize,
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
    fn take(&mut self, event: Event, out: &mut dyn FnMut(Record)) -> Result<(), String> {
        match event {
            Event::Burst {
                manager,
                now_ns,
                port,
                frames,
            } => {
                self.now_ns = now_ns;
                let manager = self.managers.flow(manager)?;
                manager.receive_from(port);
                self.work.burst(manager, &frames, now_ns);
            }
            Event::Count {
                manager,
                port,
                flows,
            } => {
                let manager = self.managers.flow(manager)?;
                manager.receive_from(port);
                for flow in &flows {
                    manager.count(flow);
                }
            }
            Event::Pass { manager, time_us } => self.managers.flow(manager)?.pass(time_us),
            Event::Settle {
                manager,
                now_ns,
                most,
            } => {
                self.now_ns = now_ns;
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                self.managers.flow(manager)?.settle_some(most, now_ns, out);
            }
            Event::Configure { manager, settings } => {
                if !settings.is_possible(self.classes.len()) {
                    return Err("the settings are out of range".to_owned());
                }
                let mut settings = settings.0;
                self.managers.flow(manager)?.configure(&mut settings);
            }
            Event::ChangeRules {
                manager,
                has_bounds,
                has_behaviours,
                is_renumbered,
            } => {
                let change = RulesChange {
                    has_bounds,
                    has_behaviours,
                    is_renumbered,
                    memory: None,
                };
                self.change_rules(manager, change)?;
            }
            Event::AnswerRules {
                manager,
                now_ns,
                answers,
            } => {
                self.now_ns = now_ns;
                self.answer_rules(manager, now_ns, &answers)?;
            }
            Event::Drain { manager } => self.managers.flow(manager)?.drain(),
            Event::Start { manager, start } => self.start(manager, &start)?,
            Event::Round {
                manager,
                now_ns,
                draining,
                costs,
                calls,
            } => {
                self.now_ns = now_ns;
                self.check_classes(&calls)?;
                self.script.set(calls, costs);
                let series = self.managers.series(manager)?;
                if draining {
                    series.drain();
                }
                series.round(now_ns);
                if let Some(how) = self.script.strayed() {
                    let who = Who::Series(manager);
                    self.differ(format!("{who} does something else than recorded: {how}"));
                }
            }
            Event::Prepare { manager, swap } => self.prepare(manager, &swap)?,
            Event::Commit { manager } => self.managers.task(manager)?.commit(),
            Event::Abort { manager } => drop(self.managers.task(manager)?.abort()),
            Event::Counted { who, counts } => self.compare(who, &counts)?,
            Event::Note { text } => self.report.notes.push(text),
            Event::End { reason } => self.report.end = reason,
        }
        Ok(())
    }

    fn change_rules(&mut self, manager: u32, mut change: RulesChange) -> Result<(), String> {
        let flows = self.max_flows;
        let manager = self.managers.flow(manager)?;
        if !manager.has_rules() {
            let memory = RuleMemory::new(flows);
            change.memory = Some(memory.map_err(|error| error.to_string())?);
        }
        manager.change_rules(&mut change);
        Ok(())
    }

    /// What answers do to the packets of a burst is not replayed, only counted.
    fn answer_rules(
        &mut self,
        manager: u32,
        now_ns: u64,
        answers: &[RuleAnswer],
    ) -> Result<(), String> {
        let classes = self.classes.len();
        let manager = self.managers.flow(manager)?;
        let asked = manager.rule_questions().len();
        if asked != answers.len() {
            let given = answers.len();
            return Err(format!(
                "{given} answers about rules, and {asked} are asked for"
            ));
        }
        if let Some(class) = answers
            .iter()
            .filter_map(|answer| answer.class)
            .find(|class| usize::from(*class) >= classes)
        {
            return Err(format!("class {class}, and there are {classes}"));
        }
        manager.answer_rules(answers, &mut [], &[], now_ns, &mut Vec::new());
        Ok(())
    }

    fn start(&mut self, manager: u32, start: &SeriesStart) -> Result<(), String> {
        check_devices(&start.devices)?;
        let inputs = self.managers.inputs.get_mut(manager as usize);
        let inputs = inputs
            .and_then(Option::take)
            .ok_or_else(|| format!("analytics manager {manager} cannot start here"))?;
        let accelerators = self.script.accelerators(&start.devices);
        let mut series = analytics::Task::new(start.config.0.clone(), inputs, accelerators)
            .map_err(|error| error.to_string())?;
        series.set_cost_clock(self.script.cost_clock());
        self.managers.series[manager as usize] = Some(analytics::Manager::new(vec![series]));
        Ok(())
    }

    /// The manager accepts or refuses the swap, as it did in the run.
    fn prepare(&mut self, manager: u32, swap: &SwapForm) -> Result<(), String> {
        let model = match &swap.model {
            Some((devices, generation)) => {
                check_devices(devices)?;
                Some(NewModel {
                    accelerators: self.script.accelerators(devices),
                    generation: *generation,
                })
            }
            None => None,
        };
        let change = |(old, new): &(SeriesConfig, SeriesConfig)| Settings::change(&old.0, &new.0);
        let settings = swap.settings.as_ref().map(change).transpose();
        let settings = settings.map_err(|error| error.to_string())?;
        let series = self.managers.task(manager)?;
        // A live thread takes what is retired before it takes the next step.
        drop(series.take_retired());
        drop(series.prepare(Standby { model, settings }));
        Ok(())
    }

    /// A class that the model does not have, which no device gives, would have no counter.
    fn check_classes(&self, calls: &[Call]) -> Result<(), String> {
        let classes = self.classes.len();
        for call in calls {
            if let Call::Results(results) = call
                && let Some(result) = results.iter().find(|it| usize::from(it.class) >= classes)
            {
                let class = result.class;
                return Err(format!("class {class}, and there are {classes}"));
            }
        }
        Ok(())
    }

    fn compare(&mut self, who: Who, recorded: &Counts) -> Result<(), String> {
        let replayed = match who {
            Who::Flow(manager) => {
                counts::of_flows(self.managers.flow(manager)?.counters(), &self.classes)
            }
            Who::Series(manager) => counts::of_series(self.managers.task(manager)?.counters()),
        };
        self.report.compared += 1;
        if let Some((name, was, is, all)) = counts::difference(recorded, &replayed) {
            let more = match all {
                1 => String::new(),
                all => format!(" (and {} more counters)", all - 1),
            };
            self.differ(format!(
                "{who}: {name}: recorded {was}, replayed {is}{more}"
            ));
        }
        Ok(())
    }

    fn differ(&mut self, what: String) {
        let (event, at_s) = (self.report.events, self.now_ns as f64 / 1e9);
        self.report
            .first_difference
            .get_or_insert(Difference { event, at_s, what });
    }

    fn finish(mut self, k: usize) -> Result<Replayed, RecordingError> {
        let mut flows = flowmgr::Counters::new([self.classes.len()]);
        let managers = &self.managers.flow;
        for manager in managers {
            flows.merge(manager.counters());
        }
        let packets = managers.iter().map(|it| it.counters().verdicts.total());
        let packets_by_worker = packets.collect();
        let pages = managers.iter().map(flowmgr::Manager::pages).min();
        for manager in 0..self.managers.series.len() {
            if self.managers.series[manager].is_none() {
                // Its devices were never open; it has counted nothing.
                let start = SeriesStart {
                    config: SeriesConfig::unknown(k),
                    devices: vec![DeviceFacts::unknown(k)],
                };
                self.start(manager as u32, &start)
                    .map_err(RecordingError::Damaged)?;
            }
        }
        let managers = self.managers.series.iter().flatten();
        let managers = managers.flat_map(analytics::Manager::tasks);
        let swaps = managers.clone().map(|it| it.counters().swaps).max();
        let mut sum: Option<analytics::Counters> = None;
        for manager in managers {
            match &mut sum {
                Some(sum) => sum.merge(manager.counters()),
                None => sum = Some(manager.counters().clone()),
            }
        }
        let mut report = self.report;
        report.same = report.first_difference.is_none() && report.compared > 0;
        Ok(Replayed {
            flows,
            series: sum.ok_or_else(|| {
                RecordingError::Damaged("there are no analytics managers".to_owned())
            })?,
            swaps: swaps.unwrap_or(0),
            packets_by_worker,
            bytes: self.work.bytes,
            pages: pages.unwrap_or(flowmgr::Pages::Plain),
            report,
        })
    }
}

impl Work {
    /// The frames, with zeros where their payload was.
    fn burst(&mut self, manager: &mut flowmgr::Manager, frames: &[Frame], now_ns: u64) {
        let Work {
            data,
            packets,
            fates,
            bytes,
        } = self;
        packets.clear();
        let mut at = 0;
        for frame in frames {
            packets.push(Packet {
                at,
                captured: frame.captured,
                wire: frame.wire,
                link: frame.link,
                time_us: frame.time_us,
                rss: frame.rss,
                gso: Gso::from_bits(frame.gso),
            });
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
