//! One service: its shared memory, with a slot for each egress.

use measure::{Feature, Features, Told};
use observe::{Egress, EgressKind, Error, Field, Kind, Measure, Slot, Value, Writer};

use super::flows::ServiceFlows;
use super::ranking::{CHANGES_MAX, Ranking};

/// Counters and gauges, with their units.
const VALUES: [(&str, &str, Kind); 10] = [
    ("flows_begun", "flows", Kind::Counter),
    ("flows_answered", "flows", Kind::Counter),
    ("flows_ended", "flows", Kind::Counter),
    ("flows_reset", "flows", Kind::Counter),
    ("syns_unanswered", "flows", Kind::Counter),
    ("packets_in", "packets", Kind::Counter),
    ("packets_out", "packets", Kind::Counter),
    ("bytes_in", "bytes", Kind::Counter),
    ("bytes_out", "bytes", Kind::Counter),
    ("flows_in_flight", "flows", Kind::Gauge),
];

/// A time that is measured of a flow, µs; the number is the server's direction.
type Time = fn(&Told, usize) -> Option<u32>;

/// Times that are measured where a feature is on. They are told at the end of a flow.
const TIMES: [(&str, Feature, Time); 5] = [
    ("server_handshake", Feature::ServerHandshake, |told, _| told.server_handshake_us()),
    ("client_handshake", Feature::ClientHandshake, |told, _| told.client_handshake_us()),
    // It is the response by the side that did not begin, which may be the client.
    ("response", Feature::Response, |told, server| told.response_us().filter(|_| server == 1)),
    // A round trip to the server begins with the client's data.
    ("rtt_server", Feature::Rtt, |told, server| Some(told.side(1 - server).rtt?.smoothed_us())),
    ("rtt_client", Feature::Rtt, |told, server| Some(told.side(server).rtt?.smoothed_us())),
];

/// What was sent again, to the server and by it.
const RETRANSMITS: [&str; 2] = ["retransmits_in", "retransmits_out"];

/// All egresses without a slot.
pub(super) const OTHERS: Egress = Egress { kind: EgressKind::OTHERS, address: [0; 16], port: 0 };

/// A service of this flow manager.
pub struct Service {
    pub(super) flows: ServiceFlows,
    writer: Writer,
    /// As in [`VALUES`].
    begun: Value,
    answered: Value,
    ended: Value,
    reset: Value,
    unanswered: Value,
    packets: [Value; 2],
    bytes: [Value; 2],
    in_flight: Value,
    completion: Measure,
    duration: Measure,
    /// As in [`TIMES`]; `None`: not measured.
    times: [Option<Measure>; TIMES.len()],
    retransmits: Option<[Value; 2]>,
    /// Slots that are in use, the one of all others first.
    slots: Vec<Slot>,
    capacity: usize,
    ranking: Ranking,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// FIN of both sides closed it.
    pub is_complete: bool,
    pub is_reset: bool,
    pub is_unanswered: bool,
    /// From its first packet.
    pub lasted_us: u64,
    /// What was measured, if anything is.
    pub told: Option<Told>,
    /// The server's direction.
    pub server: usize,
}

impl Service {
    /// What the memory of a service holds of each egress where these features are measured.
    pub fn fields(features: Features) -> Vec<Field> {
        let values = VALUES.iter().map(|&(name, unit, kind)| Field::new(name, unit, kind));
        let has_retransmits = features.has(Feature::Retransmits);
        let counts = RETRANSMITS.iter().filter(|_| has_retransmits);
        let counts = counts.map(|name| Field::new(name, "packets", Kind::Counter));
        let times = TIMES.iter().filter(|(_, feature, _)| features.has(*feature));
        let times = ["completion"].into_iter().chain(times.map(|(name, ..)| *name));
        let times = times.flat_map(|name| {
            [Kind::Reservoir, Kind::Histogram].map(|kind| Field::new(name, "ns", kind))
        });
        let duration = Field::new("duration", "ns", Kind::Histogram);
        values.chain(counts).chain(times).chain([duration]).collect()
    }

    /// A service that writes to this memory, which has `egresses` slots and was created with
    /// [`Service::fields`].
    ///
    /// # Errors
    /// The memory has other fields, or no slot.
    pub fn new(flows: ServiceFlows, mut writer: Writer, egresses: usize) -> Result<Service, Error> {
        let foreign = Error::Schema("not created with the fields of a service");
        let others = writer.insert(&OTHERS).ok_or(Error::Schema("no slot"))?;
        let values = VALUES.map(|(name, ..)| writer.value(name));
        let measures = ["completion", "duration"].map(|name| writer.measure(name));
        let (
            [
                Some(begun),
                Some(answered),
                Some(ended),
                Some(reset),
                Some(unanswered),
                Some(packets_in),
                Some(packets_out),
                Some(bytes_in),
                Some(bytes_out),
                Some(in_flight),
            ],
            [Some(completion), Some(duration)],
        ) = (values, measures)
        else {
            return Err(foreign);
        };
        let retransmits = match RETRANSMITS.map(|name| writer.value(name)) {
            [Some(to), Some(from)] => Some([to, from]),
            _ => None,
        };
        let mut slots = Vec::with_capacity(egresses);
        slots.push(others);
        Ok(Service {
            flows,
            times: TIMES.map(|(name, ..)| writer.measure(name)),
            retransmits,
            writer,
            begun,
            answered,
            ended,
            reset,
            unanswered,
            packets: [packets_in, packets_out],
            bytes: [bytes_in, bytes_out],
            in_flight,
            completion,
            duration,
            slots,
            capacity: egresses,
            ranking: Ranking::new(egresses),
        })
    }

    fn others(&self) -> Slot {
        self.slots[0]
    }

    /// The slot, or the one of all others if it has another egress by now.
    fn current(&self, slot: Slot) -> Slot {
        match self.writer.get(slot, self.begun) {
            Some(_) => slot,
            None => self.others(),
        }
    }

    /// A flow to this egress begins; the egress's slot.
    pub(super) fn begin(&mut self, egress: &Egress) -> Slot {
        let slot = match self.writer.lookup(egress) {
            Some(slot) => slot,
            None if self.slots.len() < self.capacity => self.insert(egress),
            None => self.others(),
        };
        self.writer.add_all(slot, &[(self.begun, 1), (self.in_flight, 1)]);
        slot
    }

    fn insert(&mut self, egress: &Egress) -> Slot {
        match self.writer.insert(egress) {
            Some(slot) => {
                self.slots.push(slot);
                slot
            }
            None => self.others(),
        }
    }

    /// Counts packets to the server, or from it (`out`); whether they had a slot of their own.
    #[inline]
    pub(super) fn count(&mut self, slot: Slot, out: bool, packets: u64, bytes: u64) -> bool {
        let out = usize::from(out);
        let counts = [(self.packets[out], packets), (self.bytes[out], bytes)];
        if self.writer.add_all(slot, &counts) {
            return slot.index != 0;
        }
        self.writer.add_all(self.others(), &counts);
        false
    }

    /// The server has answered a flow for the first time.
    pub(super) fn answer(&mut self, slot: Slot) {
        self.writer.add(self.current(slot), self.answered, 1);
    }

    /// An egress that may have no slot has sent packets.
    pub(super) fn note(&mut self, egress: Egress, packets: u64) {
        self.ranking.note(egress, packets);
    }

    /// A flow has ended at this time, ns.
    pub(super) fn end(&mut self, slot: Slot, end: End, time_ns: u64) {
        let slot = self.current(slot);
        let counts = [
            (self.ended, 1),
            (self.reset, u64::from(end.is_reset)),
            (self.unanswered, u64::from(end.is_unanswered)),
        ];
        self.writer.add_all(slot, &counts);
        self.writer.subtract(slot, self.in_flight, 1);
        let lasted_ns = end.lasted_us.saturating_mul(1000);
        self.writer.sample(slot, self.duration, time_ns, lasted_ns);
        if end.is_complete {
            self.writer.sample(slot, self.completion, time_ns, lasted_ns);
        }
        if let Some(told) = &end.told {
            self.tell(slot, told, end.server, time_ns);
        }
    }

    fn tell(&mut self, slot: Slot, told: &Told, server: usize, time_ns: u64) {
        for (measure, (.., time)) in self.times.into_iter().zip(TIMES) {
            if let (Some(measure), Some(us)) = (measure, time(told, server)) {
                self.writer.sample(slot, measure, time_ns, u64::from(us) * 1000);
            }
        }
        if let Some(retransmits) = self.retransmits {
            let sent = [1 - server, server].map(|from| told.side(from).retransmits.unwrap_or(0));
            let counts = [(retransmits[0], sent[0].into()), (retransmits[1], sent[1].into())];
            self.writer.add_all(slot, &counts);
        }
    }

    /// Once a second: gives slots to busier egresses.
    pub(super) fn rank(&mut self) {
        if self.slots.len() < self.capacity {
            return;
        }
        for (number, slot) in self.slots.iter().enumerate() {
            let sent = self.writer.get(*slot, self.packets[1]).unwrap_or(0);
            self.ranking.look(number, sent);
        }
        let mut changes = 0;
        while changes < CHANGES_MAX {
            let Some((number, egress, busy)) = self.ranking.next() else { break };
            // It may have a slot by now, while flows that began before are of all others.
            if self.writer.lookup(&egress).is_some() {
                continue;
            }
            changes += 1;
            self.writer.fold(self.slots[number], self.slots[0]);
            if let Some(slot) = self.writer.insert(&egress) {
                self.slots[number] = slot;
                self.ranking.give(number, busy);
            }
        }
        self.ranking.fade();
    }

    /// Makes everything known; `all`: histograms too, which else take turns.
    pub(super) fn publish(&mut self, time_ns: u64, all: bool) {
        match all {
            true => self.writer.publish_all(time_ns),
            false => self.writer.publish(time_ns),
        }
    }
}
