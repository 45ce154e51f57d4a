//! Packets into the flow manager, and what became of each.

use flowmgr::verdict::Verdict;

use crate::Outcome;
use crate::ensure;
use crate::events::Kind;
use crate::frames::{FRAME, Packet, RAW_IP, length, noise};
use crate::model::Sent;
use crate::world::World;

/// Where no DSCP was written, there is nothing to hold against the class.
const NO_WAY: u8 = u8::MAX;

impl World {
    pub fn send(&mut self, flow: u8, kinds: impl Iterator<Item = Kind>) -> Outcome {
        self.burst(kinds.map(|kind| (flow, kind)).collect())
    }

    /// A burst of packets; in a replay as many bursts as the ring has room for.
    pub fn burst(&mut self, packets: Vec<(u8, Kind)>) -> Outcome {
        let most = match self.is_live() {
            true => flowmgr::BURST_MAX,
            false => self.plan.ring_slots / 2,
        };
        for (number, packets) in packets.chunks(most).enumerate() {
            if !self.is_live() && !self.flows.has_room(packets.len()) {
                self.coverage.saw("replay held up");
                return Ok(());
            }
            self.burst_at_once(packets, (number * most) as u64)?;
        }
        Ok(())
    }

    fn burst_at_once(&mut self, packets: &[(u8, Kind)], before: u64) -> Outcome {
        let packets = packets.iter().zip(before..).map(|(&(flow, kind), at)| {
            self.packets += 1;
            Packet { flow, kind, length: length(flow, at, self.packets) }
        });
        let packets: Vec<Packet> = packets.collect();
        let mut data: Vec<u8> = packets.iter().flat_map(|packet| packet.frame()).collect();
        let before = self.shed();
        self.walk(&mut data);
        self.check_shed(before)?;
        for (at, (packet, fate)) in packets.iter().zip(&self.fates).enumerate() {
            let dscp = data[at * FRAME + 1] >> 2;
            let labelled = match fate.verdict {
                Verdict::Labelled if self.is_live() => Some((dscp, self.way)),
                Verdict::Labelled => Some((0, NO_WAY)),
                Verdict::Unlabelled => None,
                Verdict::TableFull => {
                    let is_full = self.flows.flows_alive() >= self.plan.max_flows;
                    self.coverage.saw(match is_full {
                        true => "table full",
                        false => "chain full",
                    });
                    let half_open = self.flows.flows_half_open();
                    ensure!(half_open == 0, "full, with {half_open} half-open flows");
                    continue;
                }
                other => return Err(format!("{other:?} for {packet:?}")),
            };
            let is_as_sent = labelled.is_some() || dscp == 0;
            ensure!(is_as_sent, "an unlabelled packet left with a DSCP");
            let packet = *packet;
            self.model.sent(Sent { packet, labelled });
        }
        Ok(())
    }

    /// Series shed because the ring was full, and half-open flows' series shed because it was half
    /// full.
    fn shed(&self) -> [u64; 2] {
        let counters = self.flows.counters();
        let half_open = counters.series_shed_half_open();
        [counters.series_shed() - half_open, half_open]
    }

    /// A burst sheds only if there is no room; half-open flows get only half of the ring.
    fn check_shed(&mut self, before: [u64; 2]) -> Outcome {
        let after = self.shed();
        let is_full = !self.flows.has_room(1);
        ensure!(after[0] == before[0] || is_full, "shed, and there is room");
        let is_half_full = !self.flows.has_room(self.plan.ring_slots / 2);
        ensure!(after[1] == before[1] || is_half_full, "half-open and shed, and there is room");
        Ok(())
    }

    /// Packets that belong to no flow.
    pub fn noise(&mut self) {
        let mut data = noise().concat();
        self.packets += (data.len() / FRAME) as u64;
        self.walk(&mut data);
    }

    fn walk(&mut self, data: &mut [u8]) {
        let packet = |at| flowmgr::Packet {
            at,
            captured: FRAME as u32,
            wire: u32::MAX,
            link: RAW_IP,
            time_us: self.wall_us,
            rss: None,
            gso: flowmgr::Gso::NONE,
        };
        let packets = (0..data.len()).step_by(FRAME).map(packet);
        let packets: Vec<_> = packets.collect();
        self.flows.burst(data, &packets, self.now_ns, &mut self.fates);
        let entries = self.flows.flows_alive() + self.flows.flows_unrecorded();
        self.entries = self.entries.max(entries);
    }
}
