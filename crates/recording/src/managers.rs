//! The managers of a replay, and the rings between them.

use std::sync::Arc;

use analytics::RingInput;
use cring::Mesh;

use super::header::Header;
use config::layout::Layout;

/// All managers, numbered through the pipelines.
pub struct Managers {
    pub flow: Vec<flowmgr::Manager>,
    /// None where no device was open so far.
    pub series: Vec<Option<analytics::Manager>>,
    /// For those.
    pub inlets: Vec<Option<Vec<RingInput>>>,
}

impl Managers {
    /// As the header has them; the analytics managers start when their devices are known.
    ///
    /// # Errors
    /// Numbers that are out of range; no memory.
    pub fn of(header: &Header, record_series: bool) -> Result<Managers, String> {
        let layout = Layout::parse(&header.layout).ok_or("layout is not F:A:D")?;
        let count = layout.flow_managers * header.instances;
        let mut managers = Managers {
            flow: Vec::new(),
            series: Vec::new(),
            inlets: Vec::new(),
        };
        for _ in 0..header.instances {
            let rings = layout.rings().into_iter();
            let places = rings.map(|ring| (ring.flow_manager, ring.analytics_manager));
            let rings = Mesh::new(places, header.ring_slots);
            let mut labels = Vec::new();
            for producers in rings.producers {
                let config = header
                    .flow
                    .config(managers.flow.len(), count, record_series);
                let manager = flowmgr::Manager::with_rings(config, vec![producers])
                    .map_err(|error| error.to_string())?;
                labels.push(manager.labels());
                managers.flow.push(manager);
            }
            for consumers in rings.consumers {
                let inlets = consumers
                    .into_iter()
                    .map(|(flow_manager, series)| RingInput {
                        series,
                        labels: Arc::clone(&labels[flow_manager]),
                    });
                managers.inlets.push(Some(inlets.collect()));
                managers.series.push(None);
            }
        }
        Ok(managers)
    }

    /// # Errors
    /// There is none of this number.
    pub fn lane(&mut self, lane: u32) -> Result<&mut flowmgr::Manager, String> {
        let lanes = self.flow.len();
        let found = self.flow.get_mut(lane as usize);
        found.ok_or_else(|| format!("there is no flow manager {lane}, only {lanes}"))
    }

    /// # Errors
    /// There is none of this number, or not yet.
    pub fn series(&mut self, manager: u32) -> Result<&mut analytics::Manager, String> {
        let found = self.series.get_mut(manager as usize);
        found
            .and_then(Option::as_mut)
            .ok_or_else(|| format!("analytics manager {manager} has not started"))
    }
}
