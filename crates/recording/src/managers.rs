//! The managers of a replay.

use analytics::{RingInput, Task};
use config::checked::Pipeline;
use config::layout::Layout;
use dataplane::inline::FlowManager;
use dataplane::pipelines::PacketSide;

use super::header::Header;

/// All managers, numbered through the pipelines.
pub struct Managers {
    pub flow: Vec<FlowManager>,
    pub series: Vec<Series>,
}

/// An analytics manager. It starts when its devices are known.
pub enum Series {
    /// Its rings, by task.
    Waits(Vec<Vec<RingInput>>),
    Works(Box<analytics::Manager>),
}

impl Managers {
    pub fn new(header: &Header, record_series: flowmgr::SeriesShare) -> Result<Managers, String> {
        let pipeline = Pipeline {
            layout: Layout::parse(&header.layout).ok_or("layout is not F:A:D")?,
            instances: header.instances,
            cores: Vec::new(),
        };
        let flow = flowmgr::Config { record_series, ..header.flow.clone() };
        let packets = PacketSide::new(&flow, &pipeline, (header.ring_slots, &[]), header.names())
            .map_err(|error| error.to_string())?;
        let flow = packets.flow_managers.into_iter();
        Ok(Managers {
            flow: flow.map(|(_, manager)| manager).collect(),
            series: packets.series.into_inputs().map(Series::Waits).collect(),
        })
    }

    pub fn flow(&mut self, number: u32) -> Result<&mut FlowManager, String> {
        let count = self.flow.len();
        let found = self.flow.get_mut(number as usize);
        found.ok_or_else(|| format!("there is no flow manager {number}, only {count}"))
    }

    pub fn series(&mut self, number: u32) -> Result<&mut analytics::Manager, String> {
        match self.series.get_mut(number as usize) {
            Some(Series::Works(manager)) => Ok(manager),
            _ => Err(format!("analytics manager {number} has not started")),
        }
    }

    /// Swaps of each task, by the manager that has done most, added up.
    pub fn swaps(&self) -> u64 {
        let mut swaps: Vec<u64> = Vec::new();
        for manager in &self.series {
            if let Series::Works(manager) = manager {
                swaps.resize(manager.tasks().len(), 0);
                let both = swaps.iter_mut().zip(manager.tasks());
                both.for_each(|(most, task)| *most = task.counters().swaps.max(*most));
            }
        }
        swaps.iter().sum()
    }

    pub fn task(&mut self, manager: u32, task: u32) -> Result<&mut Task, String> {
        let tasks = self.series(manager)?.tasks_mut();
        let found = tasks.get_mut(task as usize);
        found.ok_or_else(|| format!("analytics manager {manager} has no task {task}"))
    }
}
