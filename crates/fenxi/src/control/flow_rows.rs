//! Rows of `fenxi ctl flows`, `fenxi top` and the page.

use std::net::{IpAddr, SocketAddr};

use dataplane::tasks::TaskNames;
use flowmgr::record::{Decision, FlowName};
use flowmgr::wire::{ICMP, ICMPV6, UDP};
use flowmgr::{Counts, OtherLabel, Standing};
use policy::Dscp;

use super::flow_order::{self, Filter};
use super::flow_tables::{FlowTables, LiveFlow, totals};
use crate::measured::measured;
use crate::names::Names;
use crate::protocol::{Body, FLOWS_MAX, FlowRow, Order, Reply, TaskLabel};
use crate::sinks::records::behaviour_name;
use crate::sinks::{Dscps, Known, Recent};

/// The answer to [`crate::protocol::Request::Flows`].
pub async fn reply(
    tables: &mut FlowTables,
    names: &[TaskNames],
    filter: &Filter,
    order: Order,
    top: usize,
) -> Reply {
    tables.picture().await;
    let recent = tables.recent.clone();
    let recent = recent.lock();
    let top = top.min(FLOWS_MAX);
    let flows = tables.last_picture().flows.iter().filter(|flow| filter.takes(flow));
    let hosts = &tables.names;
    let mut rows = rows(flows, order, (&*recent, names, hosts), top);
    let host = |flow: &FlowName| tables.host(flow.source.0, flow.destination.0);
    let mut ended: Vec<(&Known, Option<IpAddr>)> = recent
        .ended()
        .map(|known| (known, host(&known.flow)))
        .filter(|(known, host)| filter.takes_known(known, *host))
        .collect();
    ended.sort_by_key(|(known, _)| std::cmp::Reverse(totals(&known.counts)[1]));
    let left = top - rows.len();
    let ended = ended.into_iter().take(left);
    rows.extend(ended.map(|(known, host)| ended_row(known, host, names, hosts)));
    Reply::ok(Body::Flows(rows))
}

/// The first `top` of these flows in this order.
pub fn rows<'a>(
    flows: impl Iterator<Item = &'a LiveFlow>,
    order: Order,
    (recent, names, hosts): (&Recent, &'a [TaskNames], &Names),
    top: usize,
) -> Vec<FlowRow> {
    let first = flow_order::first(flows, order, (recent, names), top).into_iter();
    first.map(|flow| live_row(flow, recent, names, hosts)).collect()
}

pub fn live_row(flow: &LiveFlow, recent: &Recent, names: &[TaskNames], hosts: &Names) -> FlowRow {
    let look = &flow.look;
    let mut counts = recent.reported(look.flow.flow_id);
    crate::sinks::add_counts(&mut counts, &look.counts);
    let decision = match look.standing {
        Standing::Labelled(decision) => Some(decision),
        _ => None,
    };
    let seconds = |us: i64| us.max(0) as f64 / 1e6;
    FlowRow {
        no_label: no_label(look.standing),
        behaviour: behaviour_name(look.behaviour).map(str::to_owned),
        measured: look.measured.as_ref().map(measured),
        packets_per_s: flow.rate.packets,
        bytes_per_s: flow.rate.bytes,
        age_s: seconds(flow.now_us.saturating_sub(look.flow.first_us)),
        idle_s: seconds(flow.now_us.saturating_sub(look.last_us)),
        labels: labels(names, |other| look.others.get(other).copied().flatten()),
        ..row(&look.flow, (flow.host, hosts), flow.dscps, decision, &counts, &names[0].classes)
    }
}

pub fn ended_row(
    known: &Known,
    host: Option<IpAddr>,
    names: &[TaskNames],
    hosts: &Names,
) -> FlowRow {
    let lasted_us = known.last_us.saturating_sub(known.flow.first_us).max(0);
    let classes = &names[0].classes;
    FlowRow {
        no_label: known.decision.is_none().then(|| "none".to_owned()),
        behaviour: behaviour_name(known.behaviour).map(str::to_owned),
        measured: known.measured.as_deref().map(measured),
        age_s: lasted_us as f64 / 1e6,
        end_reason: known.ended.map(|reason| reason.name().to_owned()),
        labels: labels(names, |other| {
            let decision = known.others.get(&(other as u8 + 1));
            decision.map(|decision| OtherLabel::from(*decision))
        }),
        ..row(&known.flow, (host, hosts), known.dscps, known.decision, &known.counts, classes)
    }
}

/// The labels of the tasks behind the first; `of` takes the index among them.
fn labels(names: &[TaskNames], of: impl Fn(usize) -> Option<OtherLabel>) -> Vec<TaskLabel> {
    let others = names.iter().skip(1).enumerate();
    let label = |(other, names): (usize, &TaskNames)| {
        let label = of(other)?;
        Some(TaskLabel {
            task: names.name.to_string(),
            label: names.classes.get(usize::from(label.class))?.clone(),
            confidence: f64::from(label.confidence) / f64::from(u16::MAX),
            decided_by: label.decided_by.name().to_owned(),
            depth: label.depth,
        })
    };
    others.filter_map(label).collect()
}

fn row(
    flow: &FlowName,
    (host, hosts): (Option<IpAddr>, &Names),
    dscps: Dscps,
    decision: Option<Decision>,
    counts: &Counts,
    classes: &[String],
) -> FlowRow {
    let end = |(address, port)| SocketAddr::new(address, port).to_string();
    let name = |address: IpAddr| hosts.name(address).map(|name| name.to_string());
    let dscp = |code_point| Dscp::new(code_point).map(|it| it.to_string());
    let [packets, bytes] = totals(counts);
    FlowRow {
        flow_id: flow.flow_id,
        src: end(flow.source),
        dst: end(flow.destination),
        src_name: name(flow.source.0),
        dst_name: name(flow.destination.0),
        proto: flow.protocol,
        transport: transport(flow.protocol).to_owned(),
        host: host.map(|host| host.to_string()),
        label: decision.and_then(|it| classes.get(usize::from(it.class)).cloned()),
        confidence: decision.map(|it| f64::from(it.confidence) / f64::from(u16::MAX)),
        decided_by: decision.map(|it| it.decided_by.name().to_owned()),
        depth: decision.map(|it| it.depth).filter(|depth| *depth > 0),
        no_label: None,
        labels: Vec::new(),
        behaviour: None,
        dscp_seen: dscp(dscps.seen).unwrap_or_default(),
        dscp_set: dscps.set.and_then(dscp),
        measured: None,
        packets,
        bytes,
        packets_per_s: 0.0,
        bytes_per_s: 0.0,
        age_s: 0.0,
        idle_s: 0.0,
        end_reason: None,
    }
}

fn transport(protocol: u8) -> &'static str {
    match protocol {
        UDP => "UDP",
        ICMP | ICMPV6 => "ICMP",
        _ => "TCP",
    }
}

/// Why a live flow has no label, in a word or two.
fn no_label(standing: Standing) -> Option<String> {
    Some(match standing {
        Standing::Collecting { elements } => format!("short: {elements}"),
        Standing::Withheld => "mid-stream".to_owned(),
        Standing::Unasked => "by rule".to_owned(),
        Standing::NotAsked => "not asked".to_owned(),
        Standing::Asked => "asked".to_owned(),
        Standing::Unsure { .. } => "unsure".to_owned(),
        Standing::Lost => "shed".to_owned(),
        Standing::Labelled(_) => return None,
    })
}
