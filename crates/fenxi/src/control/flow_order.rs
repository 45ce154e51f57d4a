//! Which live flows are wanted, and which of them come first: for `fenxi ctl flows`, `fenxi top`
//! and the page.

use std::cmp::Ordering;
use std::net::IpAddr;

use dataplane::tasks::TaskNames;
use flowmgr::Standing;
use flowmgr::record::FlowName;
use policy::{Dscp, NotADscp};

use super::flow_tables::{LiveFlow, Rate, totals};
use crate::measured::measured;
use crate::names::Names;
use crate::protocol::{Column, FlowFilter, Order};
use crate::sinks::records::behaviour_name;
use crate::sinks::{Dscps, Known, Recent};

/// A [`FlowFilter`] with its label looked up.
#[derive(Debug, Default, PartialEq)]
pub struct Filter {
    /// Classes with the label, each with its task.
    classes: Option<Vec<(usize, u16)>>,
    /// All addresses of the host.
    hosts: Option<Vec<IpAddr>>,
    port: Option<u16>,
    dscp_seen: Option<u8>,
    dscp_set: Option<u8>,
}

impl Filter {
    /// # Errors
    /// No task has this label; there is no such host or DSCP.
    pub fn new(names: &[TaskNames], hosts: &Names, wanted: &FlowFilter) -> Result<Filter, String> {
        let classes = wanted.label.as_deref().map(|label| classes_of(names, label));
        let classes = classes.transpose()?;
        let hosts = wanted.host.as_deref().map(|host| addresses_of(hosts, host)).transpose()?;
        let dscp = |text: &Option<String>| text.as_deref().map(code_point).transpose();
        let (dscp_seen, dscp_set) = (dscp(&wanted.dscp_seen)?, dscp(&wanted.dscp_set)?);
        Ok(Filter { classes, hosts, port: wanted.port, dscp_seen, dscp_set })
    }

    pub fn takes_all(&self) -> bool {
        *self == Filter::default()
    }

    pub fn takes(&self, flow: &LiveFlow) -> bool {
        self.fits(&flow.look.flow, flow.host, flow.dscps, |task| flow.class_of(task))
    }

    pub fn takes_known(&self, known: &Known, host: Option<IpAddr>) -> bool {
        self.fits(&known.flow, host, known.dscps, |task| known.class_of(task))
    }

    fn fits(
        &self,
        flow: &FlowName,
        host: Option<IpAddr>,
        dscps: Dscps,
        class_of: impl Fn(usize) -> Option<u16>,
    ) -> bool {
        let ports = [flow.source.1, flow.destination.1];
        let is_of = |classes: &Vec<(usize, u16)>| {
            classes.iter().any(|&(task, class)| class_of(task) == Some(class))
        };
        let is_host = |hosts: &Vec<IpAddr>| host.is_some_and(|host| hosts.contains(&host));
        self.hosts.as_ref().is_none_or(is_host)
            && self.port.is_none_or(|port| ports.contains(&port))
            && self.dscp_seen.is_none_or(|it| it == dscps.seen)
            && self.dscp_set.is_none_or(|it| Some(it) == dscps.set)
            && self.classes.as_ref().is_none_or(is_of)
    }
}

fn code_point(dscp: &str) -> Result<u8, String> {
    let found = dscp.parse().map(Dscp::code_point);
    found.map_err(|error: NotADscp| format!("no DSCP \"{dscp}\"; {error}"))
}

/// The addresses of a host by one of them, by its name or by its MAC address.
fn addresses_of(names: &Names, host: &str) -> Result<Vec<IpAddr>, String> {
    let known = names.snapshot();
    let addresses = match host.parse() {
        Ok(address) => known.host(address).map_or(vec![address], |host| host.addresses.clone()),
        Err(_) => known.addresses_of(host),
    };
    match addresses.is_empty() {
        true => Err(format!("no host \"{host}\"; `fenxi ctl hosts` lists those that are known")),
        false => Ok(addresses),
    }
}

/// Classes with this label in any case, each with the index of its task. An exact match comes
/// first.
fn classes_of(names: &[TaskNames], label: &str) -> Result<Vec<(usize, u16)>, String> {
    let of_all = |is_it: &dyn Fn(&str) -> bool| {
        let tasks = names.iter().enumerate();
        let found = tasks.filter_map(|(task, names)| {
            let class = names.classes.iter().position(|class| is_it(class))?;
            Some((task, class as u16))
        });
        found.collect::<Vec<_>>()
    };
    let exact = of_all(&|class| class == label);
    let found = match exact.is_empty() {
        true => of_all(&|class| class.to_lowercase() == label.to_lowercase()),
        false => exact,
    };
    if !found.is_empty() {
        return Ok(found);
    }
    let labels: Vec<String> = names.iter().map(|task| task.classes.join(", ")).collect();
    let labels = labels.join("; ");
    Err(format!("no label \"{label}\"; there are {labels}"))
}

/// The first `top` of the flows in this order.
pub fn first<'a>(
    flows: impl Iterator<Item = &'a LiveFlow>,
    order: Order,
    (recent, names): (&Recent, &'a [TaskNames]),
    top: usize,
) -> Vec<&'a LiveFlow> {
    type Keyed<'a> = (Option<Key<'a>>, &'a LiveFlow);
    let with_key = |flow| (key(order.by, flow, recent, names), flow);
    let mut flows: Vec<Keyed<'a>> = flows.map(with_key).collect();
    let compare = |(a, one): &Keyed<'a>, (b, other): &Keyed<'a>| {
        order.compare(a, b).then_with(|| by_rate(one, other))
    };
    if flows.len() > top && top > 0 {
        flows.select_nth_unstable_by(top - 1, compare);
    }
    flows.truncate(top);
    flows.sort_unstable_by(compare);
    flows.into_iter().map(|(_, flow)| flow).collect()
}

/// Highest rate first, then most bytes, then oldest.
fn by_rate(a: &LiveFlow, b: &LiveFlow) -> Ordering {
    let bytes = |flow: &LiveFlow| totals(&flow.look.counts)[1];
    Rate::order(&a.rate, &b.rate)
        .then(bytes(b).cmp(&bytes(a)))
        .then(a.look.flow.flow_id.cmp(&b.look.flow.flow_id))
}

/// What an order compares.
#[derive(Debug, PartialEq, PartialOrd)]
pub enum Key<'a> {
    Number(f64),
    Name(&'a str),
    End(IpAddr, u16),
}

fn key<'a>(
    column: Column,
    flow: &LiveFlow,
    recent: &Recent,
    names: &'a [TaskNames],
) -> Option<Key<'a>> {
    let look = &flow.look;
    let decision = match look.standing {
        Standing::Labelled(decision) => Some(decision),
        _ => None,
    };
    let total = |of: usize| {
        let mut counts = recent.reported(look.flow.flow_id);
        crate::sinks::add_counts(&mut counts, &look.counts);
        Some(Key::Number(totals(&counts)[of] as f64))
    };
    let told = || look.measured.as_ref().map(measured);
    let end = |(address, port)| Some(Key::End(address, port));
    match column {
        Column::Rate | Column::Flows => Some(Key::Number(flow.rate.bytes)),
        Column::Packets => total(0),
        Column::Bytes => total(1),
        Column::Age => Some(Key::Number(flow.now_us.saturating_sub(look.flow.first_us) as f64)),
        Column::Label => {
            let class = decision.and_then(|it| names[0].classes.get(usize::from(it.class)));
            class.map(|class| Key::Name(class.as_str()))
        }
        Column::Confidence => decision.map(|it| Key::Number(it.confidence.into())),
        Column::By => decision.map(|it| Key::Name(it.decided_by.name())),
        Column::Protocol => Some(Key::Number(look.flow.protocol.into())),
        Column::From => end(look.flow.source),
        Column::To => end(look.flow.destination),
        Column::Host => flow.host.map(|host| Key::End(host, 0)),
        Column::Dscp => Some(Key::Number(flow.dscps.set.unwrap_or(flow.dscps.seen).into())),
        Column::Does => behaviour_name(look.behaviour).map(Key::Name),
        Column::Rtt => told()?.round_trip_us().map(|us| Key::Number(us as f64)),
        Column::Retransmits => told()?.retransmits().map(|count| Key::Number(count as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Host;

    #[test]
    fn a_host_is_wanted_by_any_address_its_name_or_its_mac_address() {
        let names = Names::default();
        let addresses = ["10.0.0.5", "fd00::5"].map(|address| address.parse().unwrap()).to_vec();
        let mac = "00:16:3e:00:00:05";
        names.publish(vec![Host {
            name: Some("laptop".into()),
            mac: mac.parse().ok(),
            addresses: addresses.clone(),
            ..Host::default()
        }]);
        for host in ["10.0.0.5", "fd00::5", "Laptop", mac] {
            assert_eq!(addresses_of(&names, host).as_ref(), Ok(&addresses), "{host}");
        }
        let alone = ["10.0.0.7".parse().unwrap()];
        assert_eq!(addresses_of(&names, "10.0.0.7"), Ok(alone.to_vec()));
        assert!(addresses_of(&names, "00:16:3e:00:00:06").is_err());
    }
}
