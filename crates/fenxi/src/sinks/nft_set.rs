//! Sets of nftables: the ends of flows as elements with a timeout, by label; each set with a thread
//! of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::checked::Named;
use config::kind::{Kind, integer};
use config::{Config, Keyed, Section, Setting, Settings, nearest, stored};
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::TaskId;
use flowmgr::record::FlowName;
use netfilter::counts::{Cause, UpdateCounts};
use netfilter::elements::{self, Members};
use netfilter::nft_set::{Field, SetName};
use netfilter::writer::{StartError, Writer};
use policy::{Label, LabelRule, Names};

use super::netfilter::{Explained, Figures, Places, Row, WriterSink, Writers, newest_error, tuple};
use super::{
    Commit, KernelPart, Lost, Report, Rights, SinkControl, SinkKind, Start, Sums, place_of,
    task_names,
};
use crate::exit::Failure;
use crate::figures::grouped;
use crate::protocol::Written;

const FIGURES: Figures = Figures {
    sink: "nftset",
    unit: "elements",
    total: [
        "fenxi_nftset_elements_total",
        "Elements for sets of nftables (nftset), by the table's name in the configuration: \
        written; refreshed, it was there; other_family, the set has no such addresses; \
        not_found, the set is gone; failed; dropped, the queue was full.",
    ],
    failed: [
        "fenxi_nftset_failed_total",
        "Elements that the kernel refused, by cause; full, the set has as many as its size allows.",
    ],
    waiting: ["fenxi_nftset_waiting", "Elements that wait to be written."],
    latency: [
        "fenxi_nftset_latency_seconds",
        "Time from a label to the kernel's confirmation that the set has the element.",
    ],
    fates: &[
        ("written", |counts| counts.written),
        ("refreshed", |counts| counts.refreshed),
        ("other_family", |counts| counts.other_family),
        ("not_found", |counts| counts.not_found),
        ("failed", UpdateCounts::failed),
        ("dropped", |counts| counts.dropped),
    ],
    causes: &[Cause::Permission, Cause::NoMemory, Cause::Full, Cause::Unanswered, Cause::Other],
    labels: [&["set"], &["set", "outcome"], &["set", "cause"]],
    sums: &[
        "nftset_asked",
        "nftset_written",
        "nftset_refreshed",
        "nftset_other_family",
        "nftset_not_found",
        "nftset_failed",
        "nftset_dropped",
    ],
    status: (7, "nftset_lost"),
};

/// Each set has a thread of its own.
const SETS_MAX: usize = 16;

config::section! {
    /// A set of nftables that gets the ends of flows.
    pub struct NftSet = Named "nftset", checked by check;

    /// the set, which must exist with flags timeout and the type that key needs
    set: Option<SetName> = restart "set", Kind::Text, "\"inet fw4 ssh\"",
        "family, table and set" => set;
    /// labels, or taxonomies, whose flows are added to the set; "task.label" names the label of a
    /// task
    labels: Vec<String> = live "labels", Kind::TextList { least: 1 }, "[\"SSH\"]", "";
    /// what an element is made of, in the order of the set's type: originator_address,
    /// originator_port, responder_address, responder_port, protocol
    key: Vec<Field> = restart "key", Kind::TextList { least: 1 }, "[\"originator_address\"]",
        "" => fields;
    /// how long an element stays after the last label that put it there
    timeout: Duration = restart "timeout_s", integer(0, 31_536_000), "300",
        "seconds, 0 = the timeout of the set" => Setting::seconds;
    /// how many elements may wait to be written; more are dropped and counted
    queue: usize = restart "queue", integer(64, 1 << 20), "4096", "elements";
}

fn set(setting: &Setting) -> Result<Option<SetName>, String> {
    setting.get::<String>()?.parse().map(Some)
}

fn fields(setting: &Setting) -> Result<Vec<Field>, String> {
    setting.list(|name| {
        Field::parse(name).ok_or_else(|| {
            let near = nearest(name, Field::NAMES);
            let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            let known = Field::NAMES.join(", ");
            format!("found \"{name}\", expected some of {known}{near}")
        })
    })
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    let tables = settings.tables("nftset");
    if let Some(table) = tables.clone().nth(SETS_MAX) {
        let (origin, name) = (&table.origin, &table.name);
        problems.push(format!(
            "{origin}: nftset.{name}: expected {SETS_MAX} tables at most; a table may have several \
             labels"
        ));
    }
    for table in tables.filter(|table| !table.refused) {
        let needed = NftSet::SECTION.keys.iter().take(2);
        for key in needed.filter(|key| table.get(key.name()).is_none()) {
            let (origin, name) = (&table.origin, &table.name);
            let (key, default) = (key.name(), key.default);
            problems.push(format!(
                "{origin}: nftset.{name}.{key}: is missing; expected as in {key} = {default}"
            ));
        }
    }
    stored::<NftSet>(settings, problems);
}

fn sets(config: &Config) -> Vec<Named<NftSet>> {
    config.tables()
}

/// Sets of nftables, where the configuration has tables `[nftset.NAME]`.
pub struct NftSets;

/// For each class of each task, 1 if its flows are added.
fn words(
    set: &Named<NftSet>,
    tasks: &[String],
    labels: &[Arc<[Label]>],
) -> Result<Vec<u64>, Error> {
    let rules: Vec<_> = set
        .keys
        .labels
        .iter()
        .map(|label| LabelRule {
            label: label.clone(),
            action: 1,
            required: true,
            origin: format!("{}: nftset.{}.labels", set.origin, set.name),
        })
        .collect();
    let by_task = policy::by_task(
        &rules,
        &Names { labels: labels.to_vec(), tasks: tasks.to_vec(), ..Names::default() },
        Ord::max,
    );
    by_task.map(|it| it.concat()).map_err(|error| Error::Config(error.to_string()))
}

/// What a table asks for; it was checked that it names a set.
fn members(set: &Named<NftSet>) -> Option<Members> {
    let keys = &set.keys;
    Some(Members {
        set: keys.set.clone()?,
        fields: keys.key.clone(),
        timeout_ms: u64::try_from(keys.timeout.as_millis()).unwrap_or(u64::MAX),
    })
}

fn named(set: &Named<NftSet>, error: StartError) -> StartError {
    match error {
        StartError::Unfit(why) => {
            StartError::Unfit(format!("{}: nftset.{}: {why}", set.origin, set.name))
        }
        other => other,
    }
}

/// Whether the set is there and takes the elements that the table asks for, in the network
/// namespace of the calling thread.
fn probe(set: &Named<NftSet>) -> Result<(), StartError> {
    let opened = members(set).map(|members| elements::open(&members));
    opened.map_or(Ok(()), |opened| opened.map(drop)).map_err(|error| named(set, error))
}

impl SinkKind for NftSets {
    fn sections(&self) -> &'static [&'static Section] {
        &[NftSet::SECTION]
    }

    fn places(&self, config: &Config) -> Vec<(usize, String)> {
        let sets = sets(config).into_iter();
        let of = |set: Named<NftSet>| {
            place_of(config, set.keys.labels.iter(), &format!("nftset {}", set.name))
        };
        sets.flat_map(of).collect()
    }

    fn kernel_parts(&self, config: &Config) -> Vec<KernelPart> {
        let part = |set: Named<NftSet>| {
            let name = set.keys.set.as_ref().map_or(String::new(), ToString::to_string);
            KernelPart {
                check: "nftset",
                probed: probe(&set),
                subject: set.name,
                done: format!("{name} takes elements"),
            }
        };
        sets(config).into_iter().map(part).collect()
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let sets = sets(start.config);
        if start.replay.is_some() || sets.is_empty() {
            return Ok(None);
        }
        let updates = elements::kernel_updates();
        let mut writers = Vec::new();
        for set in &sets {
            let words = words(set, &task_names(start.config), start.labels)?;
            let Some(members) = members(set) else {
                continue;
            };
            let (socket, key) = elements::open(&members).map_err(|error| named(set, error))?;
            let write = elements::writer(&members, socket, key, updates);
            let thread = format!("nftset-{}", writers.len());
            let writer = Writer::start(&thread, words.into_iter(), set.keys.queue, write)?;
            writers.push((Some(set.name.clone()), Arc::new(writer)));
        }
        Ok(Some(Box::new(Control {
            writers: Writers::new(writers, 0),
            labels: start.labels.to_vec(),
        })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        Rights::of_netfilter(!sets(config).is_empty())
    }

    fn check_labels(&self, config: &Config, labels: &[Arc<[Label]>]) -> Result<(), Error> {
        let (sets, tasks) = (sets(config), task_names(config));
        sets.iter().try_for_each(|set| words(set, &tasks, labels).map(drop))
    }

    fn empty_report(&self) -> Report {
        Report { metrics: FIGURES.families(&[]), ..Report::default() }
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        sums.get("nftset_written")?;
        let names = ["nftset_written", "nftset_refreshed", "nftset_not_found"];
        let [written, refreshed, not_found] =
            names.map(|name| grouped(sums.get(name).copied().unwrap_or_default()));
        Some(format!(
            "nftset    {written} elements written, {refreshed} refreshed, {not_found} whose set is \
             gone"
        ))
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("nftset_lost", "elements of sets"))
    }
}

struct Control {
    /// In the order of the configuration, by the names of the tables.
    writers: Writers,
    /// By task.
    labels: Vec<Arc<[Label]>>,
}

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        let half = self.writers.half(Places::of_labels(&self.labels));
        Some(Box::new(WriterSink { replaces: false, ..half }))
    }

    fn report(&self) -> Report {
        let rows = self.writers.rows();
        report(&rows, self.writers.missing(&rows))
    }

    fn explain(&self, flow: &FlowName, classes: &[Option<u16>]) -> Vec<Written> {
        let places = Places::of_labels(&self.labels);
        let classes = (0..).map(TaskId).zip(classes);
        let labels: Vec<u16> =
            classes.filter_map(|(task, class)| places.of_class(task, (*class)?)).collect();
        let rows = self.writers.all.iter();
        rows.map(|(name, writer)| {
            let table = format!("nftset.{}", name.as_deref().unwrap_or_default());
            let explained = Explained {
                what: table.clone(),
                done: "the set has the element",
                gone: "the set is gone; `fenxi check` says how to add it",
                table: &table,
                shown: &|_| String::new(),
            };
            let mut adding = labels.iter().filter(|&&place| writer.word_of(place) != 0);
            let place = adding.next().or(labels.first()).copied();
            explained.written(writer, tuple(flow, self.writers.zone), place, |_| true)
        })
        .collect()
    }

    fn prepare(&self, now: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let sets = sets(next);
        if self::sets(now) == sets {
            return Ok(None);
        }
        // A reload changes neither the sets nor their order.
        let tasks = task_names(next);
        let sets = sets.iter().map(|set| words(set, &tasks, &self.labels));
        let sets: Vec<_> = sets.collect::<Result<_, _>>()?;
        let writers = self.writers.all.clone();
        Ok(Some(Box::new(move || {
            for ((_, writer), words) in writers.iter().zip(sets) {
                writer.change(words.into_iter());
            }
        })))
    }

    fn finish(&self, ended: Instant) -> Result<(), Failure> {
        self.writers.finish(ended);
        Ok(())
    }
}

fn report(rows: &[Row<'_>], missing: i64) -> Report {
    type Of = fn(&UpdateCounts) -> u64;
    // With the tables that something happened to, and why.
    let lost = |what, of: Of, why: &dyn Fn(&UpdateCounts) -> String| {
        let hit = rows.iter().filter(|(_, counts)| of(counts) > 0);
        let texts =
            hit.map(|(name, counts)| format!("nftset.{}{}", name.unwrap_or_default(), why(counts)));
        let why = texts.collect::<Vec<_>>().join(", ");
        Lost { what, count: rows.iter().map(|(_, counts)| of(counts)).sum(), why }
    };
    let nothing = |_: &UpdateCounts| String::new();
    let report = FIGURES.report(rows, missing);
    let sums = &report.live_summary;
    Report {
        losses: vec![
            lost(
                "a set of nftables is gone; `fenxi check` says how to add it, and fenxi goes on as \
                 soon as it is back",
                |counts| counts.not_found,
                &nothing,
            ),
            lost(
                "a set of nftables is full; declare it with a larger size",
                |counts| counts.failed_by(Cause::Full),
                &nothing,
            ),
            lost(
                "the kernel refuses elements of sets",
                |counts| counts.failed() - counts.failed_by(Cause::Full),
                &|counts| format!(": {}", newest_error(counts)),
            ),
            lost(
                "elements of sets are dropped because their queue is full; see nftset.NAME.queue",
                |counts| counts.dropped,
                &nothing,
            ),
        ],
        live_text: Some(format!(
            "nftset: {} elements written, {} refreshed, {} of the other family, {} whose set is \
             gone, {} refused, {} dropped",
            sums[1].1, sums[2].1, sums[3].1, sums[4].1, sums[5].1, sums[6].1
        )),
        ..report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_takes_labels_of_several_tasks() {
        let sets = ["nftset.a.set=inet t s", "nftset.a.labels=[\"TLS\", \"device.camera\"]"];
        let sets = sets.map(str::to_owned);
        let config = super::super::known(config::Sources::named(None, &sets)).load();
        let set = super::sets(&config.unwrap().config).remove(0);
        let label = |name: &str, taxonomy: &str| Label {
            name: name.to_owned(),
            taxonomy: taxonomy.to_owned(),
            target: String::new(),
        };
        let labels = [
            Arc::from([label("DNS", ""), label("TLS", "")]),
            Arc::from([label("TLS", ""), label("cam", "camera")]),
        ];
        let tasks = ["protocol", "device"].map(str::to_owned);
        assert_eq!(words(&set, &tasks, &labels).unwrap(), [0, 1, 0, 1]);
        assert!(words(&set, &tasks[..1], &labels[..1]).is_err());
    }
}
