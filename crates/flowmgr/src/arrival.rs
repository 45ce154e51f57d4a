//! When a label came, in packet time.
//!
//! Packets have stamps, labels have none. A label comes between two bursts, perhaps long after the
//! last packet; the run's clock says how long after.

/// The relation of the clock that stamps packets to the clock of bursts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    /// Stamp of the latest packet, µs.
    packet_us: i64,
    /// Packet time minus the clock of bursts, µs: the greatest of all bursts, from the packets that
    /// waited least.
    lead_us: i64,
}

impl Arrivals {
    /// No packet came yet.
    pub const fn new() -> Arrivals {
        Arrivals { packet_us: i64::MIN, lead_us: i64::MIN }
    }

    /// A burst whose latest packet has this stamp was taken up at `now_ns`.
    pub fn burst(&mut self, packet_us: i64, now_ns: u64) {
        let lead_us = packet_us.saturating_sub(microseconds(now_ns));
        let is_set_back = packet_us < self.packet_us;
        self.lead_us = match is_set_back {
            true => lead_us,
            false => self.lead_us.max(lead_us),
        };
        self.packet_us = packet_us;
    }

    /// Packet time at `now_ns`: not before any packet of the bursts until then, and not before its
    /// label if that took the time from its burst until now.
    pub fn time_us(&self, now_ns: u64) -> i64 {
        let now_us = self.lead_us.saturating_add(microseconds(now_ns));
        now_us.max(self.packet_us)
    }
}

fn microseconds(ns: u64) -> i64 {
    (ns / 1000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_where_no_packet_comes() {
        let mut arrivals = Arrivals::new();
        arrivals.burst(1_000_000, 5_000_000);
        assert_eq!(arrivals.time_us(5_000_000), 1_000_000);
        assert_eq!(arrivals.time_us(25_000_000), 1_020_000);
    }

    #[test]
    fn packets_that_waited_for_their_burst_do_not_set_it_back() {
        let mut arrivals = Arrivals::new();
        arrivals.burst(1_000_000, 5_000_000);
        // This one waited for 3 ms.
        arrivals.burst(1_007_000, 15_000_000);
        assert_eq!(arrivals.time_us(15_000_000), 1_010_000);
    }

    #[test]
    fn it_follows_a_clock_that_is_set_back() {
        let mut arrivals = Arrivals::new();
        arrivals.burst(90_000_000_000, 0);
        arrivals.burst(1_000_000, 1_000_000);
        assert_eq!(arrivals.time_us(2_000_000), 1_001_000);
    }
}
