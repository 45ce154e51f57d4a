//! The packet's walk: read this first.
//!
//! A burst goes through three stages, so that its trips to memory overlap. The first
//! parses and hashes every packet and asks for its bucket; the second compares tags and
//! asks for the entry that is most likely meant; the third walks the packets through the
//! table one by one, in order, so that a packet sees what the one before it did, be it the
//! same new flow twice in one burst or a flow that ended in between.
//!
//! ```text
//! burst ─ parse + hash ─┬─ find or begin ─ count ─┬─ label? ─ tag
//!                       │                         └─ K-th packet ─ ring slot
//!                       └─ no flow: a verdict
//! ```
//!
//! The manager does no input or output and reads no clock: times come with the
//! packets, and the caller's clock with the burst. Beginnings and ends of flows
//! are in [`crate::lifecycle`], records in `settle`. How a packet becomes part of a series, and the series leaves, is in
//! `collect`; whether a label counts for a packet is in `label`. Packets that GRO, LRO or TSO merged are walked segment by segment
//! in `merged`, where those of flows that belong to another port are told apart as well. Labels by ports of servers are in `by_port`.

mod answer;
mod ask;
mod behave;
mod by_port;
mod collect;
mod counted;
mod label;
mod merged;
pub(crate) mod settle;

use std::num::NonZeroU32;
use std::sync::Arc;

use cring::{FlowRef, Labels, Producer, Slot, TaskWords};

use crate::action::{Action, Actions, PolicyStamp};
use crate::arrival::Arrivals;
use crate::behaviour::Behaviours;
use crate::config::{Config, ConfigError, Effect};
use crate::counters::Counters;
use crate::depths::Depths;
use crate::entry::{
    Entries, STATE_COLLECTED, STATE_DECIDED, STATE_EMITTED, STATE_FIN_FORWARD, STATE_NEVER,
    STATE_RST,
};
use crate::expiry::{ActiveTimeout, Clock, Lifetimes, Sweep};
use crate::hash::Hasher;
use crate::memory::Pages;
use crate::prefetch::prefetch;
use crate::rules::InForce;
use crate::series::SeriesStore;
use crate::table::{Occupant, Place, Table};
use crate::tasks::Tasks;
use crate::verdict::Verdict;
use crate::wire::{self, Gso, Headers, TCP_FIN, TCP_RST};
use settle::Outbox;

pub(crate) use ask::Asking;
pub use counted::Counted;
pub(crate) use counted::CountedSoFar;
pub use settle::LABELS_LOOKED_AT;

/// Packets in a burst, at most.
pub const BURST_MAX: usize = 256;

/// A packet of a burst: where its bytes lie and when it came.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Offset of its first byte in the burst's data.
    pub at: usize,
    /// Bytes captured.
    pub captured: u32,
    /// Bytes on the wire. A packet whose IP header claims more belongs to no flow, for no host accepts it. `u32::MAX`: whatever
    /// the header claims counts, as in captures.
    pub wire: u32,
    /// Link type, as pcap numbers them.
    pub link: u16,
    /// When it came, µs since the epoch.
    pub time_us: i64,
    /// The NIC's RSS hash, where it gave one.
    pub rss: Option<NonZeroU32>,
    /// Where it is several packets merged into one: how to tell them apart.
    pub gso: Gso,
}

// A burst of them is written and read twice, so their size counts.
const _: () = assert!(size_of::<Packet>() == 32);

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Its verdict.
    pub verdict: Verdict,
    /// With [`Effect::PacketTime`], for a packet that carries its flow's label:
    /// the flow. The label may still be on its way, and until then
    /// [`Verdict::Labelled`] is a promise.
    pub label_of: Option<FlowRef>,
    /// With it: the depths whose answers count for the packet, bit n for number n; of tasks after the first only where their labels
    /// have actions. [`TaskWords::label_of`] takes them.
    pub depths: u16,
    /// Number of the action of the flow's rule, see [`Fate::by_rule`].
    action: u8,
    /// Where its IP header begins; 0 without a flow.
    pub ip_at: u32,
}

impl Fate {
    /// Of a packet that counts for no flow.
    fn without_flow(verdict: Verdict) -> Fate {
        Fate {
            verdict,
            label_of: None,
            depths: 0,
            action: 0,
            ip_at: 0,
        }
    }

    /// With rules: what is done to the packet. By packet time that is what the rule says, and a DSCP that it leaves out is that
    /// of the label.
    #[inline]
    pub fn by_rule(&self) -> Action {
        Action::of_number(self.action)
    }
}

/// A packet between the stages.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    headers: Result<Headers, Verdict>,
    hash: u64,
    /// Slot of the hashed bucket where the flow most likely is.
    guess: Option<u8>,
}

/// One flow manager: a table of flows and the packet's walk through it.
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) hasher: Hasher,
    pub(crate) table: Table,
    pub(crate) entries: Entries,
    pub(crate) series: SeriesStore,
    /// By task, at least one each; deeper ones have none of their own ([`crate::depths`]). A flow's series takes the one that its
    /// index chooses.
    pub(crate) rings: Vec<Vec<Producer<Slot>>>,
    pub(crate) tasks: Tasks,
    /// The depths of the first task.
    pub(crate) depths: Depths,
    /// There is more than one.
    pub(crate) has_depths: bool,
    /// Beyond the first and its depths.
    pub(crate) has_more_tasks: bool,
    /// Labels of other tasks than the first have actions.
    pub(crate) acts_by_others: bool,
    /// The states in the hot line that say together that no packet can complete a series any more.
    collected: u16,
    /// What an entry's stamp is where its action is that of a label by the map in use.
    pub(crate) policy: PolicyStamp,
    pub(crate) clock: Clock,
    pub(crate) arrivals: Arrivals,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) sweep: Sweep,
    pub(crate) active: ActiveTimeout,
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
    /// Flows in the table; those that wait for their record are not.
    pub(crate) alive: usize,
    /// Packets walked so far.
    pub(crate) position: u64,
    /// See [`Manager::receive_from`].
    pub(crate) port: u8,
    /// The port that packets come from, whether or not flows belong to it; see [`Manager::note_port`].
    pub(crate) in_port: u8,
    /// What is known of packets that were counted and not walked.
    pub(crate) counted: Option<CountedSoFar>,
    /// Since the first rules were in force.
    pub(crate) rules: Option<InForce>,
    pub(crate) asking: Asking,
    /// What flows do, unless that is off.
    pub(crate) behaviours: Option<Behaviours>,
    staged: Vec<Staged>,
}

impl Manager {
    /// Entries beyond `max_flows`, for ended flows that wait for their record.
    pub(crate) const SPARE_ENTRIES: usize = 4096;

    /// A manager of one task that puts its series on `ring`. Takes all its memory here.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub fn new(config: Config, ring: Producer<Slot>) -> Result<Manager, ConfigError> {
        Manager::with_rings(config, vec![vec![ring]])
    }

    /// The same with several rings: for each task, but for deeper ones, one for each analytics manager that works for this flow
    /// manager. All series of a task and flow take the same one.
    ///
    /// # Errors
    /// A value that is out of its range; a task without a ring.
    pub fn with_rings(
        mut config: Config,
        rings: Vec<Vec<Producer<Slot>>>,
    ) -> Result<Manager, ConfigError> {
        config
            .ports
            .sort_unstable_by_key(|it| (it.task, it.protocol, it.port));
        let by_task: Vec<usize> = rings.iter().map(Vec::len).collect();
        config.check(&by_task)?;
        let entries = config.max_flows + Manager::SPARE_ENTRIES;
        let depths = Depths::of(&config.tasks);
        let tasks = config.tasks.len();
        let no_memory = |cause| ConfigError::Memory {
            max_flows: config.max_flows,
            mib: crate::table_bytes(
                config.max_flows,
                config.buckets,
                &config.tasks,
                config.behaviour,
            )
            .div_ceil(1 << 20),
            cause,
        };
        let counted = match config.expects_counts {
            true => Some(CountedSoFar::new(entries).map_err(no_memory)?),
            false => None,
        };
        let behaviours = config
            .behaviour
            .map(|bounds| Behaviours::new(entries, bounds));
        let behaviours = behaviours.transpose().map_err(no_memory)?;
        let lifetimes = Lifetimes::of(&config.settings, config.counts_lag_s());
        let series = SeriesStore::new(entries, &config.tasks, !config.record_series.is_none())
            .map_err(no_memory)?;
        let slots = rings.iter().flatten().map(Producer::capacity).sum();
        Ok(Manager {
            hasher: Hasher::new(config.hash),
            table: Table::new(config.buckets, entries).map_err(no_memory)?,
            entries: Entries::new(
                entries,
                tasks,
                usize::from(depths.count()) - 1,
                behaviours.is_some(),
            )
            .map_err(no_memory)?,
            tasks: Tasks::of(&config, |unit| series.number_of(unit)),
            series,
            rings,
            has_depths: depths.count() > 1,
            has_more_tasks: tasks > usize::from(depths.count()),
            acts_by_others: config.settings.actions.has_others(),
            collected: match (tasks, config.effect) {
                (1, _) => u16::from(STATE_EMITTED),
                // All tasks are depths, of which one has decided. A series in a record has what the greatest depth asks for,
                // whenever answers come.
                (tasks, Effect::Arrival)
                    if tasks == usize::from(depths.count()) && config.record_series.is_none() =>
                {
                    u16::from(STATE_EMITTED | STATE_DECIDED)
                }
                (tasks, Effect::Arrival) if tasks > usize::from(depths.count()) => {
                    u16::from(STATE_COLLECTED)
                }
                _ => STATE_NEVER,
            },
            depths,
            policy: PolicyStamp::FIRST,
            clock: Clock::new(),
            arrivals: Arrivals::new(),
            lifetimes,
            sweep: Sweep::new(config.buckets as u32, config.sweep_period_us(lifetimes)),
            active: ActiveTimeout::new(config.settings.active_timeout_s),
            outbox: Outbox::new(config.effect, slots),
            counters: Counters::new(config.tasks.iter().map(|task| task.classes)),
            alive: 0,
            position: 0,
            port: 0,
            in_port: 0,
            counted,
            rules: None,
            asking: Asking::default(),
            behaviours,
            staged: Vec::with_capacity(BURST_MAX),
            config,
        })
    }

    /// The pages under the table: the least of its two great arrays.
    pub fn pages(&self) -> Pages {
        self.table.pages().min(self.entries.pages())
    }

    /// The label words of this manager's flows, for the analytics side.
    pub fn labels(&self) -> Arc<dyn Labels> {
        self.entries.labels()
    }

    /// Where the label words of a task are, and when its answers are sure, for a caller that looks labels up later than the walk.
    /// Its number is that among the tasks, depths not counted.
    pub fn words(&self, task: u8) -> TaskWords {
        let task = self.tasks.task(task);
        TaskWords {
            first: task.first,
            depths: task.depths.sure().to_vec(),
        }
    }

    /// The actions in use, for a caller that applies them later than the walk.
    pub fn actions(&self) -> &Actions {
        &self.config.settings.actions
    }

    /// The sums so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Flows in the table, at most.
    pub fn max_flows(&self) -> usize {
        self.config.max_flows
    }

    /// Flows in the table.
    pub fn flows_alive(&self) -> usize {
        self.alive
    }

    /// Of these, half-open flows: nobody has answered them yet.
    pub fn flows_half_open(&self) -> usize {
        self.table.half_open()
    }

    /// Flows that have left the table and wait for their record.
    pub fn flows_unrecorded(&self) -> usize {
        let entries = self.config.max_flows + Manager::SPARE_ENTRIES;
        entries - self.table.entries_free() - self.alive
    }

    /// Whether a burst of `packets` would find a ring slot for every series and
    /// an entry for every flow. A live run does not ask: it sheds.
    pub fn has_room(&mut self, packets: usize) -> bool {
        // Any ring of a task may be the one that all of them want.
        let mut rings = self.rings.iter_mut().enumerate();
        self.table.entries_free() >= packets
            && rings.all(|(task, rings)| {
                let series = packets * self.tasks.task(task as u8).series_at_once();
                let mut rings = rings.iter_mut();
                rings.all(|ring| ring.free() >= series || ring.is_abandoned())
            })
    }

    /// The next bursts come from this port, and a flow belongs to the port where its first packet was seen: packets of the flow
    /// from others get [`Verdict::SeenElsewhere`] and count for nothing. For several interfaces of one router, where a packet
    /// comes in by one and leaves by another. 0, as at first: flows belong to no port.
    pub fn receive_from(&mut self, port: u8) {
        (self.port, self.in_port) = (port, port);
    }

    /// The next bursts come from this port, for rules that ask by which port a flow came in. Flows belong to none.
    pub fn note_port(&mut self, port: u8) {
        self.in_port = port;
    }

    /// The port of [`Manager::receive_from`].
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Walks a burst of up to [`BURST_MAX`] packets, whose bytes lie in `data`.
    ///
    /// `now_ns` is the caller's monotone clock. `fates` is cleared and gets one
    /// fate per packet. With [`Effect::Arrival`] packets are tagged in place.
    ///
    /// With rules, [`Manager::rule_questions`] have to be answered then, before the next burst, as long as there are some.
    pub fn burst(
        &mut self,
        data: &mut [u8],
        packets: &[Packet],
        now_ns: u64,
        fates: &mut Vec<Fate>,
    ) {
        debug_assert!(packets.len() <= BURST_MAX);
        if self.rules.is_some() {
            self.begin_asking(packets.len());
        }
        let has_merged = self.parse_and_hash(data, packets);
        self.prefetch_entries();
        fates.clear();
        self.walk_on(has_merged, packets, now_ns, data, fates);
        self.arrivals.burst(self.clock.packet_us(), now_ns);
        self.sweep_owed();
        let rings = self.rings.iter_mut().flatten();
        rings.for_each(Producer::publish);
    }

    /// Stage three, from the first packet that has no fate yet.
    fn walk_on(
        &mut self,
        has_merged: bool,
        packets: &[Packet],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        let staged = std::mem::take(&mut self.staged);
        let from = fates.len();
        let (packets, left) = (&packets[from..], &staged[from..]);
        if has_merged || self.port != 0 {
            self.walk_mixed(packets, left, now_ns, data, fates);
        } else {
            self.walk(packets, left, now_ns, data, fates);
        }
        self.staged = staged;
        self.complete_questions();
    }

    /// Stage one: headers and hash of every packet. Whether one of them was merged.
    fn parse_and_hash(&mut self, data: &[u8], packets: &[Packet]) -> bool {
        self.staged.clear();
        let mut gso = 0;
        for packet in packets {
            prefetch(data, packet.at);
            gso |= packet.gso.bits();
        }
        for packet in packets {
            let frame = &data[packet.at..packet.at + packet.captured as usize];
            let headers = wire::parse_on_wire(packet.link, frame, packet.wire);
            let mut hash = 0;
            if let Ok(headers) = &headers {
                hash = self
                    .hasher
                    .hash(&headers.key, packet.rss.map(NonZeroU32::get));
                self.table.prefetch(hash);
            }
            self.staged.push(Staged {
                headers,
                hash,
                guess: None,
            });
        }
        gso != 0
    }

    /// Stage two: the entry that each packet will most likely want.
    fn prefetch_entries(&mut self) {
        for staged in self
            .staged
            .iter_mut()
            .filter(|staged| staged.headers.is_ok())
        {
            if let Some((slot, index)) = self.table.guess(staged.hash) {
                staged.guess = Some(slot);
                self.entries.prefetch(index);
            }
        }
    }

    /// Stage three: packets that were not merged, one by one; adds a fate for each.
    fn walk(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        match self.rules.is_some() {
            true => self.walk_by::<true>(packets, staged, now_ns, data, fates),
            false => self.walk_by::<false>(packets, staged, now_ns, data, fates),
        }
    }

    /// The same with rules or without: without, they cost nothing.
    #[inline(never)]
    fn walk_by<const RULES: bool>(
        &mut self,
        packets: &[Packet],
        staged: &[Staged],
        now_ns: u64,
        data: &mut [u8],
        fates: &mut Vec<Fate>,
    ) {
        for (packet, staged) in packets.iter().zip(staged) {
            self.position += 1;
            let fate = match staged.headers {
                Ok(ref headers) => {
                    let at = fates.len();
                    self.process::<RULES>(at, packet, (headers, staged), now_ns, data)
                }
                Err(verdict) => Fate::without_flow(verdict),
            };
            self.counters.verdicts.count(fate.verdict);
            fates.push(fate);
            if RULES && self.must_stop() {
                break;
            }
        }
    }

    /// Stage three: one packet of a flow, the one of this number in the burst.
    #[inline(always)] // as are the other parts of the walk: both forms of `walk_by` have their own
    fn process<const RULES: bool>(
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
        if self.active.is_on() && self.report_if_due(index, packet.time_us) && is_half_open {
            self.establish_answered(staged.hash, index);
        }
        let is_emitted = self.entries.hot(index).has(STATE_EMITTED);
        fate.verdict = match is_emitted {
            true => self.label::<RULES>(index, packet, headers, &mut fate, data),
            false => self.no_label::<RULES>(index, packet, &mut fate, data),
        };
        if RULES {
            self.act(at, index, packet, (headers, staged), &mut fate, data);
        }

        let hot = self.entries.hot_mut(index);
        hot.last_us = packet.time_us;
        let direction = hot.direction(headers.from_low);
        let carry = hot.count(direction, headers.length);
        let is_answered = hot.has_reverse_packets();
        let is_collected = hot.has_all(self.collected);
        if let Some(carry) = carry {
            self.carry(index, direction, carry);
        }
        self.counters.flow_bytes += u64::from(headers.length);
        if is_half_open && is_answered {
            self.look_at_answer(staged.hash, index, direction, headers);
        }
        let waits = RULES && !is_collected && self.must_wait(index);
        if !is_collected && !waits {
            self.collect(index, direction, staged, packet.time_us, now_ns);
        }
        if headers.tcp_flags & (TCP_FIN | TCP_RST) != 0 && self.config.settings.end_on_fin_rst {
            self.close(staged.hash, index, direction, headers.tcp_flags);
        }
        fate
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
        let (table, entries) = (&self.table, &self.entries);
        let is_it = |index| entries.hot(index).is_of(&headers.key);
        let found = table.find_from(hash, guess, is_it);
        if let Some(place) = found {
            let (lifetimes, now) = (self.lifetimes, self.clock.second());
            let goes_on = |occupant: Occupant| {
                !occupant.is_closed && !lifetimes.may_be_over(occupant.stamp, now)
            };
            let touched = self.table.touch_if(place, now, goes_on);
            if touched.is_some() {
                return touched;
            }
            if !self.end_if_over(place, headers) {
                return self.table.touch_if(place, now, |_| true);
            }
        }
        let index = self.begin(time_us, headers, hash)?;
        Some((index, true))
    }

    /// FIN from both sides or RST closes a flow: it lingers for stragglers.
    fn close(&mut self, hash: u64, index: u32, direction: usize, tcp_flags: u8) {
        let hot = self.entries.hot_mut(index);
        let was_closed = hot.is_closed();
        if tcp_flags & TCP_FIN != 0 {
            hot.set(STATE_FIN_FORWARD << direction);
        }
        if tcp_flags & TCP_RST != 0 && !was_closed {
            hot.set(STATE_RST);
        }
        // Who has said that it ends sends no more keep-alives, and may forget to say the rest.
        let closes = hot.is_closed() && !was_closed;
        if let Some(place) = self.place_of(hash, index) {
            self.table.last_no_longer(place);
            if closes {
                self.table.close(place);
            }
        }
    }

    /// Where a flow of the table is: looked up again where it is needed, which is rare, so that the usual packet need not
    /// keep it.
    pub(crate) fn place_of(&self, hash: u64, index: u32) -> Option<Place> {
        self.table.find(hash, |other| other == index)
    }
}

#[cfg(test)]
mod tests;
