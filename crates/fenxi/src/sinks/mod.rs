//! The sinks of a run: the one place where they are listed.

use std::path::Path;
use std::sync::Arc;

use config::Config;
use config::checked::IoMode;
use dataplane::run::Run;
use dataplane::sink::Sink;

use crate::control::flows::{FlowTap, FlowView, flow_view};
use crate::exit::Failure;
use crate::mark::{self, ClassMarks, MarkSink};
use crate::records::{RecordCounts, RecordSender, RecordSink, Reopener};

/// The sinks, as the control thread has them.
#[derive(Default)]
pub struct Sinks {
    /// Mode mark: what writes connection marks.
    pub marks: Option<Arc<mark::Writer>>,
    records: Option<(RecordSink, RecordSender)>,
    tap: Option<FlowTap>,
}

impl Sinks {
    /// Those of a live run: marks, the view of recent flows, and records where `path` is given.
    ///
    /// # Errors
    /// The kernel takes no marks, the file cannot be opened, or `record_series` without records.
    pub fn live(
        config: &Config,
        path: Option<&Path>,
        record_series: bool,
        classes: &Arc<[String]>,
    ) -> Result<Sinks, Failure> {
        let mut sinks = Sinks::default();
        if config.io.mode == IoMode::Mark {
            let marks = ClassMarks::new(&config.mark, classes)
                .map_err(|error| Failure::config(error.to_string()))?;
            let writer = mark::Writer::start(marks, config.mark.queue)?;
            sinks.marks = Some(Arc::new(writer));
        }
        sinks.records = match path {
            Some(path) => Some(RecordSink::start_live(
                path,
                &config.records,
                classes.clone(),
            )?),
            None if record_series => {
                return Err(Failure::usage(
                    "--series puts series into records, and there are none; add --flows FILE or set records.path",
                ));
            }
            None => None,
        };
        Ok(sinks)
    }

    /// Those of a replay: records where `path` is given. `waits`: a full queue holds up the replay. `run` is stopped when
    /// writing breaks off, if the rest is of no use then.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn replay(
        config: &Config,
        path: Option<&Path>,
        waits: bool,
        run: Option<Arc<Run>>,
        classes: &Arc<[String]>,
    ) -> Result<Sinks, Failure> {
        let start =
            |path| RecordSink::start(path, classes.clone(), config.records.queue, waits, run);
        Ok(Sinks {
            records: path.map(start).transpose()?,
            ..Sinks::default()
        })
    }

    /// The view of recent flows, which is a sink from then on.
    pub fn view(&mut self, classes: &Arc<[String]>) -> FlowView {
        let (tap, view) = flow_view(classes.clone());
        self.tap = Some(tap);
        view
    }

    /// The sinks of one flow worker.
    pub fn of_worker(&self) -> Vec<Box<dyn Sink>> {
        let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
        if let Some(marks) = &self.marks {
            sinks.push(Box::new(MarkSink::new(marks.clone())));
        }
        if let Some(tap) = &self.tap {
            sinks.push(Box::new(tap.clone()));
        }
        if let Some((_, sender)) = &self.records {
            sinks.push(Box::new(sender.another()));
        }
        sinks
    }

    /// What became of records.
    pub fn record_counts(&self) -> Arc<RecordCounts> {
        let sink = self.records.as_ref().map(|(sink, _)| sink);
        sink.map(RecordSink::counts).unwrap_or_default()
    }

    /// Where the file of records can be reopened; `None` where there is none.
    pub fn reopener(&self) -> Option<Reopener> {
        self.records.as_ref().and_then(|(sink, _)| sink.reopener())
    }

    /// The workers have ended: waits until all records are written, live for `records.drain_s` at most.
    ///
    /// # Errors
    /// Writing broke off, or records were lost.
    pub fn finish(self) -> Result<(), Failure> {
        let Some((sink, sender)) = self.records else {
            return Ok(());
        };
        drop(sender);
        sink.finish_in_time()
    }
}
