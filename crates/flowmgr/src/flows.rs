//! The flows: their table and data array, the time by which they live, their waiting records, and
//! how they begin and end. Everything else that is kept of a flow is in its parts
//! ([`crate::part`]).

use std::io;
use std::net::IpAddr;
use std::ops::Range;

use crate::action::{Actions, PolicyStamp};
use crate::config::{Config, Effect};
use crate::counters::Counters;
use crate::entry::{Cold, Entries, LABEL_NOT_EMITTED, STATE_FIN_FORWARD, STATE_RST};
use crate::expiry::{ActiveTimeout, Clock, Lifetimes, Step, Sweep};
use crate::hash::Hasher;
use crate::ids::DepthId;
use crate::key::Key;
use crate::outbox::{Outbox, SPARE_ENTRIES};
use crate::record::{EndReason, FlowName};
use crate::servers::Servers;
use crate::settings::Settings;
use crate::table::{Occupant, Place, Table, moved};
use crate::wire::{Headers, TCP_FIN, TCP_RST};

mod effect;
mod half_open;

/// The flows of a manager.
pub(crate) struct Flows {
    pub table: Table,
    pub entries: Entries,
    pub clock: Clock,
    pub sweep: Sweep,
    pub active: ActiveTimeout,
    pub outbox: Outbox,
    pub counters: Counters,
    /// What is known of servers; a part that is told at once when a flow leaves the table.
    pub servers: Option<Servers>,
    pub effect: Effect,
    /// The stamp of an entry whose action was looked up by the policy in force.
    pub policy: PolicyStamp,
    /// Packets walked so far.
    pub position: u64,
    hasher: Hasher,
    lifetimes: Lifetimes,
    /// Without the actions, which are the labels'.
    settings: Settings,
    max_flows: usize,
    /// Flows in the table, without flows that wait for their record.
    alive: usize,
    next_flow_id: u64,
    flow_id_step: u64,
    /// Seconds that flows live longer, because packets may be reported late.
    lag_s: u16,
    samples_live: bool,
    /// The first depth of the first task that asks the model.
    first_asked: DepthId,
}

impl Flows {
    /// Allocates the table of a checked configuration, with rings of `slots` slots.
    pub fn new(config: &Config, slots: usize) -> io::Result<Flows> {
        let entries = config.max_flows + SPARE_ENTRIES;
        let lag_s = config.counts_lag_s();
        let samples_live = config.behaviour.is_some() && config.effect == Effect::Arrival;
        let lifetimes = Lifetimes::new(&config.settings, lag_s);
        let bulk_bytes = config.behaviour.map(|bounds| bounds.bulk_bytes);
        let counters = Counters::new(&config.tasks);
        Ok(Flows {
            table: Table::new(config.buckets, entries)?,
            entries: Entries::new(entries, counters.depths.len(), bulk_bytes)?,
            clock: Clock::new(),
            sweep: Sweep::new(config.buckets as u32, sweep_period_us(samples_live, lifetimes)),
            active: ActiveTimeout::new(config.settings.active_timeout_s),
            outbox: Outbox::new(config.effect, slots, config.measured),
            counters,
            servers: Servers::new(config, entries)?,
            effect: config.effect,
            policy: PolicyStamp::FIRST,
            position: 0,
            hasher: Hasher::new(config.hash),
            lifetimes,
            settings: Settings { actions: Actions::of_dscp(&[]), ..config.settings },
            max_flows: config.max_flows,
            alive: 0,
            next_flow_id: config.flow_id_first,
            flow_id_step: config.flow_id_step,
            lag_s,
            samples_live,
            first_asked: DepthId(u8::from(config.tasks[0].is_ports_first())),
        })
    }

    /// Takes other timeouts and leaves the old ones in their place. Actions stay where they are.
    pub fn configure(&mut self, settings: &mut Settings) {
        std::mem::swap(&mut self.settings, settings);
        std::mem::swap(&mut self.settings.actions, &mut settings.actions);
        // Each flow looks its action up again at its next packet.
        self.policy = self.policy.next();
        self.lifetimes = Lifetimes::new(&self.settings, self.lag_s);
        self.sweep.set_pace(sweep_period_us(self.samples_live, self.lifetimes));
        self.active = ActiveTimeout::new(self.settings.active_timeout_s);
    }

    /// Seconds by which packets may be reported late.
    pub fn lag_s(&self) -> u16 {
        self.lag_s
    }

    /// Counts how late a flow ended.
    #[inline]
    pub fn count_lag(&mut self, occupant: Occupant, at_us: i64) {
        let timed = self.as_timed(occupant);
        let last_us = self.entries.hot(occupant.index).last_us();
        let over_us = self.lifetimes.over_us(last_us, timed);
        // A flow that ended before, because the input did or another flow took its place, was not
        // late.
        if let Some(lag_us) = over_us.and_then(|over_us| at_us.checked_sub(over_us))
            && lag_us >= 0
        {
            self.counters.expiry_lag.count(lag_us as u64);
        }
    }

    pub fn max(&self) -> usize {
        self.max_flows
    }

    /// Flows in the table.
    pub fn alive(&self) -> usize {
        self.alive
    }

    /// Flows that have left the table and wait for their record.
    pub fn unrecorded(&self) -> usize {
        let entries = self.max_flows + SPARE_ENTRIES;
        let waiting = entries - self.table.entries_free() - self.alive;
        debug_assert!(waiting <= entries, "more flows wait than there are entries");
        waiting
    }

    #[inline]
    pub fn hash(&self, key: &Key, rss: Option<u32>) -> u64 {
        self.hasher.hash(key, rss)
    }

    /// A hash of a flow, by which shares of flows are chosen.
    pub fn sample_of(&self, key: &Key) -> u16 {
        (self.hasher.hash(key, None) >> 24) as u16
    }

    /// Where a flow is in the table. It is looked up again, because it is needed rarely and the
    /// usual packet need not keep it.
    pub fn place_of(&self, hash: u64, index: u32) -> Option<Place> {
        self.table.find(hash, |other| other == index)
    }

    /// Where the flow of a key is.
    #[inline(always)] // also into the walk's forms
    pub fn find(&self, key: &Key, hash: u64, guess: Option<u8>) -> Option<Place> {
        let is_it = |index| self.entries.hot(index).is_of(key);
        self.table.find_from(hash, guess, is_it)
    }

    /// The entry of a flow at a place that was not silent for long, and whether the flow is
    /// half-open; notes the access.
    #[inline(always)] // as are the other parts of the walk
    pub fn touch(&mut self, place: Place) -> Option<(u32, bool)> {
        let (lifetimes, now) = (self.lifetimes, self.clock.second());
        let goes_on =
            |occupant: Occupant| !occupant.is_closed && !lifetimes.may_be_over(occupant.stamp, now);
        self.table.touch_if(place, now, goes_on)
    }

    /// Prefetches the bucket's marks, and the entry that the `begun`-th new flow from now on takes.
    // Out of line: most packets are of known flows.
    #[inline(never)]
    pub fn prefetch_new(&self, hash: u64, begun: usize) {
        self.table.prefetch_marks(hash);
        if let Some(index) = self.table.free_ahead(begun) {
            self.entries.prefetch_all(index);
        }
    }

    /// Begins a flow with its first packet; `None` where the table is full.
    #[inline]
    pub fn begin(&mut self, time_us: i64, headers: &Headers, hash: u64) -> Option<u32> {
        if !self.make_room(hash) {
            return None;
        }
        let (_, index) = self.table.insert(hash, self.clock.second())?;
        self.alive += 1;
        debug_assert!(self.alive <= self.max_flows, "more flows than the table may hold");
        let flow_us = self.clock.flow_us(time_us);
        let tick = if self.active.is_on() { self.active.tick(flow_us) } else { 0 };
        let cold = Cold {
            first_us: time_us,
            flow_id: self.next_flow_id,
            reported_us: flow_us,
            time_to_label_us: LABEL_NOT_EMITTED,
            ..Cold::default()
        };
        self.next_flow_id += self.flow_id_step;
        self.entries.begin(index, &headers.key, headers.from_low, tick, cold);
        self.counters.flows_begun.count(&headers.key);
        Some(index)
    }

    /// FIN from both sides or RST closes a flow: it lingers for stragglers. Whether this one did.
    #[inline]
    pub fn close_by(&mut self, hash: u64, index: u32, direction: usize, tcp_flags: u8) -> bool {
        tcp_flags & (TCP_FIN | TCP_RST) != 0
            && self.settings.end_on_fin_rst
            && self.close(hash, index, direction, tcp_flags)
    }

    fn close(&mut self, hash: u64, index: u32, direction: usize, tcp_flags: u8) -> bool {
        let hot = self.entries.hot_mut(index);
        let was_closed = hot.is_closed();
        if tcp_flags & TCP_FIN != 0 {
            debug_assert!(direction < 2);
            hot.set(STATE_FIN_FORWARD << direction);
        }
        if tcp_flags & TCP_RST != 0 && !was_closed {
            hot.set(STATE_RST);
        }
        // After a FIN no keep-alives come, and the rest of the closing may never come.
        let closes = hot.is_closed() && !was_closed;
        if let Some(place) = self.place_of(hash, index) {
            self.table.last_no_longer(place);
            if closes {
                self.table.close(place);
            }
        }
        closes
    }

    /// Takes a flow out of the table; its entry waits for the record. `reason` applies unless FIN
    /// or RST closed the flow.
    #[inline]
    pub fn end(&mut self, place: Place, reason: EndReason) {
        let occupant = self.table.occupant(place);
        let Occupant { index, is_closed, .. } = occupant;
        self.table.remove(place);
        debug_assert!(self.alive > 0, "a flow ends that did not begin");
        self.alive -= 1;
        let now_us = self.clock.packet_us();
        let reason = match is_closed {
            true => self.end_reason(index, reason),
            false => reason,
        };
        self.leave(occupant, reason, now_us);
    }

    fn leave(&mut self, occupant: Occupant, reason: EndReason, now_us: i64) {
        if let Some(servers) = &mut self.servers {
            servers.leave(&self.entries, occupant.index);
        }
        self.outbox.end(occupant, reason, self.position, now_us);
    }

    /// Why a flow ended: by FIN or RST, else `otherwise`.
    fn end_reason(&self, index: u32, otherwise: EndReason) -> EndReason {
        match self.entries.hot(index) {
            hot if hot.has(STATE_RST) => EndReason::Rst,
            hot if hot.is_closed() => EndReason::Fin,
            _ => otherwise,
        }
    }

    /// Moves the clock to a packet that is late, or far from the one before.
    #[cold]
    pub fn advance_far(&mut self, time_us: i64) {
        match self.clock.advance_far(time_us) {
            Step::Near => {}
            // Time jumped so far that stamps say nothing: every flow that can be over is.
            Step::Jump => {
                self.table.make_all_due(self.clock.second());
                self.each_in_use(0..self.table.buckets(), |flows, head| {
                    flows.end_in_bucket(head, Flows::is_over_after_jump);
                });
            }
            Step::Rebased => self.counters.clock_rebased += 1,
        }
    }

    /// Ends the flows of these buckets that are over.
    pub fn end_over(&mut self, heads: Range<u32>) {
        // The next ones, which the sweep comes to soon.
        let ahead = heads.end..(heads.end + heads.len() as u32).min(self.table.buckets());
        self.table.prefetch_in_use(ahead);
        let (least_s, now_s) = (self.lifetimes.least_s(), self.clock.second());
        self.each_in_use(heads, |flows, head| match flows.table.silent_in(head, now_s, least_s) {
            Some(silent) => flows.end_silent(head, silent),
            None => flows.end_in_bucket(head, Flows::is_over),
        });
    }

    /// Ends a bucket's flows in the slots `silent` that are over, in the order of
    /// [`Flows::end_in_bucket`]. Nothing is chained to the bucket.
    #[inline]
    fn end_silent(&mut self, head: u32, mut silent: u8) {
        while silent != 0 {
            let slot = silent.trailing_zeros();
            let (place, last) = self.table.in_head(head, slot as u8);
            silent = match self.is_over(self.table.occupant(place)) {
                true => {
                    self.end(place, EndReason::Idle);
                    moved(silent, last, slot as usize)
                }
                false => silent & (silent - 1),
            };
        }
    }

    /// Calls `visit` for each of these buckets that is not empty; it may end the bucket's flows.
    #[inline]
    fn each_in_use(&mut self, heads: Range<u32>, visit: impl Fn(&mut Flows, u32)) {
        for word in Table::words_of(&heads) {
            let mut bits = self.table.in_use_in(word, &heads);
            while bits != 0 {
                visit(self, word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Ends the flows of a bucket, and of those chained to it, that are over.
    // Out of line: most buckets have no chain.
    #[inline(never)]
    fn end_in_bucket(&mut self, head: u32, is_over: impl Fn(&Flows, Occupant) -> bool) {
        let mut next = self.table.first_in(head);
        while let Some(place) = next {
            next = if is_over(self, self.table.occupant(place)) {
                self.end(place, EndReason::Idle);
                self.table.at_or_after(place)
            } else {
                self.table.next_after(place)
            };
        }
    }

    /// See [`crate::Manager::drain`].
    pub fn drain(&mut self) {
        let now_us = self.clock.packet_us();
        let mut left = Vec::with_capacity(self.alive);
        let mut heads = 0..self.table.buckets();
        while let Some(head) = self.table.in_use_from(heads.start, heads.end) {
            let mut next = self.table.first_in(head);
            while let Some(place) = next {
                let occupant = self.table.occupant(place);
                let reason = match self.is_over(occupant) {
                    true => EndReason::Idle,
                    false => EndReason::Drain,
                };
                let flow_id = self.entries.cold(occupant.index).flow_id;
                left.push((flow_id, occupant, reason));
                next = self.table.next_after(place);
            }
            heads.start = head + 1;
        }
        left.sort_unstable_by_key(|&(flow_id, ..)| flow_id);
        debug_assert_eq!(left.len(), self.alive, "a flow is in the table twice or not at all");
        self.table.clear();
        self.alive = 0;
        for (_, occupant, reason) in left {
            let reason = self.end_reason(occupant.index, reason);
            self.leave(occupant, reason, now_us);
        }
    }

    /// The name of the flow at an entry.
    pub fn name(&self, index: u32) -> FlowName {
        let mut name = FlowName::blank();
        self.write_name(index, &mut name);
        name
    }

    /// Writes the name in its place.
    #[inline]
    pub fn write_name(&self, index: u32, name: &mut FlowName) {
        let (hot, cold) = (self.entries.hot(index), self.entries.cold(index));
        let key = hot.key();
        name.flow_id = cold.flow_id;
        name.protocol = key.protocol();
        // Field by field: a copy of what `Key::ends` returns stalls on its parts, just written.
        let [low, high] = key.ports_of_ends();
        let (source, destination) = match hot.is_low_forward() {
            true => ((key.low, low), (key.high, high)),
            false => ((key.high, high), (key.low, low)),
        };
        (name.source.1, name.destination.1) = (source.1, destination.1);
        match key.is_v6() {
            false => {
                name.source.0 = IpAddr::V4(Key::v4(source.0));
                name.destination.0 = IpAddr::V4(Key::v4(destination.0));
            }
            true => {
                name.source.0 = IpAddr::V6(Key::v6(source.0));
                name.destination.0 = IpAddr::V6(Key::v6(destination.0));
            }
        }
        name.first_us = cold.first_us;
    }
}

/// The time of one round over all buckets. Live, the sweep samples behaviours as well.
fn sweep_period_us(samples_live: bool, lifetimes: Lifetimes) -> i64 {
    match samples_live {
        true => 1_000_000,
        false => Sweep::period_us(lifetimes),
    }
}
