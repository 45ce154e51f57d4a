//! Services: what the flows to a service say about its servers, in memory that other processes read
//! (crate `observe`; Yao et al., *Aquarius*, MASCOTS 2022, §III).
//!
//! Which service and which egress, its server, a flow has is decided when it begins. A packet then
//! costs a look at eight bytes of the flow, and two additions if it belongs to a service. A flow
//! ends for its service when FIN or RST closes it, not when it leaves the table.
//!
//! Where a service asks for more than addresses and ports, flows *wait*: each packet is a try to
//! find the flow's service ([`Services::join`]), until one takes it or none can any more. Which
//! services wait for what is in `flows`.
//!
//! Services come and go while the manager works ([`crate::Manager::change_services`]): a number
//! that no two services in a row share says whether a flow's service is still there.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;

use measure::Told;
use observe::{Egress, Slot};

use crate::entry::Counts;
use crate::key::{Key, UDP};
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::record::EndReason;
use flows::Holds;
pub use flows::{EgressBy, LabelTerm, RuleTerm, ServiceFlows, name_hash};
pub(crate) use flows::{Facts, Hop};
use networks::Networks;
pub use service::Service;
use service::{End, OTHERS};

mod flows;
mod networks;
mod ranking;
mod service;

/// Services of a flow manager, at most.
pub const SERVICES_MAX: usize = 64;
/// Egresses of a service with a slot of their own, at most. One slot is for all others.
pub const EGRESSES_MAX: usize = observe::layout::EGRESSES_MAX - 1;

/// An idle worker publishes after this time at the earliest, µs.
const IDLE_EVERY_US: i64 = 1000;
/// Between two looks at which egresses are the busiest, µs.
const RANK_EVERY_US: i64 = 1_000_000;

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Kept {
    /// Number of its service; 0: it has none, [`WAITING`]: it waits for one.
    number: u16,
    /// The egress's slot in the low bits, and the bits below.
    slot: u16,
    /// While it waits: the VLAN of its first frame plus 2; 1 without one, 0 without a frame.
    incarnation: u32,
}

/// The number of no service.
const WAITING: u16 = u16::MAX;

/// The server sent the first packet.
const BACKWARD: u16 = 1 << 15;
/// The server has sent a packet.
const ANSWERED: u16 = 1 << 14;
/// A SYN opened it.
const OPENED: u16 = 1 << 13;
/// It has ended for its service.
const OVER: u16 = 1 << 12;
const SLOT: u16 = OVER - 1;

const _: () = assert!(EGRESSES_MAX <= SLOT as usize && size_of::<Kept>() == 8);

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::Kept {}
}

impl Kept {
    fn has(self, state: u16) -> bool {
        self.slot & state != 0
    }

    fn slot(self) -> Slot {
        Slot { index: (self.slot & SLOT).into(), incarnation: self.incarnation }
    }
}

/// The end of a flow for its service: FIN or RST closed it, or it leaves the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub reason: EndReason,
    /// From its first packet to its last one.
    pub lasted_us: i64,
    pub time_us: i64,
    /// What was measured of it, if anything is.
    pub told: Option<Told>,
}

/// The part of a flow that knows its service.
pub struct Services {
    kept: Array<Kept>,
    /// By place, with their numbers: a number is its place modulo [`SERVICES_MAX`].
    services: Vec<(u16, Option<Box<Service>>)>,
    networks: Networks,
    /// Some service asks for more than addresses and ports.
    has_more: bool,
    /// Tasks whose labels services ask for: bit n for task n.
    label_tasks: u8,
    /// See [`ServicesChange::by_packets`].
    ranks_by_packets: bool,
    every_us: i64,
    /// Wall time less flow time, µs.
    ahead_us: i64,
    published_us: i64,
    ranked_us: i64,
    /// The same by packet time, in whole seconds.
    ranked_second: u16,
    /// Something happened since the last publication.
    has_news: bool,
}

/// Other services. What was in use is left in it, to be dropped elsewhere.
pub struct ServicesChange {
    /// Where no service is left, the manager puts its part here.
    pub(crate) part: Option<Services>,
    places: Vec<(usize, Option<Box<Service>>)>,
    networks: Networks,
    every_us: i64,
    /// For a replay: the busiest egresses are found at flows' first packets, by packet time, so
    /// that the outcome repeats.
    pub by_packets: bool,
}

impl ServicesChange {
    /// `part` is for a manager that has no services yet. `places` lists the places that change,
    /// below [`SERVICES_MAX`]; `networks` lists the servers of all services by address and prefix
    /// length, each with the place of its service; the longest prefix wins. Memory is published
    /// `every_us`, or later.
    pub fn new(
        part: Option<Services>,
        places: Vec<(usize, Option<Box<Service>>)>,
        networks: impl Iterator<Item = (IpAddr, u8, usize)>,
        every_us: i64,
    ) -> ServicesChange {
        let networks = networks.map(|(address, length, place)| (address, length, place as u8));
        let networks = Networks::new(networks);
        ServicesChange { part, places, networks, every_us, by_packets: false }
    }
}

impl Services {
    /// Allocates the memory for a table of `max_flows` flows.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(max_flows: usize) -> io::Result<Services> {
        Ok(Services {
            kept: Array::new(crate::Manager::<()>::entries(max_flows))?,
            services: (0..SERVICES_MAX as u16).map(|number| (number, None)).collect(),
            networks: Networks::default(),
            has_more: false,
            label_tasks: 0,
            ranks_by_packets: false,
            every_us: 0,
            ahead_us: 0,
            published_us: 0,
            ranked_us: 0,
            ranked_second: 0,
            has_news: false,
        })
    }

    pub(crate) fn change(&mut self, change: &mut ServicesChange) {
        for (place, service) in &mut change.places {
            let Some((number, here)) = self.services.get_mut(*place) else { continue };
            std::mem::swap(here, service);
            // Flows of the old service find none. No service has these two numbers.
            *number = match number.wrapping_add(SERVICES_MAX as u16) {
                0 => SERVICES_MAX as u16,
                WAITING => SERVICES_MAX as u16 - 1,
                next => next,
            };
        }
        std::mem::swap(&mut self.networks, &mut change.networks);
        (self.every_us, self.ranks_by_packets) = (change.every_us, change.by_packets);
        let services = || self.services.iter().filter_map(|(_, service)| service.as_ref());
        self.has_more = services().any(|service| service.flows.has_more());
        let labels = services().flat_map(|service| &service.flows.labels);
        self.label_tasks = labels.fold(0, |tasks, term| tasks | 1 << term.task.0);
    }

    /// Whether flows may wait for their service.
    #[inline]
    pub(crate) fn have_more(&self) -> bool {
        self.has_more
    }

    /// Whether a flow waits for its service.
    #[inline]
    pub(crate) fn waits(&self, index: u32) -> bool {
        self.kept[index as usize].number == WAITING
    }

    /// Tasks whose labels services ask for: bit n for task n.
    pub(crate) fn label_tasks(&self) -> u8 {
        self.label_tasks
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.services.iter().all(|(_, service)| service.is_none())
    }

    /// The service of a flow, unless it is gone.
    #[inline]
    fn service_of(&mut self, kept: Kept) -> Option<&mut Service> {
        let (number, service) = &mut self.services[usize::from(kept.number) % SERVICES_MAX];
        if *number == kept.number { service.as_deref_mut() } else { None }
    }

    /// The place of the service with this server, of those whose flows are `of`.
    fn find(
        &self,
        key: &Key,
        to_server_from_low: bool,
        needs_port: bool,
        of: impl Fn(&ServiceFlows) -> bool,
    ) -> Option<u8> {
        let (address, port, is_v6) = key.destination(to_server_from_low);
        let takes = |place: u8| {
            let (_, service) = &self.services[usize::from(place)];
            service.as_ref().is_some_and(|service| {
                let flows = &service.flows;
                flows.take(key.protocol(), port)
                    && !(needs_port && flows.ports.is_empty())
                    && of(flows)
            })
        };
        // Among equal prefixes, a service that names ports comes first, then one with a protocol,
        // then one with conditions.
        let rank = |place: u8| {
            let (_, service) = &self.services[usize::from(place)];
            let flows = service.as_ref().map(|service| &service.flows);
            flows.map_or((true, true, true), |it| {
                (it.ports.is_empty(), it.protocol.is_none(), !it.has_conditions())
            })
        };
        self.networks.find((address, is_v6), takes, rank)
    }

    /// Counts packets with `bytes` in total that a flow had in one direction; `from_low`: they came
    /// from the low end of the key.
    #[inline]
    pub(crate) fn packets(
        &mut self,
        index: u32,
        (key, from_low): (&Key, bool),
        direction: usize,
        packets: u64,
        bytes: u64,
    ) {
        if self.kept[index as usize].number != 0 {
            self.count(index, (key, from_low), direction, packets, bytes);
        }
    }

    #[inline(never)] // most flows belong to no service
    fn count(
        &mut self,
        index: u32,
        (key, from_low): (&Key, bool),
        direction: usize,
        packets: u64,
        bytes: u64,
    ) {
        let kept = self.kept[index as usize];
        let is_out = (direction == 1) != kept.has(BACKWARD);
        let Some(service) = self.service_of(kept) else { return };
        let has_slot = service.count(kept.slot(), is_out, packets, bytes);
        if is_out && !has_slot {
            // Next hops and interfaces that have no slot are not watched.
            match service.flows.egress {
                EgressBy::Address => service.note(egress(key, !from_low, false), packets),
                EgressBy::Socket => service.note(egress(key, !from_low, true), packets),
                _ => {}
            }
        }
        if is_out && !kept.has(ANSWERED) {
            service.answer(kept.slot());
            self.kept[index as usize].slot |= ANSWERED;
        }
        self.has_news = true;
    }

    /// Looks for the service of a flow that [waits](Services::waits). If one takes it, the flow
    /// begins there: `counts`, what the flow has had so far, counts for it, or behind a label only
    /// the packet at hand. Without that the flow ends, and does not wait any longer.
    pub(crate) fn join(&mut self, index: u32, facts: &Facts, counts: &Counts) {
        let kept = &mut self.kept[index as usize];
        if let (0, Some(hop)) = (kept.incarnation, facts.packet)
            && let Some((vlan, _)) = hop.frame
        {
            kept.incarnation = vlan.map_or(1, |vlan| u32::from(vlan) + 2);
        }
        let (opened, vlan) = (kept.slot, kept.incarnation.checked_sub(2).map(|it| it as u16));
        let waits = Cell::new(false);
        let place = [false, true].into_iter().find_map(|backward| {
            if backward && !facts.is_midstream && facts.key.protocol() != UDP {
                return None;
            }
            let to_server = facts.is_low_forward != backward;
            let needs_port = backward && !facts.is_midstream;
            let of = |flows: &ServiceFlows| {
                let holds = flows.hold(facts, vlan, backward);
                waits.set(waits.get() || holds == Holds::NotYet);
                holds == Holds::Yes
            };
            Some((self.find(&facts.key, to_server, needs_port, of)?, backward))
        });
        let Some((place, backward)) = place else {
            if !waits.get() || facts.packet.is_none() {
                self.kept[index as usize] = Kept::default();
            }
            return;
        };
        let (number, Some(service)) = &mut self.services[usize::from(place)] else { return };
        let egress = service.flows.egress(facts, backward).unwrap_or(OTHERS);
        let slot = service.begin(&egress);
        let is_late = !service.flows.labels.is_empty();
        let has_answered = counts.packets[usize::from(!backward)] > 0;
        if is_late && has_answered {
            service.answer(slot);
        }
        let answered = if is_late && has_answered { ANSWERED } else { 0 };
        let backward = if backward { BACKWARD } else { 0 };
        let slot_word = slot.index as u16 | opened | answered | backward;
        let kept = Kept { number: *number, slot: slot_word, incarnation: slot.incarnation };
        self.kept[index as usize] = kept;
        self.has_news = true;
        for direction in [0, 1] {
            let (packets, bytes) = match (is_late, facts.packet) {
                (false, _) => (counts.packets[direction], counts.bytes[direction]),
                (true, Some(it)) if it.direction == direction => (it.packets, it.bytes),
                (true, _) => (0, 0),
            };
            if packets > 0 {
                let from = (&facts.key, facts.is_low_forward == (direction == 0));
                self.count(index, from, direction, packets, bytes);
            }
        }
    }

    /// Whether the flow has a service for which it has not ended.
    pub(crate) fn has_open(&self, index: u32) -> bool {
        let kept = self.kept[index as usize];
        kept.number != 0 && kept.number != WAITING && !kept.has(OVER)
    }

    /// A flow that [`Services::has_open`] has ended for its service.
    pub(crate) fn end(&mut self, index: u32, ended: Ended) {
        let kept = self.kept[index as usize];
        self.kept[index as usize].slot |= OVER;
        let time_ns = ns(ended.time_us.saturating_add(self.ahead_us));
        let Some(service) = self.service_of(kept) else { return };
        let end = End {
            is_complete: ended.reason == EndReason::Fin,
            is_reset: ended.reason == EndReason::Rst,
            is_unanswered: kept.has(OPENED) && !kept.has(ANSWERED),
            lasted_us: ended.lasted_us.max(0).cast_unsigned(),
            told: ended.told,
            server: usize::from(!kept.has(BACKWARD)),
        };
        service.end(kept.slot(), end, time_ns);
        self.has_news = true;
    }

    /// Makes known what happened, if it is time for that, or nothing will for a while (`is_idle`).
    /// `now_us` is flow time, to which `ahead_us` is added.
    pub(crate) fn publish(&mut self, now_us: i64, ahead_us: i64, is_idle: bool) {
        self.ahead_us = ahead_us;
        let every_us = match is_idle && self.has_news {
            true => self.every_us.min(IDLE_EVERY_US),
            false => self.every_us,
        };
        if now_us.saturating_sub(self.published_us) < every_us {
            return;
        }
        let ranks =
            !self.ranks_by_packets && now_us.saturating_sub(self.ranked_us) >= RANK_EVERY_US;
        let time_ns = ns(now_us.saturating_add(ahead_us));
        for service in self.services.iter_mut().filter_map(|(_, service)| service.as_mut()) {
            if ranks {
                service.rank();
            }
            service.publish(time_ns, is_idle);
        }
        (self.published_us, self.has_news) = (now_us, false);
        if ranks {
            self.ranked_us = now_us;
        }
    }
}

impl Part for Services {
    fn begin(&mut self, index: u32, first: &First<'_>) {
        let (key, from_low) = (&first.headers.key, first.headers.from_low);
        if key.is_icmp() {
            self.kept[index as usize] = Kept::default();
            return;
        }
        let opened = if key.protocol() == UDP || first.midstream { 0 } else { OPENED };
        // Flow time goes on where a capture's steps back.
        if self.ranks_by_packets && first.second != self.ranked_second {
            self.services.iter_mut().filter_map(|(_, it)| it.as_mut()).for_each(|it| it.rank());
            self.ranked_second = first.second;
        }
        if self.has_more {
            // The walk looks for its service when it has counted the packet.
            self.kept[index as usize] = Kept { number: WAITING, slot: opened, incarnation: 0 };
            return;
        }
        let mut kept = Kept::default();
        let mut place = self.find(key, from_low, false, |_| true);
        // The first packet seen may be the server's where the flow began earlier.
        if place.is_none() && (first.midstream || key.protocol() == UDP) {
            place = self.find(key, !from_low, !first.midstream, |_| true);
            kept.slot |= BACKWARD;
        }
        if let Some(place) = place {
            let to_server = from_low != kept.has(BACKWARD);
            let (number, service) = &mut self.services[usize::from(place)];
            if let Some(service) = service {
                let by_port = service.flows.egress == EgressBy::Socket;
                let slot = service.begin(&egress(key, to_server, by_port));
                kept.number = *number;
                kept.slot |= slot.index as u16 | opened;
                kept.incarnation = slot.incarnation;
                self.has_news = true;
            }
        }
        self.kept[index as usize] = kept;
    }

    fn prefetch(&self, index: u32) {
        crate::prefetch::prefetch(&self.kept, index as usize);
    }
}

/// The egress of packets that go from the low end of the key (`from_low`), or from the high one.
fn egress(key: &Key, from_low: bool, by_port: bool) -> Egress {
    let (_, (address, port)) = key.ends(from_low);
    Egress::server(address, if by_port { port } else { 0 })
}

fn ns(time_us: i64) -> u64 {
    time_us.max(0).cast_unsigned().saturating_mul(1000)
}
