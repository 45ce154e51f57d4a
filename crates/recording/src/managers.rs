//! The managers of a replay, and the rings between them.

use std::sync::Arc;

use analytics::RingInput;
use cring::Mesh;

use super::header::Header;
use config::layout::Layout;

/// All managers, numbered through the pipelines.
pub struct Managers {
    pub flow: Vec<flowmgr::Manager>,
    /// None until its devices are known.
    pub series: Vec<Option<analytics::Manager>>,
    /// The rings of those that have not started.
    pub inputs: Vec<Option<Vec<RingInput>>>,
}

impl Managers {
    /// As the header has them; the analytics managers start when their devices are known.
    ///
    /// # Errors
    /// Numbers that are out of range; no memory.
    pub fn of(header: &Header, record_series: flowmgr::SeriesShare) -> Result<Managers, String> {
        let layout = Layout::parse(&header.layout).ok_or("layout is not F:A:D")?;
        let count = layout.flow_managers * header.instances;
        let mut managers = Managers {
            flow: Vec::new(),
            series: Vec::new(),
            inputs: Vec::new(),
        };
        for _ in 0..header.instances {
            let rings = layout.rings().into_iter();
            let places = rings.map(|ring| (ring.flow_manager, ring.analytics_manager));
            let rings = Mesh::new(places, header.ring_slots);
            let mut labels = Vec::new();
            for producers in rings.producers {
                let config = flowmgr::Config {
                    record_series,
                    flow_id_first: managers.flow.len() as u64,
                    flow_id_step: count as u64,
                    ..header.flow.clone()
                };
                let manager = flowmgr::Manager::with_rings(config, vec![producers])
                    .map_err(|error| error.to_string())?;
                labels.push(manager.labels());
                managers.flow.push(manager);
            }
            for consumers in rings.consumers {
                let inputs = consumers
                    .into_iter()
                    .map(|(flow_manager, series)| RingInput {
                        series,
                        labels: Arc::clone(&labels[flow_manager]),
                    });
                managers.inputs.push(Some(inputs.collect()));
                managers.series.push(None);
            }
        }
        Ok(managers)
    }

    /// # Errors
    /// There is none of this number.
    pub fn flow(&mut self, number: u32) -> Result<&mut flowmgr::Manager, String> {
        let count = self.flow.len();
        let found = self.flow.get_mut(number as usize);
        found.ok_or_else(|| format!("there is no flow manager {number}, only {count}"))
    }

    /// # Errors
    /// There is none of this number, or not yet.
    pub fn series(&mut self, manager: u32) -> Result<&mut analytics::Manager, String> {
        let found = self.series.get_mut(manager as usize);
        found
            .and_then(Option::as_mut)
            .ok_or_else(|| format!("analytics manager {manager} has not started"))
    }

    /// The only task of an analytics manager.
    ///
    /// # Errors
    /// As [`Managers::series`].
    pub fn task(&mut self, manager: u32) -> Result<&mut analytics::Task, String> {
        let manager = self.series(manager)?;
        Ok(&mut manager.tasks_mut()[0])
    }
}
