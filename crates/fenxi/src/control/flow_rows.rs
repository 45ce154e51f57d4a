//! Rows of `fenxi ctl flows`, `fenxi top` and the page.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use flowmgr::record::{Decision, FlowName};
use flowmgr::{Counts, Standing};

use super::flow_tables::{FlowTables, LiveFlow, Picture, Rate, totals};
use crate::protocol::{Body, Code, FLOWS_MAX, FlowRow, Reply};
use crate::sinks::{Known, Recent};

/// Which flows are asked for.
pub struct Filter {
    /// Only this label, in upper or lower case.
    pub label: Option<String>,
    /// Only this host.
    pub host: Option<IpAddr>,
    /// At most so many.
    pub top: usize,
}

/// The answer to [`crate::protocol::Request::Flows`].
pub async fn reply(tables: &mut FlowTables, classes: &Arc<[String]>, filter: &Filter) -> Reply {
    let class = match filter
        .label
        .as_deref()
        .map(|label| class_of(classes, label))
    {
        Some(Err(why)) => return Reply::refused(Code::NotFound, why),
        Some(Ok(class)) => Some(class),
        None => None,
    };
    tables.picture().await;
    let picture = tables.picture().await;
    let mut flows: Vec<&LiveFlow> = picture
        .flows
        .iter()
        .filter(|flow| class.is_none() || flow.class() == class)
        .filter(|flow| filter.host.is_none() || flow.host == filter.host)
        .collect();
    flows.sort_unstable_by(|a, b| in_order(a, b));
    let top = filter.top.min(FLOWS_MAX);
    flows.truncate(top);
    let flows: Vec<LiveFlow> = flows.into_iter().copied().collect();
    let recent = tables.recent().lock();
    let mut rows: Vec<FlowRow> = flows
        .iter()
        .map(|flow| live_row(flow, &recent, classes))
        .collect();
    let mut ended: Vec<(&Known, Option<IpAddr>)> = recent
        .ended()
        .map(|known| {
            let FlowName {
                source,
                destination,
                ..
            } = known.flow;
            (known, tables.host(source.0, destination.0))
        })
        .filter(|(known, _)| class.is_none() || known.decision.map(|it| it.class) == class)
        .filter(|(_, host)| filter.host.is_none() || *host == filter.host)
        .collect();
    ended.sort_by_key(|(known, _)| std::cmp::Reverse(totals(&known.counts)[1]));
    let left = top - rows.len();
    let ended = ended.into_iter().take(left);
    rows.extend(ended.map(|(known, host)| ended_row(known, host, classes)));
    Reply::ok(Body::Flows(rows))
}

/// The flows of the highest rate.
pub fn highest(
    picture: &Picture,
    recent: &Recent,
    classes: &Arc<[String]>,
    top: usize,
) -> Vec<FlowRow> {
    let mut flows: Vec<&LiveFlow> = picture.flows.iter().collect();
    if flows.len() > top && top > 0 {
        flows.select_nth_unstable_by(top - 1, |a, b| in_order(a, b));
    }
    flows.truncate(top);
    flows.sort_unstable_by(|a, b| in_order(a, b));
    let rows = flows.into_iter();
    rows.map(|flow| live_row(flow, recent, classes)).collect()
}

/// By rate; of equal rates the one that has sent more, then the older one.
fn in_order(a: &LiveFlow, b: &LiveFlow) -> std::cmp::Ordering {
    let bytes = |flow: &LiveFlow| totals(&flow.look.counts)[1];
    Rate::order(&a.rate, &b.rate)
        .then(bytes(b).cmp(&bytes(a)))
        .then(a.look.flow.flow_id.cmp(&b.look.flow.flow_id))
}

/// The class of a label, in upper or lower case.
fn class_of(classes: &[String], label: &str) -> Result<u16, String> {
    let exact = classes.iter().position(|class| class == label);
    let like = || {
        let alike = |class: &String| class.to_lowercase() == label.to_lowercase();
        classes.iter().position(alike)
    };
    exact
        .or_else(like)
        .map(|class| class as u16)
        .ok_or_else(|| {
            let labels = classes.join(", ");
            format!("no label \"{label}\"; there are {labels}")
        })
}

/// The row of a flow of the table.
pub fn live_row(flow: &LiveFlow, recent: &Recent, classes: &[String]) -> FlowRow {
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
        packets_per_s: flow.rate.packets,
        bytes_per_s: flow.rate.bytes,
        age_s: seconds(flow.now_us.saturating_sub(look.flow.first_us)),
        idle_s: seconds(flow.now_us.saturating_sub(look.last_us)),
        ..row(&look.flow, flow.host, decision, &counts, classes)
    }
}

/// The row of a flow that has ended.
pub fn ended_row(known: &Known, host: Option<IpAddr>, classes: &[String]) -> FlowRow {
    let lasted_us = known.last_us.saturating_sub(known.flow.first_us).max(0);
    FlowRow {
        no_label: known.decision.is_none().then(|| "none".to_owned()),
        age_s: lasted_us as f64 / 1e6,
        end_reason: known.ended.map(|reason| reason.name().to_owned()),
        ..row(&known.flow, host, known.decision, &known.counts, classes)
    }
}

fn row(
    flow: &FlowName,
    host: Option<IpAddr>,
    decision: Option<Decision>,
    counts: &Counts,
    classes: &[String],
) -> FlowRow {
    let end = |(address, port)| SocketAddr::new(address, port).to_string();
    let [packets, bytes] = totals(counts);
    FlowRow {
        flow_id: flow.flow_id,
        src: end(flow.source),
        dst: end(flow.destination),
        proto: flow.protocol,
        transport: transport(flow.protocol).to_owned(),
        host: host.map(|host| host.to_string()),
        label: decision.and_then(|it| classes.get(usize::from(it.class)).cloned()),
        confidence: decision.map(|it| f64::from(it.confidence) / f64::from(u16::MAX)),
        decided_by: decision.map(|it| it.decided_by.name().to_owned()),
        depth: decision.map(|it| it.depth).filter(|depth| *depth > 0),
        no_label: None,
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
        17 => "UDP",
        _ => "TCP",
    }
}

/// In a word or two, why a flow of the table has no label.
fn no_label(standing: Standing) -> Option<String> {
    Some(match standing {
        Standing::Collecting { elements } => format!("short: {elements}"),
        Standing::Withheld => "mid-stream".to_owned(),
        Standing::Unasked => "by rule".to_owned(),
        Standing::Asked => "asked".to_owned(),
        Standing::Unsure { .. } => "unsure".to_owned(),
        Standing::Lost => "shed".to_owned(),
        Standing::Labelled(_) => return None,
    })
}
