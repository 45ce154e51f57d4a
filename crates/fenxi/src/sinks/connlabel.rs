//! Labels of the kernel's connections (`ct label`): named bits. Several writers may each own some.
//!
//! A connection gets one label of `connlabel.class` for each task, by the flow's label; its other
//! labels stay as they are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use config::kind::{Kind, integer};
use config::origin::Origin;
use config::{Config, Keyed, Section, Setting, Settings, stored};
use dataplane::Error;
use dataplane::sink::Sink;
use flowmgr::TaskId;
use flowmgr::record::FlowName;
use netfilter::connections::{self, Wording};
use netfilter::connlabel::{LABELS, Names, PLACES, default_file};
use netfilter::conntrack::Change;
use netfilter::counts::{Cause, UpdateCounts};
use policy::{Label, LabelRule, Names as LabelNames};

use super::netfilter::{
    ConnectionWriter, Explained, Figures, NO_CONNECTION, OF_CONNECTIONS, Places, Row, Writers,
    connections_line, connections_sentence, newest_error, tuple,
};
use super::{
    Commit, KernelPart, Lost, Report, Rights, SinkControl, SinkKind, Start, Sums, place_of,
    task_names,
};
use crate::exit::Failure;
use crate::protocol::Written;

const WORDING: Wording = Wording { doing: "labelling connections", what: "connection labels" };

const NOTHING: Change = Change::Labels { bits: 0, mask: 0 };

const FIGURES: Figures = Figures {
    sink: "connlabels",
    unit: "labels",
    total: [
        "fenxi_connlabels_total",
        "Labels of connections (connlabel.class): written; kept, the connection had one of them \
         already; not_found, no connection has the flow's addresses; failed; dropped, the queue \
         was full.",
    ],
    failed: [
        "fenxi_connlabels_failed_total",
        "Labels of connections that the kernel refused, by cause; no_labels, no rule of \
        nftables used ct label.",
    ],
    waiting: ["fenxi_connlabels_waiting", "Labels of connections that wait to be written."],
    latency: [
        "fenxi_connlabel_latency_seconds",
        "Time from a label to the kernel's confirmation that the connection has it.",
    ],
    fates: OF_CONNECTIONS,
    causes: &[Cause::Permission, Cause::NoMemory, Cause::NoLabels, Cause::Unanswered, Cause::Other],
    labels: [&[], &["outcome"], &["cause"]],
    sums: &[
        "connlabels_asked",
        "connlabels_written",
        "connlabels_kept",
        "connlabels_not_found",
        "connlabels_failed",
        "connlabels_dropped",
    ],
    status: (4, "connlabels_lost"),
};

config::section! {
    /// Labels of connections.
    pub struct Connlabel = One "connlabel", checked by check;

    /// mode mark and tap: label to label of the connection (ct label), of which a connection gets
    /// one for each task; labels not named here leave connections as they are; a label may be a
    /// taxonomy, and "task.label" names the label of a task
    class: Vec<ConnlabelMapping> = live "class", Kind::Map(&Kind::Text), "{}",
        "a name in connlabel.file, or a number from 0 to 127 as text" => class;
    /// the file that names labels of connections; empty: /etc/connlabel.conf, which nft reads, or
    /// /etc/xtables/connlabel.conf
    file: Option<PathBuf> = restart "file", Kind::Text, "\"\"", "path" => Setting::file;
    /// whether a label takes the place of one of connlabel.class that the connection has already;
    /// false: that one stays
    overwrite: bool = live "overwrite", Kind::Bool, "false", "";
    /// how many labels may wait to be written; more are dropped and counted
    queue: usize = restart "queue", integer(64, 1 << 20), "16384", "updates";
}

#[derive(Debug, Clone, PartialEq)]
pub struct ConnlabelMapping {
    /// Label of a model, or a taxonomy.
    pub label: String,
    /// Label of the connection: its name or its number.
    pub connlabel: String,
    pub origin: Origin,
}

fn class(setting: &Setting) -> Result<Vec<ConnlabelMapping>, String> {
    setting.rows(|label, connlabel, entry| ConnlabelMapping {
        label: label.to_owned(),
        connlabel,
        origin: entry.origin.clone(),
    })
}

fn check(settings: &Settings, problems: &mut Vec<String>) {
    stored::<Connlabel>(settings, problems);
    let has_labels = !settings.setting("connlabel.class").entries.is_empty();
    settings.rule(
        &["connlabel.class", "io.mode"],
        has_labels && settings.word("io.mode") == "inline",
        "impossible combination: inline forwards past the kernel, which has no connections to \
         label; use mode mark, or leave the table out",
        problems,
    );
}

/// Labels of connections, where `connlabel.class` has entries.
pub struct Connlabels;

#[cfg(test)]
pub fn class_labels(
    config: &Config,
    labels: &[Arc<[Label]>],
) -> Result<Option<ClassLabels>, Error> {
    ClassLabels::from_config(config, labels)
}

/// Which label of the connection each class gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassLabels {
    /// By task and class.
    by_task: Vec<Vec<Option<u8>>>,
    overwrites: bool,
}

/// For each task the labels that are ours.
type Masks = [u128; cring::TASKS_MAX];

/// The task of a writer's word, and the bit of the connection's label.
fn parts(word: u64) -> (usize, u64) {
    ((word >> 8) as usize, (word & 0xff).saturating_sub(1))
}

impl ClassLabels {
    /// As [`ClassLabels::new`], with labels by task.
    fn from_config(config: &Config, labels: &[Arc<[Label]>]) -> Result<Option<ClassLabels>, Error> {
        let tasks = task_names(config);
        ClassLabels::new(
            &config.section(),
            &LabelNames { labels: labels.to_vec(), tasks, ..LabelNames::default() },
        )
    }

    /// `None`: no label is asked for.
    fn new(config: &Connlabel, labels: &LabelNames) -> Result<Option<ClassLabels>, Error> {
        if config.class.is_empty() {
            return Ok(None);
        }
        let names = names(config)?;
        let rule = |row: &ConnlabelMapping| {
            let bit = names
                .bit(&row.connlabel)
                .ok_or_else(|| Error::Config(unknown(config, row, &names)))?;
            Ok(LabelRule {
                label: row.label.clone(),
                action: Some(bit),
                required: true,
                origin: format!("{}: connlabel.class", row.origin),
            })
        };
        let rules: Vec<_> = config.class.iter().map(rule).collect::<Result<_, Error>>()?;
        let by_task = policy::by_task(&rules, labels, Option::or)
            .map_err(|error| Error::Config(error.to_string()))?;
        Ok(Some(ClassLabels { by_task, overwrites: config.overwrite }))
    }

    /// A label of the connection and one, so that 0 is none, with its task above.
    fn words(&self) -> impl Iterator<Item = u64> {
        (0..).zip(&self.by_task).flat_map(|(task, by_class)| {
            by_class.iter().map(move |bit| bit.map_or(0, |bit| task << 8 | (u64::from(bit) + 1)))
        })
    }

    fn masks(&self) -> Masks {
        let mut masks = Masks::default();
        for (mask, by_class) in masks.iter_mut().zip(&self.by_task) {
            by_class.iter().flatten().for_each(|bit| *mask |= 1 << bit);
        }
        masks
    }
}

fn file(config: &Connlabel) -> Option<PathBuf> {
    config.file.clone().or_else(default_file)
}

/// The names of labels; none where there is no file, since numbers need none.
fn names(config: &Connlabel) -> Result<Names, Error> {
    let Some(file) = file(config) else {
        return Ok(Names::default());
    };
    Names::read(&file).map_err(|error| {
        Error::Config(format!("connlabel.file: cannot read {}: {error}", file.display()))
    })
}

fn unknown(config: &Connlabel, row: &ConnlabelMapping, names: &Names) -> String {
    let (origin, label, connlabel) = (&row.origin, &row.label, &row.connlabel);
    let start =
        format!("{origin}: connlabel.class.{label}: \"{connlabel}\" is no number below {LABELS}");
    match file(config) {
        Some(file) => {
            let names: Vec<_> = names.all().collect();
            let file = file.display();
            format!(
                "{start} and no name in {file} ({}); add a line such as \"9 {connlabel}\" there",
                names.join(", ")
            )
        }
        None => format!(
            "{start}, and there is no file of names; write a line such as \"9 {connlabel}\" to {}",
            PLACES[0]
        ),
    }
}

fn is_wanted(config: &Config) -> bool {
    !config.section::<Connlabel>().class.is_empty()
}

impl SinkKind for Connlabels {
    fn sections(&self) -> &'static [&'static Section] {
        &[Connlabel::SECTION]
    }

    fn places(&self, config: &Config) -> Vec<(usize, String)> {
        let class = config.section::<Connlabel>().class;
        place_of(config, class.iter().map(|row| &row.label), "connlabel")
    }

    fn kernel_parts(&self, config: &Config) -> Vec<KernelPart> {
        let part = is_wanted(config).then(|| KernelPart {
            check: "connlabel",
            subject: "ctnetlink".to_owned(),
            probed: connections::open(NOTHING, WORDING).map(drop),
            done: "the kernel accepts labels of connections from this process".to_owned(),
        });
        part.into_iter().collect()
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        if start.replay.is_some() {
            return Ok(None);
        }
        let config: Connlabel = start.config.section();
        let Some(labels) = ClassLabels::from_config(start.config, start.labels)? else {
            return Ok(Some(Box::new(Off)));
        };
        let masks = Arc::new(Mutex::new(labels.masks()));
        let shared = masks.clone();
        let writer = ConnectionWriter::start(
            "connlabels",
            (NOTHING, WORDING),
            config.queue,
            labels.words(),
            labels.overwrites,
            move |word| {
                let (task, bit) = parts(word);
                let masks = shared.lock().unwrap_or_else(PoisonError::into_inner);
                Change::Labels { bits: 1 << bit, mask: masks[task] }
            },
        )?;
        Ok(Some(Box::new(Control {
            writers: Writers::new(vec![(None, writer.words.clone())], start.config.mark.zone),
            writer,
            masks,
            labels: start.labels.to_vec(),
        })))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        Rights::of_netfilter(is_wanted(config))
    }

    fn check_labels(&self, config: &Config, labels: &[Arc<[Label]>]) -> Result<(), Error> {
        ClassLabels::from_config(config, labels).map(drop)
    }

    fn empty_report(&self) -> Report {
        Report { metrics: FIGURES.families(&[(None, UpdateCounts::none())]), ..Report::default() }
    }

    fn status_line(&self, sums: &Sums) -> Option<String> {
        sums.get("connlabels_asked")?;
        let names = ["connlabels_written", "connlabels_kept", "connlabels_not_found"];
        let sums = names.map(|name| sums.get(name).copied().unwrap_or_default());
        Some(connections_line("connlabels", sums))
    }

    fn losses(&self) -> Option<(&'static str, &'static str)> {
        Some(("connlabels_lost", "connlabels"))
    }
}

/// A run that writes no labels of connections: it has neither the right nor the thread, and a
/// reload cannot give them.
struct Off;

impl SinkControl for Off {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        Connlabels.empty_report()
    }

    fn prepare(&self, _: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        match is_wanted(next) {
            false => Ok(None),
            true => Err(Error::Config(
                "connlabel.class: it was empty at the start; restart fenxi to write labels of \
                 connections"
                    .to_owned(),
            )),
        }
    }
}

struct Control {
    /// Has only the writer below.
    writers: Writers,
    writer: ConnectionWriter,
    masks: Arc<Mutex<Masks>>,
    /// By task.
    labels: Vec<Arc<[Label]>>,
}

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(self.writers.half(Places::of_labels(&self.labels))))
    }

    fn report(&self) -> Report {
        let rows = self.writers.rows();
        report(&rows, self.writers.missing(&rows))
    }

    fn explain(&self, flow: &FlowName, classes: &[Option<u16>]) -> Vec<Written> {
        let places = Places::of_labels(&self.labels);
        let masks = *self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = (0..).map(TaskId).zip(classes).zip(masks).filter(|(_, mask)| *mask != 0);
        tasks
            .map(|((task, class), _)| {
                let explained = Explained {
                    what: "connlabel".to_owned(),
                    done: "the connection has the label",
                    gone: NO_CONNECTION,
                    table: "connlabel.class",
                    shown: &|word| parts(word).1.to_string(),
                };
                let place = class.and_then(|class| places.of_class(task, class));
                let is_meant = |word| parts(word).0 == task.index();
                let tuple = tuple(flow, self.writers.zone);
                explained.written(&self.writer.words, tuple, place, is_meant)
            })
            .collect()
    }

    fn prepare(&self, now: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let after = ClassLabels::from_config(next, &self.labels)?;
        if now.section::<Connlabel>() == next.section() {
            return Ok(None);
        }
        // A table that is empty now leaves the thread without work.
        let after = after.unwrap_or_else(|| ClassLabels {
            by_task: self.labels.iter().map(|labels| vec![None; labels.len()]).collect(),
            overwrites: false,
        });
        let (writer, masks) = (self.writer.clone(), self.masks.clone());
        Ok(Some(Box::new(move || {
            let mut masks = masks.lock().unwrap_or_else(PoisonError::into_inner);
            masks.iter_mut().zip(after.masks()).for_each(|(mask, more)| *mask |= more);
            drop(masks);
            writer.change(after.words(), after.overwrites);
        })))
    }

    fn finish(&self, ended: Instant) -> Result<(), Failure> {
        self.writers.finish(ended);
        Ok(())
    }
}

fn report(rows: &[Row<'_>], missing: i64) -> Report {
    let (_, counts) = &rows[0];
    let no_labels = counts.failed_by(Cause::NoLabels);
    let lost = |what, count, why| Lost { what, count, why };
    Report {
        losses: vec![
            lost(
                "connections have no room for labels",
                no_labels,
                "they began when no rule of nftables used ct label; add one, and new connections \
                 have room"
                    .to_owned(),
            ),
            lost(
                "the kernel refuses labels of connections",
                counts.failed() - no_labels,
                newest_error(counts),
            ),
            Lost::new(
                "labels of connections are dropped because their queue is full; see \
                 connlabel.queue",
                counts.dropped,
            ),
        ],
        live_text: Some(connections_sentence("connlabels", counts)),
        ..FIGURES.report(rows, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<Label> {
        let rows = [("TLS", "web"), ("HTTP", "web"), ("SSH", "remote")];
        let rows = rows.map(|(name, taxonomy)| Label {
            name: name.to_owned(),
            taxonomy: taxonomy.to_owned(),
            target: String::new(),
        });
        rows.to_vec()
    }

    fn config(rows: &[(&str, &str)], file: Option<&Path>) -> Connlabel {
        let row = |(label, connlabel): &(&str, &str)| ConnlabelMapping {
            label: (*label).to_owned(),
            connlabel: (*connlabel).to_owned(),
            origin: Origin::Set,
        };
        Connlabel {
            class: rows.iter().map(row).collect(),
            file: file.map(Path::to_owned),
            overwrite: false,
            queue: 64,
        }
    }

    #[test]
    fn what_has_no_connection_is_lost_as_with_marks() {
        let mut counts = UpdateCounts::none();
        (counts.asked, counts.written, counts.not_found, counts.dropped) = (7, 4, 2, 1);
        let status = report(&[(None, counts)], 0).status;
        assert!(status.contains(&("connlabels_lost", 3)), "{status:?}");
    }

    /// The labels of the only task.
    fn new(config: &Connlabel, labels: Vec<Label>) -> Result<Option<ClassLabels>, Error> {
        let names = LabelNames { labels: vec![labels.into()], ..LabelNames::default() };
        ClassLabels::new(config, &names)
    }

    #[test]
    fn labels_of_two_tasks_have_masks_of_their_own() {
        let label = |name: &str| Label {
            name: name.to_owned(),
            taxonomy: String::new(),
            target: String::new(),
        };
        let by_task = vec![labels().into(), Arc::from([label("TLS"), label("camera")])];
        let tasks = ["protocol", "device"].map(str::to_owned).to_vec();
        let names = LabelNames { labels: by_task, tasks, ..LabelNames::default() };
        let rows = [("TLS", "1"), ("device.TLS", "2"), ("camera", "3"), ("protocol.web", "4")];
        let all = ClassLabels::new(&config(&rows, None), &names).unwrap().unwrap();
        assert_eq!(all.by_task, [vec![Some(1), Some(4), None], vec![Some(2), Some(3)]]);
        assert_eq!(all.masks()[..2], [1 << 1 | 1 << 4, 1 << 2 | 1 << 3]);
        assert_eq!(all.words().map(parts).collect::<Vec<_>>()[3..], [(1, 2), (1, 3)]);
        let wrong = ClassLabels::new(&config(&[("device.camra", "1")], None), &names);
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.ends_with("; of task device: TLS, camera; did you mean device.camera?"));
    }

    #[test]
    fn classes_get_labels_by_name_number_and_taxonomy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "5 browsing\n127 shell\n").unwrap();
        let of = |rows: &[_]| new(&config(rows, Some(file.path())), labels());
        let all = of(&[("web", "browsing"), ("SSH", "shell"), ("HTTP", "0")]);
        let all = all.unwrap().unwrap();
        assert_eq!(all.words().collect::<Vec<_>>(), [6, 1, 128]);
        assert_eq!(all.masks()[0], 1 << 127 | 1 << 5 | 1);
        assert_eq!(of(&[]).unwrap(), None);
        let error = |rows: &[_]| of(rows).unwrap_err().to_string();
        let wrong = error(&[("SSH", "shel\u{1b}l")]);
        assert!(wrong.contains("no name in") && wrong.contains("(browsing, shell)"), "{wrong}");
        assert!(error(&[("SSH", "128")]).contains("no number below 128"));
        assert!(error(&[("SHS", "1")]).contains("the model has no label \"SHS\""));
        let missing = config(&[("SSH", "1")], Some(Path::new("/nowhere")));
        let error = new(&missing, labels()).unwrap_err().to_string();
        assert!(error.starts_with("connlabel.file: cannot read /nowhere"), "{error}");
    }

    #[test]
    fn a_reload_cannot_begin_to_label_connections() {
        let load = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let sources = super::super::known(config::Sources::named(None, &sets));
            sources.load().unwrap().config
        };
        let (without, with) = (load(&[]), load(&["connlabel.class.TLS=\"7\""]));
        assert!(Off.prepare(&without, &without).unwrap().is_none());
        let error = Off.prepare(&without, &with).err().unwrap().to_string();
        assert!(error.contains("restart fenxi"), "{error}");
    }
}
