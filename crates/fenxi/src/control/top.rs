//! The figures of `fenxi top` and the page, and the history of the last minutes.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use console::page::Orders;

use super::collector::Collector;
use super::flow_order::{Filter, Key};
use super::flow_rows;
use super::flow_tables::{FlowTables, Picture, Rate, Sum};
use super::view::View;
use super::{Facts, overview, rows};
use crate::names::Names;
use crate::protocol::{
    CheckRow, Column, FLOWS_MAX, HostRate, LabelRate, Losses, Order, Overview, Point, Top,
};
use crate::sinks::{self, Sinks};

/// Points of the history, and the seconds between two of them: ten minutes.
const POINTS: usize = 120;
const POINT_EVERY_S: u32 = 5;
/// Maximum labels of a point.
const POINT_LABELS: usize = 32;

/// The last minutes of a run.
#[derive(Default)]
pub struct History {
    points: VecDeque<Point>,
    /// Seconds until the next point.
    left_s: u32,
    /// Labelled flows by class at the last point.
    labelled: Vec<u64>,
}

impl History {
    /// Called once a second.
    pub fn tick(&mut self, collector: &Collector, facts: &Facts) {
        if let Some(left_s) = self.left_s.checked_sub(1) {
            self.left_s = left_s;
            return;
        }
        self.left_s = POINT_EVERY_S - 1;
        let now = labelled(collector);
        let before = |class: usize| self.labelled.get(class).copied().unwrap_or(0);
        let names = &facts.labels[0];
        let mut labels: Vec<(String, u64)> = Vec::new();
        for (class, count) in now.iter().enumerate() {
            let came = count.saturating_sub(before(class));
            if came > 0 {
                labels.push((names.shown()[names.place_of(class)].clone(), came));
            }
        }
        labels.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        labels.truncate(POINT_LABELS);
        self.labelled = now;
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        for point in &mut self.points {
            point.ago_s += POINT_EVERY_S;
        }
        self.points.push_back(Point { ago_s: 0, packets_per_s: collector.packets_per_s, labels });
    }
}

/// Flows labelled since the start, by class.
fn labelled(collector: &Collector) -> Vec<u64> {
    let mut sums: Vec<u64> = Vec::new();
    for watched in &collector.flows {
        let given = watched.latest.counters.labels_given();
        sums.resize(sums.len().max(given.len()), 0);
        for (sum, given) in sums.iter_mut().zip(given) {
            *sum += given;
        }
    }
    sums
}

/// The live view of flows that the filter takes, with at most `most` flows and hosts.
pub async fn build(
    view: &View<'_>,
    tables: &mut FlowTables,
    history: &History,
    (filter, orders, most): (&Filter, Orders, usize),
) -> Top {
    let names = &view.facts.names;
    let (most, classes) = (most.min(FLOWS_MAX), &names[0].classes);
    let overview = overview::build(view);
    let (recent, host_names) = (tables.recent.clone(), tables.names.clone());
    let picture = tables.picture().await;
    let recent = recent.lock();
    let chosen = (!filter.takes_all()).then(|| picture.only(|flow| filter.takes(flow)));
    // Flows since the start are not filtered.
    let given = if chosen.is_none() { labelled(view.collector) } else { Vec::new() };
    let picture = chosen.as_ref().unwrap_or(picture);
    let sinks = &view.collector.run_sinks;
    Top {
        state: view.health.state.name().to_owned(),
        version: view.facts.version.to_owned(),
        uptime_s: view.uptime.as_secs_f64(),
        model: overview.model.clone(),
        problems: problems(&view.health.ready),
        packets_per_s: overview.packets_per_s,
        bytes_per_s: view.collector.flow_bytes_per_s,
        flows_now: overview.flows,
        flows_max: overview.flows_max,
        label_p50_ms: overview.label_p50_ms,
        label_p99_ms: overview.label_p99_ms,
        labels: labels(picture, classes, &given, orders.labels),
        hosts: hosts(picture, (sinks, &host_names), classes, (orders.hosts, most)),
        flows: flow_rows::rows(
            picture.flows.iter(),
            orders.flows,
            (&*recent, &names[..], &host_names),
            most,
        ),
        devices: rows::devices(view.collector, names),
        losses: losses(&overview),
        history: history.points.iter().cloned().collect(),
        rules: overview.rules,
        tasks: overview.tasks,
        services: sinks.services(),
    }
}

fn problems(checks: &[CheckRow]) -> Vec<String> {
    let failed = checks.iter().filter(|check| !check.holds);
    failed.map(|check| format!("{}: {}", check.name, check.reason)).collect()
}

/// Labels with flows in the tables or since the start.
fn labels(picture: &Picture, classes: &[String], given: &[u64], order: Order) -> Vec<LabelRate> {
    let mut rates: Vec<(Rate, LabelRate)> = Vec::new();
    let known = (0..classes.len() as u16).map(Some).chain([None]);
    for class in known {
        let sum = picture.classes.get(&class).copied().unwrap_or_default();
        let at = class.map(usize::from);
        let labelled = at.and_then(|at| given.get(at)).copied().unwrap_or(0);
        if sum.flows == 0 && labelled == 0 {
            continue;
        }
        let rate = LabelRate {
            label: at.and_then(|at| classes.get(at)).cloned(),
            flows: sum.flows,
            packets_per_s: sum.rate.packets,
            bytes_per_s: sum.rate.bytes,
            labelled,
        };
        rates.push((sum.rate, rate));
    }
    rates.sort_by(|(a, x), (b, y)| {
        Rate::order(a, b).then((y.flows, y.labelled).cmp(&(x.flows, x.labelled)))
    });
    let mut rates: Vec<LabelRate> = rates.into_iter().map(|(_, rate)| rate).collect();
    rates.sort_by(|a, b| order.compare(&label_key(a, order.by), &label_key(b, order.by)));
    rates
}

fn label_key(rate: &LabelRate, column: Column) -> Option<Key<'_>> {
    match column {
        Column::Label => rate.label.as_deref().map(Key::Name),
        Column::Flows => Some(Key::Number(rate.flows as f64)),
        Column::Packets => Some(Key::Number(rate.packets_per_s)),
        _ => Some(Key::Number(rate.bytes_per_s)),
    }
}

/// The first `most` hosts in this order, all addresses of a host together, with their labels if the
/// model labels hosts, else with the label of their fastest flow.
pub fn hosts(
    picture: &Picture,
    (sinks, names): (&Sinks, &Names),
    classes: &[String],
    (order, most): (Order, usize),
) -> Vec<HostRate> {
    let known = names.snapshot();
    let mut addresses: Vec<_> = picture.hosts.iter().collect();
    addresses.sort_by(|(x, (a, ..)), (y, (b, ..))| Rate::order(&a.rate, &b.rate).then(x.cmp(y)));
    // By the first address of the host that is known; any other address stands for itself.
    let mut hosts: HashMap<IpAddr, HostSum> = HashMap::new();
    for (&address, (sum, highest, class)) in addresses {
        let first = known.host(address).map_or(address, |host| host.addresses[0]);
        let none = HostSum { address, sum: Sum::default(), highest: Rate::default(), class: None };
        hosts.entry(first).or_insert(none).add(sum, *highest, *class);
    }
    let label = |host: &HostSum| {
        let of_class = || classes.get(usize::from(host.class?)).cloned();
        sinks.host_name(host.address).or_else(of_class)
    };
    let mut hosts: Vec<HostSum> = hosts.into_values().collect();
    hosts.sort_by(|a, b| Rate::order(&a.sum.rate, &b.sum.rate).then(a.address.cmp(&b.address)));
    match order.by {
        Column::Host => hosts.sort_by(|a, b| order.compare(&Some(a.address), &Some(b.address))),
        Column::Flows => {
            hosts.sort_by(|a, b| order.compare(&Some(a.sum.flows), &Some(b.sum.flows)))
        }
        Column::Label => {
            let mut labelled: Vec<_> = hosts.into_iter().map(|host| (label(&host), host)).collect();
            labelled.sort_by(|(a, _), (b, _)| order.compare(a, b));
            hosts = labelled.into_iter().map(|(_, host)| host).collect();
        }
        _ => hosts.sort_by(|a, b| order.compare(&Some(a.sum.rate.bytes), &Some(b.sum.rate.bytes))),
    }
    let row = |host: HostSum| HostRate {
        address: host.address.to_string(),
        name: names.name_by(&known, host.address).map(|name| name.to_string()),
        flows: host.sum.flows,
        packets_per_s: host.sum.rate.packets,
        bytes_per_s: host.sum.rate.bytes,
        label: label(&host),
    };
    hosts.into_iter().take(most).map(row).collect()
}

/// The flows of a host.
struct HostSum {
    /// Its busiest address.
    address: IpAddr,
    sum: Sum,
    /// The rate of its fastest flow, and its class.
    highest: Rate,
    class: Option<u16>,
}

impl HostSum {
    /// Adds an address of the host, after those with higher rates.
    fn add(&mut self, sum: &Sum, highest: Rate, class: Option<u16>) {
        if self.sum.flows == 0 || Rate::order(&highest, &self.highest) == Ordering::Less {
            (self.highest, self.class) = (highest, class);
        }
        self.sum.flows += sum.flows;
        self.sum.rate.add(sum.rate);
    }
}

fn losses(overview: &Overview) -> Losses {
    let path = [
        ("packets before they were read", overview.dropped),
        ("packets not forwarded", overview.unsent),
        ("series", overview.series_lost),
    ];
    let table = [
        ("packets that found the table full", overview.table_full),
        ("flows evicted", overview.evicted),
    ];
    let all = path.into_iter().chain(sinks::lost(&overview.sinks)).chain(table);
    Losses(all.map(|(noun, count)| (noun.to_owned(), count)).collect())
}
