//! Pictures of all live flows, with rates since the picture before.
//!
//! The flow workers show their flows between two bursts ([`dataplane::look`]). A picture is taken
//! at most once a second, whatever the number of requests, and less often with more flows, so that
//! a flow worker spends at most 1 % of its time on it. The picture keeps a bounded number of flows,
//! those with the highest rates; its sums count all.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Network;
use dataplane::look::{Look, Looker, Portion, Question};
use dataplane::rules::RuleTotals;
use flowmgr::{Counts, FlowDetail, FlowLook, Standing, Wanted};
use tokio::time::sleep;

use crate::names::Names;
use crate::sinks::{Dscps, Interfaces, RecentFlows, host_of};

/// Minimum time between two pictures.
const PICTURE_EVERY: Duration = Duration::from_secs(1);
/// A hundred times what a flow worker needs to show one flow, whose six cache lines are in memory
/// (`scripts/measure/top-cost`).
const PAUSE_PER_FLOW: Duration = Duration::from_micros(50);
/// Time limit of a picture or a search. A stalled worker is left out.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time between the first two polls for an answer; it doubles up to [`POLL_AGAIN_MAX`].
const POLL_AGAIN: Duration = Duration::from_micros(500);
const POLL_AGAIN_MAX: Duration = Duration::from_millis(8);
/// Maximum flows that a picture keeps.
const KEPT: usize = 65_536;
/// Maximum hosts with a sum; flows of further hosts count in the other sums only.
const HOSTS: usize = 65_536;
/// Minimum time that a rate is taken over, µs.
const RATE_OVER_US: i64 = 200_000;
/// Rates are reset if the next picture is overdue by this much.
const STALE_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
pub struct LiveFlow {
    pub look: FlowLook,
    /// The end that its label describes.
    pub host: Option<IpAddr>,
    pub dscps: Dscps,
    /// Time of the picture by the clock of the table, µs.
    pub now_us: i64,
    /// Wall time minus that clock, µs.
    pub ahead_us: i64,
    pub rate: Rate,
}

/// Packets and bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    pub packets: f64,
    pub bytes: f64,
}

impl Rate {
    pub fn add(&mut self, other: Rate) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    /// Highest first.
    pub fn order(a: &Rate, b: &Rate) -> Ordering {
        let by_bytes = b.bytes.total_cmp(&a.bytes);
        by_bytes.then(b.packets.total_cmp(&a.packets))
    }
}

/// The flows of a label, a host, or all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    pub flows: u64,
    pub rate: Rate,
}

#[derive(Default)]
pub struct Picture {
    /// The flows with the highest rates, in no order.
    pub flows: Vec<LiveFlow>,
    /// By class; `None` for flows without a label.
    pub classes: HashMap<Option<u16>, Sum>,
    /// By host, with rate and class of its fastest flow.
    pub hosts: HashMap<IpAddr, (Sum, Rate, Option<u16>)>,
    /// Counters of rules, no less than in the picture before.
    pub rules: RuleTotals,
    pub all: Sum,
    /// Time of the picture by the clock of the tables, µs.
    at_us: Option<i64>,
}

pub struct FlowTables {
    lookers: Vec<Looker>,
    /// Records of recent flows.
    pub recent: RecentFlows,
    /// What hosts are called.
    pub names: Names,
    networks: Arc<[Network]>,
    picture: Picture,
    /// Earliest time of the next picture.
    next_at: Option<Instant>,
}

impl FlowTables {
    /// The tables of these workers. `networks`: networks of the hosts, if configured.
    pub fn new(
        lookers: Vec<Looker>,
        recent: RecentFlows,
        names: Names,
        networks: &[Network],
    ) -> FlowTables {
        FlowTables {
            lookers,
            recent,
            names,
            networks: networks.into(),
            picture: Picture::default(),
            next_at: None,
        }
    }

    /// The end of a flow that its label describes.
    pub fn host(&self, source: IpAddr, destination: IpAddr) -> Option<IpAddr> {
        host_of(source, destination, &self.networks)
    }

    /// The latest picture; takes a new one if it is time.
    pub async fn picture(&mut self) -> &Picture {
        if self.next_at.is_none_or(|at| Instant::now() >= at) {
            self.take().await;
        }
        &self.picture
    }

    /// The latest picture, however old.
    pub fn last_picture(&self) -> &Picture {
        &self.picture
    }

    async fn take(&mut self) {
        let rules_before = std::mem::take(&mut self.picture.rules);
        let is_stale = |at: Instant| at.elapsed() > STALE_AFTER;
        let before = match self.next_at.is_some_and(is_stale) {
            true => Picture::default(),
            false => std::mem::take(&mut self.picture),
        };
        let looked_us = before.at_us;
        let flows = before.flows.into_iter();
        let before: HashMap<u64, LiveFlow> =
            flows.map(|flow| (flow.look.flow.flow_id, flow)).collect();
        let mut picture = Picture::default();
        let (networks, interfaces) = (self.networks.clone(), self.recent.interfaces.clone());
        let of_run = (&*networks, &interfaces);
        self.ask(Question::All, |look| {
            for row in &look.rows {
                let before = before.get(&row.flow.flow_id);
                picture.add(LiveFlow::new(row, look, (before, looked_us), of_run));
            }
            picture.at_us = picture.at_us.max(Some(look.now_us));
            if look.is_done() {
                picture.rules.merge(&look.rules);
            }
            false
        })
        .await;
        picture.rules.keep(&rules_before);
        let flows = u32::try_from(picture.all.flows).unwrap_or(u32::MAX);
        let pause = PAUSE_PER_FLOW.saturating_mul(flows);
        self.next_at = Some(Instant::now() + PICTURE_EVERY.max(pause));
        self.picture = picture;
    }

    pub async fn find(&mut self, wanted: Wanted) -> Option<(FlowDetail, LiveFlow)> {
        let mut found = None;
        let (networks, interfaces) = (self.networks.clone(), self.recent.interfaces.clone());
        let of_run = (&*networks, &interfaces);
        let mut flows = self.picture.flows.iter();
        let before = flows.find(|flow| wanted.is_of(&flow.look.flow)).copied();
        let looked_us = self.picture.at_us;
        self.ask(Question::Flow(wanted), |look| {
            found = look.detail.map(|detail| {
                let before = (before.as_ref(), looked_us);
                let live = LiveFlow::new(&detail.look, look, before, of_run);
                (detail, live)
            });
            found.is_some()
        })
        .await;
        found
    }

    /// Asks all workers and passes on each portion until `is_enough`.
    async fn ask(&mut self, question: Question, mut is_enough: impl FnMut(&Look) -> bool) {
        let began = Instant::now();
        let mut open: Vec<usize> = (0..self.lookers.len()).collect();
        open.retain(|&at| self.lookers[at].begin(question));
        let (mut pause, mut is_over) = (POLL_AGAIN, false);
        while !open.is_empty() && began.elapsed() < ANSWER_WITHIN {
            let mut has_moved = false;
            open.retain(|&at| {
                let looker = &mut self.lookers[at];
                match looker.poll() {
                    Portion::Nothing => true,
                    Portion::Ended => false,
                    Portion::Here(look) => {
                        has_moved = true;
                        is_over = is_over || is_enough(&look);
                        if look.is_done() || is_over {
                            looker.finish(look);
                            return false;
                        }
                        looker.go_on(look);
                        true
                    }
                }
            });
            if open.is_empty() {
                break;
            }
            sleep(pause).await;
            pause = if has_moved { POLL_AGAIN } else { POLL_AGAIN_MAX.min(2 * pause) };
        }
    }
}

impl LiveFlow {
    fn new(
        row: &FlowLook,
        look: &Look,
        before: (Option<&LiveFlow>, Option<i64>),
        (networks, interfaces): (&[Network], &Interfaces),
    ) -> LiveFlow {
        LiveFlow {
            look: *row,
            host: host_of(row.flow.source.0, row.flow.destination.0, networks),
            dscps: interfaces.dscps(&row.headers),
            now_us: look.now_us,
            ahead_us: look.ahead_us,
            rate: rate(row, look.now_us, before),
        }
    }

    pub fn class_of(&self, task: usize) -> Option<u16> {
        match task.checked_sub(1) {
            None => self.class(),
            Some(other) => self.look.others.get(other)?.map(|label| label.class),
        }
    }

    /// The class of its label of the first task.
    pub fn class(&self) -> Option<u16> {
        match self.look.standing {
            Standing::Labelled(decision) => Some(decision.class),
            _ => None,
        }
    }
}

/// The rate since the picture before; `before` is the flow in that picture, and its time. If the
/// flow is not in it, or has had a record since, its packets since that record or its beginning
/// count: over the time between the pictures if they are younger, so that the sums of short flows
/// are right; else over their own time.
fn rate(
    row: &FlowLook,
    now_us: i64,
    (before, looked_us): (Option<&LiveFlow>, Option<i64>),
) -> Rate {
    let per_s = |counts: [u64; 2], us: i64| {
        let seconds = us.max(RATE_OVER_US) as f64 / 1e6;
        Rate { packets: counts[0] as f64 / seconds, bytes: counts[1] as f64 / seconds }
    };
    let now = totals(&row.counts);
    match before {
        Some(before) if before.look.reported_us == row.reported_us => {
            let elapsed_us = now_us.saturating_sub(before.now_us);
            if elapsed_us < RATE_OVER_US {
                return before.rate;
            }
            let then = totals(&before.look.counts);
            let came = [0, 1].map(|at| now[at].saturating_sub(then[at]));
            per_s(came, elapsed_us)
        }
        _ => {
            // At least a second: there may be no picture before, or one just taken.
            let since_us = looked_us.map_or(0, |looked_us| now_us.saturating_sub(looked_us));
            let over_us = since_us.max(PICTURE_EVERY.as_micros() as i64);
            let lasted_us = row.last_us.saturating_sub(row.reported_us);
            // Counts from the kernel arrive up to a second later.
            let silent_us = over_us * if lasted_us < over_us { 1 } else { 2 };
            if now_us.saturating_sub(row.last_us) > silent_us {
                return Rate::default();
            }
            per_s(now, now_us.saturating_sub(row.reported_us).max(over_us))
        }
    }
}

/// Packets and bytes in both directions.
pub fn totals(counts: &Counts) -> [u64; 2] {
    [counts.packets.iter().sum(), counts.bytes.iter().sum()]
}

impl Picture {
    /// These flows only, of those that the picture keeps, with their sums.
    pub fn only(&self, is_wanted: impl Fn(&LiveFlow) -> bool) -> Picture {
        let mut picture = Picture { at_us: self.at_us, ..Picture::default() };
        let flows = self.flows.iter().filter(|flow| is_wanted(flow));
        flows.for_each(|flow| picture.add(*flow));
        picture
    }

    fn add(&mut self, flow: LiveFlow) {
        let class = flow.class();
        count(&mut self.all, flow.rate);
        count(self.classes.entry(class).or_default(), flow.rate);
        if let Some(host) = flow.host
            && (self.hosts.len() < HOSTS || self.hosts.contains_key(&host))
        {
            let (sum, highest, label) = self.hosts.entry(host).or_default();
            count(sum, flow.rate);
            if sum.flows == 1 || Rate::order(&flow.rate, highest) == Ordering::Less {
                (*highest, *label) = (flow.rate, class);
            }
        }
        if self.flows.len() == KEPT {
            let by_rate = |a: &LiveFlow, b: &LiveFlow| Rate::order(&a.rate, &b.rate);
            self.flows.select_nth_unstable_by(KEPT / 2, by_rate);
            self.flows.truncate(KEPT / 2);
        }
        self.flows.push(flow);
    }
}

fn count(sum: &mut Sum, rate: Rate) {
    sum.flows += 1;
    sum.rate.add(rate);
}

#[cfg(test)]
mod tests {
    use flowmgr::record::FlowName;

    use super::*;

    fn row(flow_id: u64, bytes: u64, reported_us: i64) -> FlowLook {
        FlowLook {
            flow: FlowName {
                flow_id,
                protocol: 6,
                source: ([10, 0, 0, flow_id as u8].into(), 1),
                destination: ([192, 0, 2, 1].into(), 443),
                first_us: reported_us,
            },
            last_us: reported_us,
            counts: Counts { packets: [bytes / 100, 0], bytes: [bytes, 0] },
            reported_us,
            midstream: false,
            rule: None,
            behaviour: flowmgr::Behaviour::None,
            measured: None,
            action: flowmgr::Action::default(),
            headers: flowmgr::HeadersSeen::default(),
            is_half_open: false,
            is_closed: false,
            others: [None; flowmgr::OTHERS_MAX],
            standing: Standing::Asked,
        }
    }

    fn live(look: FlowLook, now_us: i64, before: Option<&LiveFlow>) -> LiveFlow {
        LiveFlow {
            look,
            host: Some(look.flow.source.0),
            dscps: Dscps::default(),
            now_us,
            ahead_us: 0,
            rate: rate(&look, now_us, (before, before.map(|before| before.now_us))),
        }
    }

    /// Flows of one packet of 1000 bytes, one every 10 ms, that stay in the table for a minute.
    #[test]
    fn sums_are_the_bytes_that_came_however_short_the_flows_and_however_rare_the_pictures() {
        for every_s in [1, 2, 5, 9] {
            let mut before: HashMap<u64, LiveFlow> = HashMap::new();
            let mut looked_us = None;
            for look in 1..=4 {
                let now_us = 30_000_000 + look * every_s * 1_000_000;
                let begun = (0..now_us).step_by(10_000).enumerate();
                let rows = begun.map(|(id, first_us)| row(id as u64, 1000, first_us));
                let flows: HashMap<u64, LiveFlow> = rows
                    .map(|row| {
                        let before = before.get(&row.flow.flow_id);
                        let rate = rate(&row, now_us, (before, looked_us));
                        let flow = live(row, now_us, None);
                        (row.flow.flow_id, LiveFlow { rate, ..flow })
                    })
                    .collect();
                let sum: f64 = flows.values().map(|flow| flow.rate.bytes).sum();
                let expected = 99_000.0..=102_000.0;
                assert!(expected.contains(&sum), "every {every_s} s: {sum} B/s");
                (before, looked_us) = (flows, Some(now_us));
            }
        }
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let first = live(row(1, 1000, 0), 500_000, None);
        assert_eq!(first.rate.bytes, 1000.0, "no rate over less than a second");
        let second = live(row(1, 5000, 0), 2_500_000, Some(&first));
        assert_eq!((second.rate.bytes, second.rate.packets), (2000.0, 20.0));
        let at_once = live(row(1, 9000, 0), 2_500_001, Some(&second));
        assert_eq!(at_once.rate, second.rate, "over a µs there is no rate");
        let silent = live(row(1, 5000, 0), 3_500_000, Some(&second));
        assert_eq!(silent.rate, Rate::default());
        // A record in between has reset the counts.
        let reported = FlowLook { last_us: 4_900_000, ..row(1, 600, 3_000_000) };
        let reported = live(reported, 5_000_000, Some(&silent));
        assert_eq!(reported.rate.bytes, 300.0);
    }

    #[test]
    fn sums_count_all_flows_and_memory_is_bounded() {
        let mut picture = Picture::default();
        for flow_id in 0..200_000 {
            picture.add(live(row(flow_id, flow_id * 100, 0), 1_000_000, None));
        }
        assert_eq!(picture.all.flows, 200_000);
        assert!(picture.flows.len() <= KEPT);
        let kept = |id: u64| picture.flows.iter().any(|it| it.look.flow.flow_id == id);
        assert!(kept(199_999) && kept(190_000) && !kept(3));
        assert_eq!(picture.hosts.len(), 256);
        let hosts: u64 = picture.hosts.values().map(|(sum, ..)| sum.flows).sum();
        assert_eq!(hosts, 200_000);
        assert_eq!(picture.classes[&None].flows, 200_000);
    }
}
