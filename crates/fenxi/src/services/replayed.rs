//! The services of a replay, whose memory is its own: only their sums are of interest, at the end.

use std::sync::Arc;

use config::Config;
use config::when::{Term, shortened};
use dataplane::inline::FlowManager;
use dataplane::placement::Thread;
use dataplane::tasks::OpenTask;

use super::control::{Change, Running};
use super::meaning::{Meaning, check_labels, terms};
use super::memory::Rights;
use super::section::services;
use crate::exit::Failure;
use crate::protocol::ServiceRow;

/// The services of a replay.
pub struct Replayed(Running);

impl Replayed {
    /// Gives the flow managers their services. `by_packets`: the outcome must repeat.
    ///
    /// # Errors
    /// No memory, or a service by a label that the models do not have, or not in time.
    pub fn open(
        config: &Config,
        tasks: &[OpenTask],
        by_packets: bool,
        managers: &mut [(Thread, FlowManager)],
    ) -> Result<Replayed, Failure> {
        let (wanted, labels) = (services(config), OpenTask::all_labels(tasks));
        check_labels(&wanted, config, &labels)?;
        for (service, term) in wanted.iter().flat_map(terms) {
            let Term::Label { task, .. } = term else { continue };
            let is_late = tasks.iter().any(|it| it.name == *task && !it.is_inline);
            if is_late && by_packets {
                return Err(Failure::config(format!(
                    "{}: service.{}.when: {}: a replay at full speed has this label in time only \
                     where flow workers run the model; set pipeline.layout = \"1:0:0\", or add \
                     --speed real",
                    service.origin,
                    service.name,
                    shortened(&term.to_string())
                )));
            }
        }
        let meaning = Arc::new(Meaning::new(config, &labels));
        let mut running = Running::new(config, Rights::of_replay(config), meaning, managers);
        if let Some(Change { for_workers, places }) = running.prepare(&wanted)? {
            for ((_, manager), mut change) in managers.iter_mut().zip(for_workers) {
                change.by_packets = by_packets;
                manager.change_services(&mut change);
            }
            running.keep(places);
        }
        Ok(Replayed(running))
    }

    /// Sums per service and egress, once the workers have ended.
    pub fn rows(&self) -> Vec<ServiceRow> {
        self.0.rows(None)
    }
}
