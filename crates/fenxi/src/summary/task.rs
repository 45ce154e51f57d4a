//! A task in the summary of several.

use std::collections::BTreeMap;

use analytics::Counters;
use dataplane::tasks::TaskNames;
use flowmgr::DepthCounters;

use super::series::{Cache, Device, Phases, Series, Slo};
use super::times::Quantiles;
use super::{Batches, batches, by_depth, decided_by_depth, labels_line};
use crate::outcome::RunOutcome;

printed! {
    Task(names: &TaskNames, depths: &[DepthCounters], counters: &Counters) [
        let labelled = depths.first().map_or(&[][..], |first| &first.flows_labelled);
        let flows = names.classes.iter().cloned().zip(labelled.iter().copied());
        let (asked, decided) = decided_by_depth(&names.depths, depths);
    ] {
        name: String = names.name.to_string(),
        series: Series = Series::new(depths, counters),
        labels: BTreeMap<String, u64> = flows.collect(),
        /// Numbers of packets after which the model is asked.
        #[serde(skip)]
        depths: Vec<usize> = asked,
        /// Flows that the answer to each depth decided.
        decided_by_depth: Vec<u64> = decided,
        batches: BTreeMap<&'static str, Batches> = batches(counters),
        cache: Cache = Cache::new(&counters.cache),
        devices: Vec<Device> = counters.devices.iter().map(Device::new).collect(),
        phases_ms: Phases = Phases::new(&counters.phases),
        slo: Slo = Slo::new(&counters.slo),
        time_to_label_ms: Quantiles = Quantiles::from_us(&counters.time_to_label_us()),
    }
}

impl Task {
    pub fn all(outcome: &RunOutcome) -> Vec<Task> {
        if outcome.names.len() < 2 {
            return Vec::new();
        }
        let mut depths = outcome.flows.depths.as_slice();
        let tasks = outcome.names.iter().enumerate().map(|(number, names)| {
            let (own, others) = depths.split_at(names.depths.len().min(depths.len()));
            depths = others;
            // There are no counters if no model was opened.
            let none = Counters::none();
            Task::new(names, own, outcome.tasks.get(number).unwrap_or(&none))
        });
        tasks.collect()
    }

    /// Writes the name, and an indented block below it.
    pub fn write_text(&self, page: &mut String) -> std::fmt::Result {
        use std::fmt::Write as _;
        let mut block = String::new();
        self.series.write_text(&mut block)?;
        self.cache.write_text(&mut block)?;
        labels_line(&self.labels, &mut block)?;
        if self.decided_by_depth.len() > 1 {
            let decided = by_depth(&self.depths, &self.decided_by_depth);
            writeln!(block, "decided   {decided}")?;
        }
        for device in &self.devices {
            device.write_text(&mut block)?;
        }
        self.slo.write_text(&mut block)?;
        writeln!(block, "times     to label {} ms", self.time_to_label_ms)?;
        writeln!(page, "task      {}", self.name)?;
        block.lines().try_for_each(|line| writeln!(page, "  {line}"))
    }
}
