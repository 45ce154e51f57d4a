//! Records that wait to be written, in order.
//!
//! Live ([`Effect::Arrival`]) nothing waits for a label: a flow that ends before its label comes is
//! recorded without, and the label is post-mortem. In a replay ([`Effect::PacketTime`]) records
//! come in the order of the packets that caused them, and what concerns a flow whose series is on
//! its way waits for the label. So a replay's records repeat exactly, and no packet waits.

use std::collections::VecDeque;

use cring::{FlowRef, TASKS_MAX};
use measure::{Features, Told};

use crate::behaviour::Behaviour;
use crate::config::BURST_MAX;
use crate::config::{DEPTHS_MAX, Effect};
use crate::entry::Counts;
use crate::headers::HeadersSeen;
use crate::ids::Awaited;
use crate::record::EndReason;
use crate::series::SeenByUnit;
use crate::table::Occupant;

/// Entries beyond [`max_flows`](crate::Config::max_flows), for ended flows that wait for their
/// record.
pub(crate) const SPARE_ENTRIES: usize = 4096;

/// Packets and bytes that count as labelled by packet time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InEffect {
    pub packets: u64,
    pub bytes: u64,
}

/// The same for each depth, if its answer should decide.
pub(crate) type InEffectByDepth = [InEffect; DEPTHS_MAX];

/// An event to be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A series went on its way.
    Label(Awaited),
    /// A flow goes on after an active timeout: the next of [`Outbox::reports`].
    Active,
    /// A flow left the table. Its entry is free once its record is written.
    Ended {
        /// As it was in the table.
        occupant: Occupant,
        reason: EndReason,
        /// Packets walked when it ended.
        position: u64,
        /// When that was, by the packets' time.
        at_us: i64,
    },
}

// One is written and read again for each flow that ends.
const _: () = assert!(size_of::<Event>() == 32);

/// A flow at its active timeout. All values are of that moment, because the record must not depend
/// on when it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub flow: FlowRef,
    pub behaviour: Behaviour,
    pub counts: Counts,
    pub in_effect: InEffect,
    pub last_us: i64,
    pub headers: HeadersSeen,
    /// Elements in the flow's series: with fewer than a task's K, no label had been asked for.
    pub series_seen: SeenByUnit,
}

/// A flow in the table has changed its behaviour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub flow: FlowRef,
    pub behaviour: Behaviour,
    /// When that was noticed, in packet time.
    pub at_us: i64,
}

/// Changes of behaviour that wait to be told, at most: twice what one burst and one part of the
/// sweep may bring.
const CHANGES_MAX: usize = 4096;

/// Label words out of order that one settling looks at; each is a line of memory, all take half a
/// microsecond. So of 1,000 series on their way each is looked at within 16 bursts. Few in tests,
/// so that some are not reached.
pub const LABELS_LOOKED_AT: usize = if cfg!(test) { 4 } else { 64 };

/// What waits to be recorded, in order.
#[derive(Debug)]
pub(crate) struct Outbox {
    effect: Effect,
    pub events: VecDeque<Event>,
    /// Flows at their active timeouts, for each such event.
    pub reports: VecDeque<Report>,
    /// With [`Effect::Arrival`], series on their way: their labels do not hold up
    /// the events.
    pub awaited: VecDeque<Awaited>,
    /// With [`Effect::Arrival`], labels that were there with their flows' first packets, since the
    /// last settling.
    pub given: VecDeque<Awaited>,
    /// Index in `awaited` at which the next look for labels out of order begins.
    pub awaited_at: usize,
    /// With several depths, for each report among the events.
    pub in_effect: VecDeque<InEffectByDepth>,
    /// What was measured, for each report among the events, where that is on.
    pub measured: VecDeque<Told>,
    /// Live, changes of behaviour since the last settling.
    pub changes: Vec<Changed>,
}

impl Outbox {
    /// An outbox for series that take `slots` slots of rings, and what is `measured`, if anything.
    pub fn new(effect: Effect, slots: usize, measured: Features) -> Outbox {
        // The devices may hold as many again.
        let awaited = match effect {
            Effect::Arrival => SPARE_ENTRIES.max(2 * slots),
            Effect::PacketTime { .. } => 0,
        };
        // A burst begins as many flows as it has packets.
        let given = match effect {
            Effect::Arrival => BURST_MAX * TASKS_MAX,
            Effect::PacketTime { .. } => 0,
        };
        Outbox {
            effect,
            events: VecDeque::with_capacity(SPARE_ENTRIES),
            reports: VecDeque::with_capacity(SPARE_ENTRIES),
            awaited: VecDeque::with_capacity(awaited),
            given: VecDeque::with_capacity(given),
            awaited_at: 0,
            in_effect: VecDeque::new(),
            measured: VecDeque::with_capacity(match measured {
                Features::NONE => 0,
                _ => SPARE_ENTRIES,
            }),
            changes: Vec::with_capacity(CHANGES_MAX),
        }
    }

    /// Whether nothing waits to be recorded.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.changes.is_empty() && self.given.is_empty()
    }

    pub fn change(&mut self, changed: Changed) {
        // If the caller does not settle for this long, records still have the behaviour.
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(changed);
        }
    }

    /// What belongs to the next report, where there are several depths.
    pub fn note_in_effect(&mut self, by_depth: InEffectByDepth) {
        self.in_effect.push_back(by_depth);
    }

    pub fn await_label(&mut self, awaited: Awaited) {
        match self.effect {
            Effect::Arrival => self.awaited.push_back(awaited),
            Effect::PacketTime { .. } => self.events.push_back(Event::Label(awaited)),
        }
    }

    /// A label that is there already.
    pub fn say_given(&mut self, given: Awaited) {
        match self.effect {
            Effect::Arrival => self.given.push_back(given),
            Effect::PacketTime { .. } => self.events.push_back(Event::Label(given)),
        }
    }

    pub fn report(&mut self, report: Report) {
        self.events.push_back(Event::Active);
        self.reports.push_back(report);
    }

    pub fn end(&mut self, occupant: Occupant, reason: EndReason, position: u64, at_us: i64) {
        self.events.push_back(Event::Ended { occupant, reason, position, at_us });
    }
}
