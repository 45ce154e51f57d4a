//! The packet's walk, packet by packet: which flow it belongs to, which label and action the flow
//! has, and what the parts are told.

use std::io;

use cring::{Producer, Slot};

use super::stages::{Staged, Staging};
use super::{Fate, Given, Packet};
use crate::arrival::Arrivals;
use crate::behaviour::{Behaviour, Behaviours};
use crate::config::BURST_MAX;
use crate::config::Config;
use crate::config::Effect;
use crate::entry::STATE_EMITTED;
use crate::flows::Flows;
use crate::headers::{HeadersPart, HeadersSeen};
use crate::ids::TaskId;
use crate::kernel_counts::CountedSoFar;
use crate::labels::Labels;
use crate::measured::Measured;
use crate::outbox::Report;
use crate::outbox::SPARE_ENTRIES;
use crate::part::{First, Part, Seen};
use crate::record::EndReason;
use crate::rules::Rules;
use crate::series::{SeriesPart, SeriesStore};
use crate::services::Services;
use crate::tasks::Tasks;
use crate::verdict::Verdict;
use crate::wire::{Headers, TCP, TCP_ACK, TCP_SYN};

/// The list of parts: each of them is called in turn.
macro_rules! each_part {
    ($walk:expr, $call:ident($($argument:expr),*)) => {
        $walk.series.$call($($argument),*);
        $walk.headers.$call($($argument),*);
        $walk.labels.$call($($argument),*);
        $walk.rules.$call($($argument),*);
        $walk.counted.$call($($argument),*);
        $walk.behaviours.$call($($argument),*);
        $walk.flows.servers.$call($($argument),*);
        $walk.measured.$call($($argument),*);
        $walk.services.$call($($argument),*);
        $walk.more.$call($($argument),*);
    };
}
pub(super) use each_part;

/// How a walk is compiled: whether something observes packets, and flows may wait for a service.
const UNSEEN: u8 = 0;
const OBSERVED: u8 = 1;
const AWAITED: u8 = 2;

/// Flows, their parts, and a burst on its way.
pub(super) struct Walk<P> {
    pub flows: Flows,
    pub series: SeriesPart,
    pub headers: HeadersPart,
    pub labels: Labels,
    pub rules: Rules,
    /// What is known of packets that were counted and not walked.
    pub counted: Option<CountedSoFar>,
    /// What flows do, unless that is off.
    pub behaviours: Option<Behaviours>,
    /// What is measured of flows, unless that is nothing.
    pub measured: Option<Measured>,
    /// What is walked is a segment of a merged packet, which is measured as a whole.
    pub is_segment: bool,
    /// The flow that a segment closed: its service is told once the packet was measured.
    pub closed: Option<(u32, EndReason, i64)>,
    /// The services that flows belong to; `None` where there are none.
    pub services: Option<Services>,
    /// Further parts.
    pub more: P,
    pub arrivals: Arrivals,
    /// See [`crate::Manager::receive_from`].
    pub port: u8,
    /// The port that packets come from, whether or not flows belong to it; see
    /// [`crate::Manager::note_port`].
    pub in_port: u8,
    pub staging: Staging,
    /// See [`crate::Manager::give`].
    pub given: Vec<Given>,
}

impl<P: Part> Walk<P> {
    /// Allocates the memory of a checked configuration.
    pub fn new(
        mut config: Config,
        rings: Vec<Vec<Producer<Slot>>>,
        more: P,
    ) -> io::Result<Walk<P>> {
        let entries = config.max_flows + SPARE_ENTRIES;
        let share = config.record_series;
        let store = SeriesStore::new(entries, &config.tasks, !share.is_none())?;
        let slots = rings.iter().flatten().map(Producer::capacity).sum();
        let flows = Flows::new(&config, slots)?;
        let tasks = Tasks::new(&mut config, |unit| store.number_of(unit));
        let counted = config.expects_counts.then(|| CountedSoFar::new(entries));
        let behaviours = config.behaviour.map(|bounds| Behaviours::new(entries, bounds));
        Ok(Walk {
            flows,
            series: SeriesPart { store, share, rings, slot: Box::default() },
            headers: HeadersPart::new(entries)?,
            labels: Labels::new(&mut config, tasks, entries)?,
            rules: Rules::default(),
            counted: counted.transpose()?,
            behaviours: behaviours.transpose()?,
            measured: Measured::new(config.measured, entries)?,
            is_segment: false,
            closed: None,
            services: None,
            more,
            arrivals: Arrivals::new(),
            port: 0,
            in_port: 0,
            staging: Staging::new(),
            given: Vec::with_capacity(BURST_MAX),
        })
    }

    /// See [`crate::Manager::burst`].
    pub fn burst(
        &mut self,
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        debug_assert!(packets.len() <= BURST_MAX);
        if self.rules.is_on() {
            self.rules.begin_asking(&mut self.flows, packets.len());
        }
        let has_merged = self.staging.parse_and_hash(&mut self.flows, data, packets);
        match (&self.measured, &self.services) {
            (None, None) => self.staging.prefetch_entries(&self.flows, &self.headers, |_| {}),
            _ => self.prefetch_observed(),
        }
        // Live, the usual packet is of a flow with a label, and needs only its hot line.
        if self.flows.effect != Effect::Arrival {
            self.prefetch_parts();
        }
        fates.clear();
        self.walk_on(has_merged, packets, now_ns, data, fates);
        self.arrivals.burst(self.flows.clock.packet_us(), now_ns);
        self.sweep_owed();
        debug_assert!(fates.len() == packets.len() || self.rules.must_stop(&self.flows));
        self.series.publish();
    }

    /// Stage two, with what is kept beside the entry. Out of line, as is the walk with it: without,
    /// nothing is in the way.
    #[inline(never)]
    fn prefetch_observed(&mut self) {
        let Walk { staging, flows, headers, measured, services, .. } = self;
        staging.prefetch_entries(flows, headers, |index| {
            measured.iter().for_each(|it| it.prefetch_hot(index));
            services.prefetch(index);
        });
    }

    /// By packet time: prefetches all that is kept of the packets' flows, and of those that begin.
    fn prefetch_parts(&self) {
        let mut begun = 0;
        for staged in self.staging.staged.iter().filter(|staged| staged.headers.is_ok()) {
            let index = match staged.guess {
                Some(slot) => Some(self.flows.table.guessed(staged.hash, slot)),
                None => {
                    begun += 1;
                    self.flows.table.free_ahead(begun)
                }
            };
            if let Some(index) = index {
                self.flows.entries.prefetch_all(index);
                self.flows.entries.prefetch_words(index);
                each_part!(self, prefetch(index));
            }
        }
    }

    /// Stage three, from the first packet that has no fate yet.
    pub fn walk_on(
        &mut self,
        has_merged: bool,
        packets: &[Packet],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let staged = std::mem::take(&mut self.staging.staged);
        debug_assert_eq!(staged.len(), packets.len());
        let from = fates.len();
        let (packets, left) = (&packets[from..], &staged[from..]);
        if has_merged || self.port != 0 {
            self.walk_mixed(packets, left, now_ns, data, fates);
        } else {
            self.walk(packets, left, now_ns, data, fates);
        }
        self.staging.staged = staged;
        self.complete_questions();
    }

    /// Stage three: packets that were not merged, one by one; adds a fate for each.
    pub fn walk(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        match (&self.measured, &self.services) {
            (None, None) => match self.rules.is_on() {
                true => self.walk_by::<true, UNSEEN>(packets, staged, now_ns, data, fates),
                false => self.walk_by::<false, UNSEEN>(packets, staged, now_ns, data, fates),
            },
            _ => self.walk_observed(packets, staged, now_ns, data, fates),
        }
    }

    #[inline(never)]
    fn walk_observed(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let may_wait = self.services.as_ref().is_some_and(Services::have_more);
        match (self.rules.is_on(), may_wait) {
            (true, false) => self.walk_by::<true, OBSERVED>(packets, staged, now_ns, data, fates),
            (false, false) => self.walk_by::<false, OBSERVED>(packets, staged, now_ns, data, fates),
            (true, true) => self.walk_by::<true, AWAITED>(packets, staged, now_ns, data, fates),
            (false, true) => self.walk_by::<false, AWAITED>(packets, staged, now_ns, data, fates),
        }
    }

    /// The same, compiled with rules and without, and by what observes packets, so that they cost
    /// nothing where there are none.
    #[inline(never)]
    fn walk_by<const RULES: bool, const SEEN: u8>(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        for (packet, staged) in packets.iter().zip(staged) {
            self.flows.position += 1;
            let fate = match staged.headers {
                Ok(ref headers) => {
                    let at = fates.len();
                    self.process::<RULES, SEEN>(at, packet, (headers, staged), now_ns, data)
                }
                Err(verdict) => Fate::without_flow(verdict),
            };
            self.flows.counters.verdicts.count(fate.verdict);
            fates.push(fate);
            if RULES && self.rules.must_stop(&self.flows) {
                break;
            }
        }
    }

    /// Stage three: one packet of a flow, the one of this number in the burst.
    #[inline(always)] // as are the other parts of the walk: each form of `walk_by` has its own
    fn process<const RULES: bool, const SEEN: u8>(
        &mut self,
        at: usize,
        packet: &Packet,
        (headers, staged): (&Headers, &Staged),
        now_ns: u64,
        data: &mut [u8],
    ) -> Fate {
        self.advance(packet.time_us);
        let mut fate = Fate {
            verdict: Verdict::TableFull,
            label_of: None,
            depths: 0,
            action: 0,
            ip_at: headers.ip_at,
        };
        let Some((index, is_half_open)) = self.find_or_begin(packet.time_us, headers, staged)
        else {
            return fate;
        };
        if self.flows.active.is_on() && self.report_if_due(index, packet.time_us) && is_half_open {
            self.flows.establish_answered(staged.hash, index);
        }
        if is_half_open && self.flows.entries.hot(index).is_first(headers.from_low) {
            self.note_first(index, packet, headers, data);
        }
        let is_emitted = self.flows.entries.hot(index).has(STATE_EMITTED);
        let (labels, flows) = (&mut self.labels, &mut self.flows);
        fate.verdict = match is_emitted {
            true => labels.label::<RULES>(flows, index, packet, headers, &mut fate, data),
            false => labels.no_label::<RULES>(flows, index, packet, &mut fate, data),
        };
        if RULES {
            self.act(at, index, packet, (headers, staged), &mut fate, data);
        }

        let hot = self.flows.entries.hot_mut(index);
        hot.set_last_us(packet.time_us);
        let direction = hot.direction(headers.from_low);
        let has_new_flags = !hot.has_flags(direction, headers.tcp_flags);
        let carry = hot.count(direction, headers.length);
        let is_answered = hot.has_reverse_packets();
        let is_collected = hot.has_all(self.labels.collected());
        if let Some(carry) = carry {
            self.carry(index, direction, carry);
        }
        if has_new_flags {
            self.add_flags(index, direction, headers.tcp_flags);
        }
        self.flows.counters.flow_bytes += u64::from(headers.length);
        if is_half_open && is_answered {
            self.flows.look_at_answer(staged.hash, index, direction, headers);
        }
        let waits = RULES && !is_collected && self.rules.must_wait(&self.flows, index);
        let time_us = packet.time_us;
        if !is_collected
            && !waits
            && self.collect(index, direction, staged, time_us, now_ns, Some(packet.at))
        {
            self.label_own::<RULES>(at, index, packet, (headers, staged), &mut fate, data);
        }
        let seen = Seen { headers, time_us: packet.time_us, direction, packets: 1 };
        self.more.packet(index, &seen);
        if SEEN != UNSEEN
            && !self.is_segment
            && let Some(measured) = &mut self.measured
        {
            measured.packet(index, direction, (headers, None), packet, data);
        }
        let closes = self.flows.close_by(staged.hash, index, direction, headers.tcp_flags);
        if SEEN == AWAITED {
            let frame = &data[packet.at..packet.at + packet.captured as usize];
            self.await_service(index, direction, headers, (packet.link, frame));
        }
        if SEEN == OBSERVED {
            self.tell_service(index, direction, headers);
        }
        if SEEN != UNSEEN && closes {
            self.close_for_service(index, headers, packet.time_us);
        }
        fate
    }

    /// Notes flags of TCP, in a cache line that most packets do not touch.
    #[inline(never)]
    fn add_flags(&mut self, index: u32, direction: usize, tcp_flags: u8) {
        self.headers.add_flags(index, direction, tcp_flags);
        self.flows.entries.hot_mut(index).set_flags(direction, tcp_flags);
    }

    /// The flow's entry, and whether the flow is half-open; notes the access. Begins a flow
    /// where there is none, or where the one in the table is over.
    #[inline(always)]
    fn find_or_begin(
        &mut self,
        time_us: i64,
        headers: &Headers,
        &Staged { hash, guess, .. }: &Staged,
    ) -> Option<(u32, bool)> {
        if let Some(place) = self.flows.find(&headers.key, hash, guess) {
            let touched = self.flows.touch(place);
            if touched.is_some() {
                return touched;
            }
            if !self.flows.end_if_over(place, headers) {
                let now = self.flows.clock.second();
                return self.flows.table.touch_if(place, now, |_| true);
            }
        }
        let index = self.begin(time_us, headers, hash)?;
        Some((index, true))
    }

    /// Begins a flow with its first packet; `None` where the table is full.
    fn begin(&mut self, time_us: i64, headers: &Headers, hash: u64) -> Option<u32> {
        let index = self.flows.begin(time_us, headers, hash)?;
        // An answer to a SYN that was not seen does not open a flow either: its direction counts as
        // forward, and the series lacks the first packet.
        let opens = headers.tcp_flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        let first = First {
            headers,
            time_us,
            second: self.flows.clock.second(),
            midstream: headers.key.protocol() == TCP && !opens,
            in_port: self.in_port,
        };
        each_part!(self, begin(index, &first));
        self.flows.counters.flows_midstream += u64::from(first.midstream);
        // With rules, only once it is known whether they give a label or ask nothing.
        if !self.rules.is_on() {
            self.name_by_ports(index, time_us);
        }
        Some(index)
    }

    /// Reports a flow that has gone on for the active timeout; returns whether the report has
    /// packets in reverse.
    pub fn report_if_due(&mut self, index: u32, time_us: i64) -> bool {
        let flow_us = self.flows.clock.flow_us(time_us);
        let hot = self.flows.entries.hot(index);
        if !self.flows.active.may_be_due(hot.reported_tick, flow_us) {
            return false;
        }
        let reported_us = self.flows.entries.cold(index).reported_us;
        if !self.flows.active.is_due(reported_us, flow_us) {
            return false;
        }
        let last_us = hot.last_us();
        self.join_before_report(index);
        let in_effect = self.labels.in_effect(&self.flows, index);
        self.labels.note_in_effect(&mut self.flows, index);
        let report = Report {
            flow: self.flows.entries.flow_ref(index),
            behaviour: self.behaviour(index),
            counts: self.flows.entries.take_counts(index),
            in_effect,
            last_us,
            headers: self.headers_seen(index),
            series_seen: self.series.store.seen_by_unit(index),
        };
        if let Some(measured) = &self.measured {
            let told = measured.told(&self.flows.entries, index, &report.counts);
            self.flows.outbox.measured.push_back(told);
        }
        each_part!(self, report(index, &report.counts));
        let cold = self.flows.entries.cold_mut(index);
        (cold.reported_us, cold.bytes_before, cold.packets_before) = (flow_us, 0, 0);
        self.flows.entries.hot_mut(index).reported_tick = self.flows.active.tick(flow_us);
        self.flows.outbox.report(report);
        report.counts.packets[1] > 0
    }

    /// Notes what [`HeadersPart::note_first`] keeps of a half-open flow's packet, which is not
    /// changed yet. The packet that answers is one of a half-open flow.
    #[inline(never)]
    fn note_first(&mut self, index: u32, packet: &Packet, headers: &Headers, data: &[u8]) {
        let direction = self.flows.entries.hot(index).direction(headers.from_low);
        if let Some(ip) = data.get(packet.at + headers.ip_at as usize..) {
            self.headers.note_first(index, direction, headers, ip);
        }
    }

    /// What headers have said of a flow so far.
    #[inline]
    pub fn headers_seen(&self, index: u32) -> HeadersSeen {
        let action = match self.flows.effect {
            // No packet behind the label is walked; with rules their answer has noted the action.
            Effect::Arrival if self.counted.is_some() && !self.rules.is_on() => {
                let class = self.labels.class_of_task(&self.flows, TaskId::FIRST, index);
                self.labels.action_of_labels(&self.flows, index, class)
            }
            Effect::Arrival => self.flows.entries.hot(index).action,
            // The entry has the action of the rule only.
            Effect::PacketTime { .. } => 0,
        };
        self.headers.read(index, action)
    }

    /// The behaviour that a flow has now; `None` where behaviours are off.
    pub fn behaviour(&self, index: u32) -> Behaviour {
        let behaviours = self.behaviours.as_ref();
        behaviours.map_or(Behaviour::None, |it| it.now(index))
    }
}
