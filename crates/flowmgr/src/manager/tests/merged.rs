//! A merged packet walked as a whole, against its segments made one by one.

use super::*;
use crate::BURST_MAX;
use crate::wire::UDP;

/// The IP header of a merged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    V4,
    /// With four bytes of options.
    V4Options,
    V6,
    /// With a header of destination options.
    V6Extension,
}

/// What a sender hands to the kernel at once.
#[derive(Clone, Copy, Debug)]
struct Send {
    ip: Ip,
    is_udp: bool,
    /// Behind a VLAN tag.
    is_tagged: bool,
    from: u8,
    to: u8,
    flags: u8,
    /// 32-bit words of TCP options.
    options: u8,
    seq: u32,
    payload: u16,
    gso_size: u16,
    time_us: i64,
}

impl Send {
    /// A frame with `payload` bytes of payload, behind `before` bytes.
    fn frame(&self, before: usize, payload: usize, flags: u8) -> Vec<u8> {
        let transport = match self.is_udp {
            true => {
                let length = (8 + payload) as u16;
                [&[0, 80, 0, 80][..], &length.to_be_bytes(), &[0, 0]].concat()
            }
            false => {
                let offset = (5 + self.options) << 4;
                let seq = self.seq.wrapping_add(before as u32).to_be_bytes();
                let ports = [0, 80, 0, 80];
                let mut header = [&ports[..], &seq, &[0, 0, 0, 0, offset, flags]].concat();
                header.resize(20 + 4 * usize::from(self.options), 0);
                header
            }
        };
        let length = transport.len() + payload;
        let protocol = if self.is_udp { UDP } else { wire::TCP };
        let ends = [self.from, self.to];
        let (ethertype, ip) = match self.ip {
            Ip::V4 | Ip::V4Options => {
                let options = usize::from(self.ip == Ip::V4Options);
                let total = ((20 + 4 * options + length) as u16).to_be_bytes();
                let mut ip = vec![
                    0x45 + options as u8,
                    0,
                    total[0],
                    total[1],
                    0,
                    0,
                    0,
                    0,
                    64,
                    protocol,
                    0,
                    0,
                ];
                ends.iter().for_each(|end| ip.extend([10, 0, 0, *end]));
                ip.resize(20 + 4 * options, 1);
                ([8, 0], ip)
            }
            Ip::V6 | Ip::V6Extension => {
                let extension = self.ip == Ip::V6Extension;
                let total = ((8 * usize::from(extension) + length) as u16).to_be_bytes();
                let next = if extension { 60 } else { protocol };
                let mut ip = vec![0x60, 0, 0, 0, total[0], total[1], next, 64];
                ends.iter().for_each(|end| ip.extend([&[0xfd; 15][..], &[*end]].concat()));
                if extension {
                    ip.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
                }
                ([0x86, 0xdd], ip)
            }
        };
        let tag: &[u8] = if self.is_tagged { &[0x81, 0, 0, 7] } else { &[] };
        [&[0; 12][..], tag, &ethertype, &ip, &transport, &vec![0xaa; payload]].concat()
    }

    fn gso(&self) -> Gso {
        match self.is_udp {
            true => Gso::udp(self.gso_size),
            false => Gso::tcp(self.gso_size),
        }
    }

    fn merged(&self) -> (Vec<u8>, Gso) {
        (self.frame(0, self.payload.into(), self.flags), self.gso())
    }

    /// As TSO, or UDP segmentation, sends it.
    fn segments(&self) -> Vec<(Vec<u8>, Gso)> {
        let payload = vec![0; self.payload.into()];
        let parts: Vec<&[u8]> = payload.chunks(self.gso_size.into()).collect();
        let segment = |(at, part): (usize, &&[u8])| {
            let mut flags = self.flags;
            if at > 0 {
                flags &= !0x80;
            }
            if at + 1 < parts.len() {
                flags &= !(0x08 | TCP_FIN);
            }
            (self.frame(at * usize::from(self.gso_size), part.len(), flags), Gso::NONE)
        };
        parts.iter().enumerate().map(segment).collect()
    }
}

fn send() -> impl Strategy<Value = Send> {
    let ip = prop::sample::select(vec![Ip::V4, Ip::V4Options, Ip::V6, Ip::V6Extension]);
    // ACK, PSH, FIN, ECE and CWR: what segments may have.
    let flags = prop::sample::select(vec![
        TCP_ACK,
        TCP_ACK | 0x08,
        TCP_ACK | TCP_FIN,
        TCP_FIN,
        0xc0 | TCP_ACK | 0x08,
    ]);
    // From one segment with room to spare to more than any series takes.
    let sizes = prop_oneof![
        (1u16..300, 1u16..300),
        (1u16..60_000, 1000u16..1448),
        (100u16..40_000, 1u16..20),
    ];
    let step_us = prop_oneof![4 => 0i64..1000, 1 => 0..40 * SECOND_US];
    let bools = (any::<bool>(), any::<bool>());
    (ip, bools, (0u8..2, 0u8..2), flags, (0u8..=10, 0u32..3), sizes, step_us).prop_map(
        |(ip, (is_udp, is_tagged), (from, to), flags, (options, seq), sizes, time_us)| {
            let (payload, gso_size) = sizes;
            let seq = seq * u32::from(payload);
            Send {
                ip,
                is_udp,
                is_tagged,
                from,
                to,
                flags,
                options,
                seq,
                payload,
                gso_size,
                time_us,
            }
        },
    )
}

/// What a walk came to, apart from how many packets were merged.
fn outcome(
    config: &Config,
    sends: &[Send],
    bytes: impl Fn(&Send) -> Vec<(Vec<u8>, Gso)>,
) -> (String, u64) {
    let mut bench = Bench::new(config.clone());
    let mut said = String::new();
    for send in sends {
        let frames = bytes(send);
        for frames in frames.chunks(BURST_MAX) {
            let mut data = Vec::new();
            let mut packets = Vec::new();
            for (frame, gso) in frames {
                packets.push(Packet {
                    at: data.len(),
                    captured: frame.len() as u32,
                    wire: u32::MAX,
                    link: 1,
                    time_us: send.time_us,
                    rss: None,
                    gso: *gso,
                });
                data.extend(frame);
            }
            bench.manager.burst(&mut data, &packets, 0, &mut bench.fates);
        }
        // Answers come between two bursts: that they come between two segments is a matter of time.
        for at in 0..bench.ring.waiting() {
            let series = &bench.ring.get(at).series;
            let lengths: Vec<i32> = series.signed_lengths().collect();
            let others: Vec<&[u16]> =
                series.features().iter().map(|feature| series.channel(feature)).collect();
            said += &format!("{} {lengths:?} {others:?}\n", series.task);
        }
        bench.answer_tasks();
        bench.settle();
    }
    bench.manager.drain();
    bench.answer_tasks();
    bench.settle();
    let mut counters = bench.manager.counters().clone();
    let merged = std::mem::take(&mut counters.merged);
    assert_eq!(merged.unknown, 0);
    let packets = counters.verdicts.total();
    assert!(merged.segments <= packets);
    (format!("{said}{:?}\n{counters:?}", bench.records), merged.segments)
}

impl Bench {
    /// Answers every series; the first depth's answer is not sure.
    fn answer_tasks(&mut self) {
        let labels = self.manager.labels();
        let waiting = self.ring.waiting();
        for at in 0..waiting {
            let (flow, task) = (self.ring.get(at).flow, self.ring.get(at).series.task);
            let confidence = if task == 0 { 20_000 } else { 60_000 };
            let label = Label::Class { class: 1, confidence, source: Source::Model, model: 0 };
            let _ = labels.word(task, flow.index).decide(flow.generation, label);
        }
        self.ring.release(waiting);
    }
}

proptest! {
    /// A merged packet has the counts, verdict, series, label, end and measurements of the packets
    /// on the wire.
    #[test]
    fn a_merged_packet_is_its_segments(
        mut sends in prop::collection::vec(send(), 1..12),
        k in prop::sample::select(vec![1usize, 3, 10, 32]),
        deeper in prop::sample::select(vec![0usize, 5]),
        all_features: bool,
        is_data: bool,
        midstream: bool,
        by_packet_time: bool,
        active_timeout_s in prop::sample::select(vec![0u32, 1]),
        for_records: bool,
    ) {
        let mut now_us = 1_000_000 * SECOND_US;
        for send in &mut sends {
            now_us += send.time_us;
            send.time_us = now_us;
        }
        let ks = [k, k + deeper];
        let depths = usize::from(deeper > 0 && k + deeper <= cring::K_MAX) + 1;
        let task = TaskConfig {
            midstream,
            unit: if is_data { cring::Unit::Data } else { cring::Unit::Packet },
            features: match all_features {
                true => cring::Feature::ALL.into_iter().collect(),
                false => TaskConfig::lengths(1, 1).features,
            },
            ..task(&ks[..depths], 30_000)
        };
        let config = Config {
            tasks: vec![task],
            effect: match by_packet_time {
                true => Effect::PacketTime { delay_us: 0 },
                false => Effect::Arrival,
            },
            record_series: match for_records {
                true => crate::SeriesShare::ALL,
                false => crate::SeriesShare::NONE,
            },
            settings: Settings { active_timeout_s, ..config().settings },
            measured: measure::Features::ALL,
            ..config()
        };
        let (whole, segments) = outcome(&config, &sends, |send| vec![send.merged()]);
        let (one_by_one, none) = outcome(&config, &sends, Send::segments);
        prop_assert_eq!(whole, one_by_one);
        prop_assert_eq!(none, 0);
        let expected: usize = sends.iter().map(|send| send.segments().len()).sum();
        prop_assert_eq!(segments, expected as u64);
    }
}

const SEND: Send = Send {
    ip: Ip::V4,
    is_udp: false,
    is_tagged: false,
    from: 1,
    to: 2,
    flags: TCP_ACK,
    options: 3,
    seq: 0,
    payload: 40_000,
    gso_size: 1000,
    time_us: 0,
};

/// One frame through a manager of its own.
fn walk(frame: Vec<u8>, gso: Gso) -> Bench {
    let mut bench = Bench::new(config());
    let mut data = frame;
    let packet = Packet {
        at: 0,
        captured: data.len() as u32,
        wire: u32::MAX,
        link: 1,
        time_us: 0,
        rss: None,
        gso,
    };
    bench.manager.burst(&mut data, &[packet], 0, &mut bench.fates);
    bench
}

fn merged_of(bench: &Bench) -> (u64, u64, u64) {
    let counters = bench.manager.counters();
    (counters.verdicts.total(), counters.merged.segments, counters.merged.unknown)
}

#[test]
fn each_segment_has_its_headers_on_the_wire() {
    let bench = walk(SEND.merged().0, Gso::tcp(1000));
    assert_eq!(merged_of(&bench), (40, 40, 0));
    let counters = bench.manager.counters();
    assert_eq!(counters.flow_bytes, 40 * (1000 + 52));
    assert_eq!(counters.merged.header_bytes, 39 * (14 + 52));
    assert_eq!(counters.merged.more_packets(), 39);
}

#[test]
fn what_was_cut_off_does_not_matter() {
    let (mut frame, gso) = SEND.merged();
    frame.truncate(66);
    assert_eq!(merged_of(&walk(frame, gso)), (40, 40, 0));
}

#[test]
fn tiny_segments_cost_no_more_than_a_series() {
    let send = Send { payload: 65_000, gso_size: 1, ..SEND };
    let bench = walk(send.merged().0, send.gso());
    assert_eq!(merged_of(&bench), (65_000, 65_000, 0));
    assert_eq!(bench.manager.counters().flow_bytes, 65_000 * 53);
}

#[test]
fn segments_that_nobody_told_count_as_one_packet() {
    let merged = SEND.merged().0;
    let mut open = merged.clone();
    open[16..18].fill(0);
    let mut fragment = merged.clone();
    fragment[21] = 9;
    let syn = Send { flags: TCP_SYN, ..SEND }.merged().0;
    let udp = Send { is_udp: true, ..SEND }.merged().0;
    let empty = SEND.frame(0, 0, TCP_ACK);
    for (frame, gso) in [
        (merged.clone(), Gso::UNKNOWN),
        (merged.clone(), Gso::tcp(u16::MAX)),
        (merged, Gso::udp(1000)),
        (open, Gso::tcp(1000)),
        (fragment, Gso::tcp(1000)),
        (syn, Gso::tcp(1000)),
        (udp, Gso::tcp(1000)),
        (empty, Gso::tcp(1000)),
    ] {
        assert_eq!(merged_of(&walk(frame, gso)), (1, 0, 1), "{gso:?}");
    }
}

/// In a tunnel all headers down to the inner TCP header are repeated, and the flow is the outer
/// one.
#[test]
fn segments_of_tunnels_repeat_the_headers_of_both() {
    let inner = SEND.merged().0;
    for (port, header) in [(4789u16, 8), (8472, 8), (6081, 16)] {
        let outer = Send { is_udp: true, ..SEND };
        let mut frame = outer.frame(0, header + inner.len(), 0);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        let at = 42;
        frame[at..].fill(0);
        // Of Geneve, the words of options.
        frame[at] = ((header - 8) / 4) as u8;
        frame[at + header..].copy_from_slice(&inner);
        let bench = walk(frame.clone(), Gso::tcp(1000));
        assert_eq!(merged_of(&bench), (40, 40, 0), "{port}");
        let each = 28 + header + 14 + 52 + 1000;
        assert_eq!(bench.manager.counters().flow_bytes, 40 * each as u64);
        frame.truncate(at + header + 20);
        assert_eq!(merged_of(&walk(frame, Gso::tcp(1000))), (1, 0, 1));
    }
}
