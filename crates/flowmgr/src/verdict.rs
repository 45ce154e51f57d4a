//! The verdict of a packet: exactly one each.
//!
//! The counters of all verdicts add up to the packets received, always. The
//! names are the ones that summaries, metrics and documents use.

/// What became of one packet.
///
/// `Labelled`, `Unlabelled`, `Dropped` and `TableFull` are packets of flows; the others belong to
/// none. The order is the order of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Its flow has a label.
    Labelled,
    /// Its flow has no label, or none yet.
    Unlabelled,
    /// It would have begun a flow, and the table, or the chain of its bucket, was full.
    TableFull,
    /// A fragment other than the first: no ports, no flow.
    Fragment,
    /// IP, but neither TCP, UDP nor ICMP; ICMPv6 of multicast listeners and neighbour discovery
    /// (types from 130 on).
    OtherL4,
    /// Not IP.
    NonIp,
    /// A link type that fenxi does not read.
    UnsupportedLink,
    /// Ends inside the link header, tags, PPPoE or the MPLS stack.
    LinkShort,
    /// IP version neither 4 nor 6, or not what the link layer announced.
    IpVersion,
    /// Ends inside the IP header.
    IpShort,
    /// IPv4 header length below 20 bytes.
    IpIhl,
    /// IPv4 total length below its header length; live, an IP length beyond the end of the frame on
    /// the wire.
    IpLength,
    /// Ends inside an IPv6 extension header.
    Ip6ExtShort,
    /// Ends inside the TCP, UDP or ICMP header.
    L4Short,
    /// TCP data offset below 5.
    TcpDoff,
    /// UDP length below 8.
    UdpLength,
    /// Its flow belongs to another interface, where the packet was seen as well.
    /// (Reading incoming packets only would lose half of each flow whose addresses are translated.)
    SeenElsewhere,
    /// It was counted in the kernel and not walked.
    Counted,
    /// The rule of its flow drops it.
    Dropped,
}

impl Verdict {
    /// How many verdicts there are.
    pub const COUNT: usize = 19;

    /// All verdicts, in the order of their counters.
    pub const ALL: [Verdict; Verdict::COUNT] = [
        Verdict::Labelled,
        Verdict::Unlabelled,
        Verdict::TableFull,
        Verdict::Fragment,
        Verdict::OtherL4,
        Verdict::NonIp,
        Verdict::UnsupportedLink,
        Verdict::LinkShort,
        Verdict::IpVersion,
        Verdict::IpShort,
        Verdict::IpIhl,
        Verdict::IpLength,
        Verdict::Ip6ExtShort,
        Verdict::L4Short,
        Verdict::TcpDoff,
        Verdict::UdpLength,
        Verdict::SeenElsewhere,
        Verdict::Counted,
        Verdict::Dropped,
    ];

    /// The name in summaries and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Labelled => "labelled",
            Verdict::Unlabelled => "unlabelled",
            Verdict::TableFull => "table_full",
            Verdict::Fragment => "fragment",
            Verdict::OtherL4 => "other_l4",
            Verdict::NonIp => "non_ip",
            Verdict::UnsupportedLink => "unsupported_link",
            Verdict::LinkShort => "link_short",
            Verdict::IpVersion => "ip_version",
            Verdict::IpShort => "ip_short",
            Verdict::IpIhl => "ip_ihl",
            Verdict::IpLength => "ip_length",
            Verdict::Ip6ExtShort => "ip6_ext_short",
            Verdict::L4Short => "l4_short",
            Verdict::TcpDoff => "tcp_doff",
            Verdict::UdpLength => "udp_length",
            Verdict::SeenElsewhere => "seen_elsewhere",
            Verdict::Counted => "counted",
            Verdict::Dropped => "dropped",
        }
    }
}

cring::counters! {
    /// Packets by verdict.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Verdicts {
        packets: [u64; Verdict::COUNT],
    }
}

impl Verdicts {
    /// Packets that got this verdict.
    pub fn get(&self, verdict: Verdict) -> u64 {
        self.packets[verdict as usize]
    }

    /// Packets of all verdicts together.
    pub fn total(&self) -> u64 {
        self.packets.iter().sum()
    }

    /// Sets how many packets were counted in the kernel.
    pub fn set_counted(&mut self, packets: u64) {
        self.packets[Verdict::Counted as usize] = packets;
    }

    /// One more packet.
    #[inline]
    pub(crate) fn count(&mut self, verdict: Verdict) {
        self.packets[verdict as usize] += 1;
    }

    /// More packets with one verdict.
    pub(crate) fn count_many(&mut self, verdict: Verdict, packets: u64) {
        self.packets[verdict as usize] += packets;
    }

    /// `packets` counted with one verdict have another. The total stays.
    pub(crate) fn change(&mut self, from: Verdict, to: Verdict, packets: u64) {
        self.packets[from as usize] -= packets;
        self.packets[to as usize] += packets;
    }

    /// `packets` counted as labelled turn out unlabelled: their label never came. The total stays.
    pub(crate) fn retract_labelled(&mut self, packets: u64) {
        self.packets[Verdict::Labelled as usize] -= packets;
        self.packets[Verdict::Unlabelled as usize] += packets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_every_verdict_at_its_counter() {
        for (at, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, at);
        }
    }

    #[test]
    fn retracting_keeps_the_total() {
        let mut verdicts = Verdicts::default();
        for _ in 0..5 {
            verdicts.count(Verdict::Labelled);
        }
        verdicts.count(Verdict::Fragment);
        verdicts.retract_labelled(3);
        assert_eq!(verdicts.get(Verdict::Labelled), 2);
        assert_eq!(verdicts.get(Verdict::Unlabelled), 3);
        assert_eq!(verdicts.total(), 6);
    }
}
