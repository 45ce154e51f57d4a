//! What the keys of a service mean in a run: tasks, labels and interfaces by number.

use std::sync::Arc;

use config::Config;
use config::checked::{IoMode, Named};
use config::when::{Choice, Term, When, shortened};
use dataplane::Error;
use dataplane::task_check::names;
use flowmgr::{EgressBy, LabelTerm, RuleTerm, ServiceFlows, TaskId, name_hash};
use packetio::interface::index_of;
use policy::{Label, listed};

use super::section::{Divided, ServiceKeys};

/// Numbers that no interface and no VLAN has.
const NO_PORT: u8 = u8::MAX;
const NO_VLAN: u16 = u16::MAX;

/// What keys of services may name, by number.
pub struct Meaning {
    tasks: Vec<String>,
    labels: Vec<Arc<[Label]>>,
    interfaces: Vec<String>,
    /// Inline, the interfaces by their indices in the kernel.
    pub out_ports: Vec<(u32, String)>,
}

impl Meaning {
    /// `labels` are by task.
    pub fn new(config: &Config, labels: &[Arc<[Label]>]) -> Meaning {
        let is_inline = config.io.mode == IoMode::Inline;
        let interfaces = config.io.interfaces.iter().filter(|_| is_inline);
        let out_ports = interfaces.filter_map(|name| Some((index_of(name)?, name.clone())));
        Meaning {
            tasks: config.tasks.iter().map(|task| task.name.clone()).collect(),
            labels: labels.to_vec(),
            interfaces: config.io.interfaces.clone(),
            out_ports: out_ports.collect(),
        }
    }

    /// The flows of a service, whose keys were checked.
    pub fn flows(&self, keys: &ServiceKeys) -> ServiceFlows {
        let mut flows = ServiceFlows {
            ports: keys.ports.clone(),
            protocol: keys.protocol,
            egress: self.egress(keys.egress),
            ..ServiceFlows::default()
        };
        for term in &keys.when.terms {
            match term {
                Term::InPort(names) => {
                    let interfaces = self.interfaces.iter().zip(1..);
                    let named = interfaces.filter(|(interface, _)| names.contains(interface));
                    narrow(&mut flows.in_ports, named.map(|(_, number)| number), NO_PORT);
                }
                Term::Vlan(vlans) => narrow(&mut flows.vlans, vlans.iter().copied(), NO_VLAN),
                Term::Rule(choice) => flows.rules.push(RuleTerm {
                    names: choice.names.iter().map(|name| name_hash(name)).collect(),
                    is_one: choice.is_one,
                }),
                Term::Label { task, labels } => flows.labels.extend(self.label(task, labels)),
                // The check of the section refuses all others.
                _ => {}
            }
        }
        flows
    }

    fn label(&self, task: &str, choice: &Choice) -> Option<LabelTerm> {
        let number = self.tasks.iter().position(|name| name == task)?;
        let labels = self.labels.get(number)?;
        let classes = labels.iter().map(|label| choice.holds(names(choice, labels, label)));
        Some(LabelTerm { task: TaskId(number as u8), is_wanted: classes.collect() })
    }

    fn egress(&self, divided: Divided) -> EgressBy {
        match (divided, self.out_ports.as_slice()) {
            (Divided::Address, _) => EgressBy::Address,
            (Divided::Socket, _) => EgressBy::Socket,
            (Divided::NextHop, _) => EgressBy::NextHop,
            (Divided::OutPort, [(first, _), (second, _)]) => EgressBy::OutPort([*first, *second]),
            // A replay: a capture does not say by which interface packets came in.
            (Divided::OutPort, _) => EgressBy::OutPort([0; 2]),
        }
    }
}

/// Keeps of a list, which is everything while it is empty, what is among these too; `none` where
/// nothing is, as in a replay, which has no interfaces.
fn narrow<T: PartialEq + Copy>(list: &mut Vec<T>, to: impl Iterator<Item = T>, none: T) {
    let is_all = list.is_empty();
    let to = to.filter(|it| is_all || list.contains(it));
    *list = to.collect();
    if list.is_empty() {
        list.push(none);
    }
}

/// Checks that the models have the labels that services name; `labels` are by task.
///
/// # Errors
/// The first that is not there.
pub fn check_labels(
    services: &[Named<ServiceKeys>],
    config: &Config,
    labels: &[Arc<[Label]>],
) -> Result<(), Error> {
    for (service, term) in services.iter().flat_map(terms) {
        let Term::Label { task, labels: choice } = term else { continue };
        let number = config.tasks.iter().position(|it| it.name == *task);
        let Some(labels) = number.and_then(|number| labels.get(number)) else { continue };
        let is_known = |name: &&String| {
            !name.is_empty() && labels.iter().any(|it| it.name == **name || it.taxonomy == **name)
        };
        if let Some(unknown) = choice.names.iter().find(|name| !is_known(name)) {
            return Err(Error::Config(format!(
                "{}: service.{}.when: {}: the model of task {task} has no label \"{}\", and no \
                 taxonomy of that name; it has {}",
                service.origin,
                service.name,
                shortened(&term.to_string()),
                shortened(unknown),
                listed(labels)
            )));
        }
    }
    Ok(())
}

/// The terms of a service, each with it.
pub fn terms(
    service: &Named<ServiceKeys>,
) -> impl Iterator<Item = (&Named<ServiceKeys>, &Term<String>)> {
    let When { terms } = &service.keys.when;
    terms.iter().map(move |term| (service, term))
}
