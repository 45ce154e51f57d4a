//! Services: what the flows to a service say about its servers, in memory that other processes read
//! (crate `observe`; Yao et al., *Aquarius*, MASCOTS 2022, §III).
//!
//! Which service and which egress, its server, a flow has is decided when it begins. A packet then
//! costs a look at eight bytes of the flow, and two additions if it belongs to a service. A flow
//! ends for its service when FIN or RST closes it, not when it leaves the table.
//!
//! Services come and go while the manager works ([`crate::Manager::change_services`]): a number
//! that no two services in a row share says whether a flow's service is still there.

use std::io;
use std::net::IpAddr;

use measure::Told;
use observe::{Egress, Slot};

use crate::key::{Key, UDP};
use crate::memory::{Array, Zeroed};
use crate::part::{First, Part};
use crate::record::EndReason;
use networks::Networks;
use service::End;
pub use service::{Service, ServiceFlows};

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
    /// Number of its service; 0: it has none.
    number: u16,
    /// The egress's slot in the low bits, and the bits below.
    slot: u16,
    incarnation: u32,
}

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
    every_us: i64,
    /// Wall time less flow time, µs.
    ahead_us: i64,
    published_us: i64,
    ranked_us: i64,
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
        ServicesChange { part, places, networks: Networks::new(networks), every_us }
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
            every_us: 0,
            ahead_us: 0,
            published_us: 0,
            ranked_us: 0,
            has_news: false,
        })
    }

    pub(crate) fn change(&mut self, change: &mut ServicesChange) {
        for (place, service) in &mut change.places {
            let Some((number, here)) = self.services.get_mut(*place) else { continue };
            std::mem::swap(here, service);
            // Flows of the old service find none. No service has the number 0.
            *number = match number.wrapping_add(SERVICES_MAX as u16) {
                0 => SERVICES_MAX as u16,
                next => next,
            };
        }
        std::mem::swap(&mut self.networks, &mut change.networks);
        self.every_us = change.every_us;
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

    /// The place of the service with this server.
    fn find(&self, key: &Key, to_server_from_low: bool, needs_port: bool) -> Option<u8> {
        let (address, port, is_v6) = key.destination(to_server_from_low);
        let takes = |place: u8| {
            let (_, service) = &self.services[usize::from(place)];
            service.as_ref().is_some_and(|service| {
                let flows = &service.flows;
                flows.take(key.protocol(), port) && !(needs_port && flows.ports.is_empty())
            })
        };
        // Among equal prefixes, a service that names ports comes first, then one with a protocol.
        let rank = |place: u8| {
            let (_, service) = &self.services[usize::from(place)];
            let flows = service.as_ref().map(|service| &service.flows);
            flows.map_or((true, true), |it| (it.ports.is_empty(), it.protocol.is_none()))
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
            service.note(egress(key, !from_low, service.flows.by_port), packets);
        }
        if is_out && !kept.has(ANSWERED) {
            service.answer(kept.slot());
            self.kept[index as usize].slot |= ANSWERED;
        }
        self.has_news = true;
    }

    /// Whether the flow has a service for which it has not ended.
    pub(crate) fn has_open(&self, index: u32) -> bool {
        let kept = self.kept[index as usize];
        kept.number != 0 && !kept.has(OVER)
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
        let ranks = now_us.saturating_sub(self.ranked_us) >= RANK_EVERY_US;
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
        let mut kept = Kept::default();
        let mut place = self.find(key, from_low, false);
        // The first packet seen may be the server's where the flow began earlier.
        if place.is_none() && (first.midstream || key.protocol() == UDP) {
            place = self.find(key, !from_low, !first.midstream);
            kept.slot |= BACKWARD;
        }
        if let Some(place) = place {
            let to_server = from_low != kept.has(BACKWARD);
            let (number, service) = &mut self.services[usize::from(place)];
            if let Some(service) = service {
                let slot = service.begin(&egress(key, to_server, service.flows.by_port));
                let opened = if key.protocol() == UDP || first.midstream { 0 } else { OPENED };
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
