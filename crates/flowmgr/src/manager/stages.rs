//! The first two stages of a burst: they parse and hash its packets, and prefetch the memory that
//! the third needs.

use std::num::NonZeroU32;

use super::Packet;
use crate::config::BURST_MAX;
use crate::entry::FLAGS_USUAL;
use crate::flows::Flows;
use crate::headers::HeadersPart;
use crate::part::Part as _;
use crate::prefetch::prefetch;
use crate::verdict::Verdict;
use crate::wire::{self, Headers};

/// A packet between the stages.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    pub headers: Result<Headers, Verdict>,
    pub hash: u64,
    /// Slot of the hashed bucket where the flow most likely is.
    pub guess: Option<u8>,
}

/// The packets of a burst between the stages.
pub(super) struct Staging {
    pub staged: Vec<Staged>,
}

/// Headers are prefetched this many packets ahead of the parser. A whole burst at once would
/// take all miss buffers of a core, a few dozen, and hold up the first packet.
const HEADERS_AHEAD: usize = 24;

impl Staging {
    pub fn new() -> Staging {
        Staging { staged: Vec::with_capacity(BURST_MAX) }
    }

    /// Stage one: headers and hash of every packet. Returns whether one of them was merged.
    #[inline]
    pub fn parse_and_hash(&mut self, flows: &mut Flows, data: &[u8], packets: &[Packet]) -> bool {
        self.staged.clear();
        let mut gso = 0;
        let mut ahead = packets.iter();
        ahead.by_ref().take(HEADERS_AHEAD).for_each(|packet| prefetch(data, packet.at));
        for packet in packets {
            if let Some(packet) = ahead.next() {
                prefetch(data, packet.at);
            }
            gso |= packet.gso.bits();
            let frame = &data[packet.at..packet.at + packet.captured as usize];
            // One after the other, and not as one result: that would go through memory.
            match wire::parse_usual_v4(packet.link, frame, packet.wire) {
                Some(headers) => self.stage(flows, packet, Ok(headers)),
                None => self.stage_any(flows, packet, frame),
            }
        }
        gso != 0
    }

    #[inline(never)]
    fn stage_any(&mut self, flows: &mut Flows, packet: &Packet, frame: &[u8]) {
        self.stage(flows, packet, wire::parse_on_wire(packet.link, frame, packet.wire));
    }

    /// Hashes a packet, and prefetches its bucket.
    #[inline(always)]
    fn stage(&mut self, flows: &mut Flows, packet: &Packet, headers: Result<Headers, Verdict>) {
        let mut hash = 0;
        if let Ok(headers) = &headers {
            hash = flows.hash(&headers.key, packet.rss.map(NonZeroU32::get));
            flows.table.prefetch(hash);
        }
        self.staged.push(Staged { headers, hash, guess: None });
    }

    /// Stage two: prefetches the entry that each packet most likely needs, and what else is kept of
    /// the flow.
    #[inline]
    pub fn prefetch_entries(
        &mut self,
        flows: &Flows,
        seen: &HeadersPart,
        prefetch_more: impl Fn(u32),
    ) {
        let mut begun = 0;
        for staged in &mut self.staged {
            let Ok(headers) = &staged.headers else { continue };
            let Some((slot, index)) = flows.table.guess(staged.hash) else {
                begun += 1;
                flows.prefetch_new(staged.hash, begun);
                continue;
            };
            staged.guess = Some(slot);
            flows.entries.prefetch(index);
            if headers.tcp_flags & !FLAGS_USUAL != 0 {
                seen.prefetch(index);
            }
            prefetch_more(index);
        }
    }
}
