//! The packet's walk: read this first.
//!
//! A burst goes through three stages, so that its trips to memory overlap. The first parses and
//! hashes every packet and prefetches its bucket; the second compares tags and prefetches the most
//! likely entry; the third walks the packets through the table one by one, in order, so that each
//! sees what the one before did, such as the same new flow twice in one burst or a flow that ended
//! in between.
//!
//! ```text
//! burst ─ parse + hash ─┬─ find or begin ─ count ─┬─ label? ─ tag
//!                       │                         └─ K-th packet ─ ring slot, or label at once
//!                       └─ no flow: a verdict
//! ```
//!
//! The manager does no input or output and reads no clock: times come with the packets, and the
//! caller's clock with the burst. The walk is in `walk`; it knows the flows ([`crate::flows`]) and
//! calls the parts ([`crate::part`]). How a packet becomes part of a series is in `collect`,
//! records are in `settle`. Packets that GRO, LRO or TSO merged are walked segment by segment in
//! `merged`, which also tells apart packets of flows that belong to another port.

mod behave;
mod collect;
mod counted;
mod merged;
mod rules;
mod serve;
mod settle;
mod stages;
mod sweep;
mod walk;

use std::num::NonZeroU32;
use std::sync::Arc;

use cring::{FlowRef, Label, Producer, Slot, TaskWords};

use crate::action::{Action, Actions};
use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::ids::TaskId;
use crate::kernel_counts::Counted;
use crate::look::{FlowLook, Found, View, Wanted};
use crate::memory::Pages;
use crate::outbox::SPARE_ENTRIES;
use crate::part::Part;
use crate::record::{FlowRecord, Record};
use crate::rules::{RuleAnswer, RuleQuestion, RulesChange};
use crate::servers::ServerCells;
use crate::services::ServicesChange;
use crate::settings::Settings;
use crate::verdict::Verdict;
use crate::wire::Gso;
use rules::Answering;
use settle::Settling;
use walk::Walk;

pub(crate) use stages::Staged;

/// A packet of a burst: where its bytes lie and when it came.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Offset of its first byte in the burst's data.
    pub at: usize,
    /// Bytes captured.
    pub captured: u32,
    /// Bytes on the wire. A packet whose IP header claims more belongs to no flow, because no host
    /// accepts it. `u32::MAX`: believe the header, as in captures.
    pub wire: u32,
    /// Link type, as pcap numbers them.
    pub link: u16,
    /// When it came, µs since the epoch, at most [`Packet::TIME_MAX_US`] before or after.
    pub time_us: i64,
    /// The NIC's RSS hash, where it gave one.
    pub rss: Option<NonZeroU32>,
    /// For several packets merged into one: how to tell them apart.
    pub gso: Gso,
}

impl Packet {
    /// The farthest time from the epoch, µs: some 570 years.
    pub const TIME_MAX_US: i64 = 1 << 54;

    /// The nearest time that a packet can have: a broken capture may have any.
    #[inline]
    pub fn clamp_time(time_us: i64) -> i64 {
        time_us.clamp(-Packet::TIME_MAX_US, Packet::TIME_MAX_US)
    }
}

// A burst of them is written and read twice, so their size matters.
const _: () = assert!(size_of::<Packet>() == 32);

/// A label of the first task that came with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// [`Packet::at`] of the packet.
    pub at: usize,
    /// Elements of the series that the label is for.
    pub elements: u8,
    /// The label.
    pub label: Label,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Its verdict.
    pub verdict: Verdict,
    /// With [`crate::Effect::PacketTime`], for a packet that carries its flow's label: the flow.
    /// The label may still be on its way; until it comes, [`Verdict::Labelled`] is a promise.
    pub label_of: Option<FlowRef>,
    /// With it: bit n if the answer of depth n counts for the packet; for tasks after the first
    /// only if their labels have actions or rules ask for them. [`TaskWords::label_of`] takes
    /// them.
    pub depths: u16,
    /// Number of the action of the flow's rule, see [`Fate::by_rule`].
    pub(crate) action: u8,
    /// Where its IP header begins; 0 without a flow.
    pub ip_at: u32,
}

impl Fate {
    /// The fate of a packet that counts for no flow.
    fn without_flow(verdict: Verdict) -> Fate {
        Fate { verdict, label_of: None, depths: 0, action: 0, ip_at: 0 }
    }

    /// With rules: the action on the packet. By packet time it is the rule's action; if that leaves
    /// out the DSCP, the label's applies.
    #[inline]
    pub fn by_rule(&self) -> Action {
        Action::of_number(self.action)
    }
}

/// One flow manager: a table of flows, their parts, and the packet's walk through them. `P` adds
/// further parts, see [`Part`].
pub struct Manager<P: Part = ()> {
    walk: Walk<P>,
    /// See [`Settling::record`].
    record: Box<Record>,
}

impl Manager {
    /// A manager of one task that puts its series on `ring`. Allocates all its memory here.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub fn new(config: Config, ring: Producer<Slot>) -> Result<Manager, ConfigError> {
        Manager::with_rings(config, vec![vec![ring]])
    }

    /// The same with several rings: for each task one ring per analytics manager that serves this
    /// flow manager; none where [`Part::answer`] answers its series at once. All series of a task
    /// and flow take the same ring.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub fn with_rings(
        config: Config,
        rings: Vec<Vec<Producer<Slot>>>,
    ) -> Result<Manager, ConfigError> {
        Manager::with_parts(config, rings, ())
    }
}

impl<P: Part> Manager<P> {
    /// Entries of a table of `max_flows` flows, whose indices parts are given. Some belong to ended
    /// flows that wait for their record.
    pub const fn entries(max_flows: usize) -> usize {
        max_flows + SPARE_ENTRIES
    }

    /// As [`Manager::with_rings`], with further parts.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub fn with_parts(
        config: Config,
        rings: Vec<Vec<Producer<Slot>>>,
        more: P,
    ) -> Result<Manager<P>, ConfigError> {
        let by_task: Vec<usize> = rings.iter().map(Vec::len).collect();
        config.check(&by_task)?;
        let (max_flows, behaviour) = (config.max_flows, config.behaviour);
        let (tasks, servers, samples) = (&config.tasks, config.servers, config.samples);
        let (buckets, measured) = (config.buckets, config.measured);
        let bytes =
            crate::table_bytes(max_flows, buckets, tasks, behaviour, servers, samples, measured);
        let walk = Walk::new(config, rings, more).map_err(|cause| ConfigError::Memory {
            max_flows,
            mib: bytes.div_ceil(1 << 20),
            cause,
        })?;
        Ok(Manager { walk, record: Box::new(Record::Flow(FlowRecord::blank())) })
    }

    /// The pages under the table: the worse of its two large arrays.
    pub fn pages(&self) -> Pages {
        let flows = &self.walk.flows;
        flows.table.pages().min(flows.entries.pages())
    }

    /// The label words of this manager's flows, for the analytics side.
    pub fn labels(&self) -> Arc<dyn cring::Labels> {
        self.walk.flows.entries.labels()
    }

    /// Where a task's label words are, and when its answers are sure, for a caller that looks
    /// labels up later than the walk.
    pub fn words(&self, task: TaskId) -> TaskWords {
        self.walk.labels.tasks.words(task)
    }

    /// The actions in use, for a caller that applies them later than the walk.
    pub fn actions(&self) -> &Actions {
        self.walk.labels.actions()
    }

    /// The counters so far.
    pub fn counters(&self) -> &Counters {
        &self.walk.flows.counters
    }

    /// Flows in the table, at most.
    pub fn max_flows(&self) -> usize {
        self.walk.flows.max()
    }

    /// Flows in the table.
    pub fn flows_alive(&self) -> usize {
        self.walk.flows.alive()
    }

    /// Half-open flows in the table, which nobody has answered yet.
    pub fn flows_half_open(&self) -> usize {
        self.walk.flows.table.half_open()
    }

    /// Flows that have left the table and wait for their record.
    pub fn flows_unrecorded(&self) -> usize {
        self.walk.flows.unrecorded()
    }

    /// The further parts.
    pub fn parts(&self) -> &P {
        &self.walk.more
    }

    /// The same to be changed.
    pub fn parts_mut(&mut self) -> &mut P {
        &mut self.walk.more
    }

    /// Whether a burst of `packets` would find a ring slot for every series and
    /// an entry for every flow. A live run does not ask: it sheds.
    pub fn has_room(&mut self, packets: usize) -> bool {
        let walk = &mut self.walk;
        walk.flows.table.entries_free() >= packets
            && walk.series.has_room(packets, &walk.labels.tasks)
    }

    /// Flows have no behaviour, whatever the configuration says: nobody will ask for it. Before the
    /// first burst.
    pub fn forgo_behaviours(&mut self) {
        debug_assert_eq!(self.walk.flows.position, 0, "flows have begun with behaviours");
        if self.walk.flows.entries.forgo_behaviours().is_ok() {
            self.walk.behaviours = None;
        }
    }

    /// Sets the port of the next bursts. A flow belongs to the port where its first packet was
    /// seen; its packets from other ports get [`Verdict::SeenElsewhere`] and are not counted. For
    /// several interfaces of one router, where a packet comes in by one and leaves by another. 0,
    /// the initial value: flows belong to no port.
    pub fn receive_from(&mut self, port: u8) {
        (self.walk.port, self.walk.in_port) = (port, port);
    }

    /// Sets the port of the next bursts for rules that ask where a flow came in. Flows belong to no
    /// port.
    pub fn note_port(&mut self, port: u8) {
        self.walk.in_port = port;
    }

    /// The port of [`Manager::receive_from`].
    pub fn port(&self) -> u8 {
        self.walk.port
    }

    /// Labels of series of the first task that come with the next burst, in the order of its
    /// packets. [`Part::answer`] takes them.
    pub fn give(&mut self, labels: impl Iterator<Item = Given>) {
        self.walk.given.clear();
        self.walk.given.extend(labels);
    }

    /// Walks a burst of up to [`crate::BURST_MAX`] packets, whose bytes lie in `data`.
    ///
    /// `now_ns` is the caller's monotone clock. `fates` is cleared and gets one
    /// fate per packet. With [`crate::Effect::Arrival`] packets are tagged in place.
    ///
    /// With rules, answer [`Manager::rule_questions`] before the next burst, until none are left.
    pub fn burst(
        &mut self,
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        self.walk.burst(data, packets, now_ns, fates);
    }

    /// Moves the clock to `time_us` while no packets come, never back, and ends a bounded part of
    /// the flows that are over by then.
    pub fn pass(&mut self, time_us: i64) {
        self.walk.pass(time_us);
    }

    /// The time of the latest packet, µs since the epoch.
    pub fn packet_us(&self) -> i64 {
        self.walk.flows.clock.packet_us()
    }

    /// Ends every flow, in the order in which they began: the input is at its end. A flow that is
    /// over but not swept yet ends as if it were swept: its record must not show its place in the
    /// table.
    pub fn drain(&mut self) {
        self.walk.flows.drain();
    }

    /// Adds packets of a flow that were counted and not walked; `false` if there is no such flow.
    /// Where flows belong to ports, packets from another port than the flow's are left out.
    ///
    /// They have no verdict here: the caller counts every packet, including packets of flows that
    /// have ended meanwhile. Without [`Config::expects_counts`] nothing is added.
    pub fn count(&mut self, counted: &Counted) -> bool {
        self.walk.count(counted)
    }

    /// Questions about rules of flows since the last answers; [`Manager::answer_rules`] takes the
    /// answers.
    pub fn rule_questions(&self) -> &[RuleQuestion] {
        self.walk.rules.questions()
    }

    /// Takes an answer to each of [`Manager::rule_questions`], in their order, and applies them to
    /// the packets of the burst that was walked last, as [`Manager::burst`] does: with
    /// [`crate::Effect::Arrival`] in place. By packet time the walk then goes on, up to the next
    /// question. Questions that did not come from a burst have no packets.
    pub fn answer_rules(
        &mut self,
        answers: &[RuleAnswer],
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        let walk = &mut self.walk;
        Answering { walk, now_ns }.answer(answers, data, packets, fates);
    }

    /// A question about a flow that a fate of the last burst names, for a packet of this time.
    pub fn rule_question(&self, flow: FlowRef, time_us: i64) -> RuleQuestion {
        self.walk.rule_question(flow, time_us)
    }

    /// From the next packet on other rules are in force: each flow asks for its rule again, at its
    /// next packet or, where many would, some bursts later ([`crate::renewed_max`]). Once rules
    /// have been in force, flows are asked about until the manager ends; if there are none left,
    /// answers say so. Without memory, which only the first rules need, nothing changes.
    pub fn change_rules(&mut self, change: &mut RulesChange) {
        self.walk.labels.change_rules(change.label_tasks);
        self.walk.rules.change(&mut self.walk.flows, change);
    }

    /// Whether there have ever been rules, so that the walk asks for them.
    pub fn has_rules(&self) -> bool {
        self.walk.rules.is_on()
    }

    /// Applies these settings from the next packet on; the old ones are left in their place, to be
    /// dropped elsewhere. Neither allocates nor looks at a flow: a flow keeps its age, and is over
    /// when the new timeouts say so.
    ///
    /// If the active timeout changes, the ticks in the entries have another length until a flow's
    /// next report, which may come late by at most one timeout.
    pub fn configure(&mut self, settings: &mut Settings) {
        self.walk.labels.configure(&mut settings.actions);
        self.walk.flows.configure(settings);
    }

    /// Shows the records that are ready and frees the entries of ended flows. `out` may shift a
    /// record's times ([`Record::shift`]) and changes nothing else; it clones what it keeps: the
    /// next one is written in its place.
    ///
    /// `written` is the number of packets that the caller is done with: an entry that a
    /// [`crate::Fate::label_of`] of a later packet names is kept. A caller that keeps no fates
    /// passes `u64::MAX`. `now_ns` is the clock of [`Manager::burst`].
    pub fn settle(&mut self, written: u64, now_ns: u64, out: &mut dyn FnMut(&mut Record)) {
        self.settling(now_ns, Some(out)).settle(written, usize::MAX);
    }

    /// The same with [`crate::Effect::Arrival`], for at most `most` events of flows; returns their
    /// number. For a caller whose `out` may wait, and who has other work in between.
    pub fn settle_some(
        &mut self,
        most: usize,
        now_ns: u64,
        out: &mut dyn FnMut(&mut Record),
    ) -> usize {
        self.settling(now_ns, Some(out)).settle(u64::MAX, most)
    }

    /// The same where nobody wants the records: counts them without making them.
    pub fn discard_records(&mut self, written: u64, now_ns: u64) {
        self.settling(now_ns, None).settle(written, usize::MAX);
    }

    fn settling<'a>(&'a mut self, now_ns: u64, out: settle::Out<'a>) -> Settling<'a, P> {
        Settling { walk: &mut self.walk, now_ns, out, record: &mut self.record }
    }

    /// With [`crate::Effect::Arrival`], series whose labels were still on their way at the last
    /// settling; and what came after the first of them.
    pub fn labels_awaited(&self) -> usize {
        self.walk.flows.outbox.awaited.len()
    }

    /// Whether no record is waiting.
    pub fn is_settled(&self) -> bool {
        self.walk.flows.outbox.is_empty()
    }

    /// The clock that stamps packets, µs since the epoch: the time of the last packet or of
    /// [`Manager::pass`].
    pub fn packet_time_us(&self) -> i64 {
        self.walk.flows.clock.packet_us()
    }

    /// Reads flows from hashed bucket `from` on, about `most` of them, at most as many as `rows`
    /// has room for. Returns the bucket to go on from; `None` at the table's end.
    pub fn read_flows(&self, from: u32, most: usize, rows: &mut Vec<FlowLook>) -> Option<u32> {
        self.view(|view| view.read_flows(from, most, rows))
    }

    /// Looks for a flow among the next `most` flows, from bucket `from` on.
    pub fn look_for(&self, from: u32, most: usize, wanted: &Wanted) -> Found {
        self.view(|view| view.look_for(from, most, wanted))
    }

    /// Copies `most` sets of the memory of servers from set `from` on, without allocating if there
    /// is room for them. Returns the set to go on from; `None` at the end.
    pub fn read_servers(&self, from: usize, most: usize, into: &mut ServerCells) -> Option<usize> {
        self.walk.flows.servers.as_ref()?.read(from, most, into)
    }

    /// Remembers servers of an earlier run, as far as there is room; for one that has seen no flow.
    pub fn recall_servers(&mut self, known: &ServerCells) {
        self.walk.flows.servers.iter_mut().for_each(|servers| servers.recall(known));
    }

    /// Applies other services from the next flow on; what was in use is left in the change. Neither
    /// allocates nor drops anything.
    pub fn change_services(&mut self, change: &mut ServicesChange) {
        let services = &mut self.walk.services;
        if services.is_none() {
            *services = change.part.take();
        }
        if let Some(part) = services {
            part.change(change);
            if part.is_empty() {
                change.part = services.take();
            }
        }
    }

    /// Between two bursts: publishes the memory of services, if it is time for that, or nothing
    /// will happen for a while (`is_idle`). `now_us` is flow time; `ahead_us` is wall time less
    /// flow time.
    #[inline]
    pub fn publish_services(&mut self, now_us: i64, ahead_us: i64, is_idle: bool) {
        if let Some(services) = &mut self.walk.services {
            services.publish(now_us, ahead_us, is_idle);
        }
    }

    fn view<T>(&self, look: impl FnOnce(View<'_>) -> T) -> T {
        let walk = &self.walk;
        look(View {
            flows: &walk.flows,
            labels: &walk.labels,
            rules: &walk.rules,
            series: &walk.series.store,
            behaviours: walk.behaviours.as_ref(),
            measured: walk.measured.as_ref(),
            subject: &|index| walk.subject(index),
            headers: &|index| walk.headers_seen(index),
        })
    }
}

#[cfg(test)]
mod tests;
