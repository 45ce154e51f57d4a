//! Scratch: Mpps of the whole walk.
use cring::{Slot, ring};
use flowmgr::{hash::HashKind, *};
use std::time::Instant;

fn frame(flow: u32) -> [u8; 64] {
    let mut f = [0u8; 64];
    f[12] = 8;
    f[14] = 0x45;
    f[16..18].copy_from_slice(&50u16.to_be_bytes());
    f[22] = 64;
    f[23] = 17;
    f[26..30].copy_from_slice(&(0x0a00_0000u32 | (flow >> 8)).to_be_bytes());
    f[30..34].copy_from_slice(&(0xc0a8_0000u32 | (flow & 0xff)).to_be_bytes());
    f[34..36].copy_from_slice(&1234u16.to_be_bytes());
    f[36..38].copy_from_slice(&((flow >> 3) as u16).to_be_bytes());
    f[38..40].copy_from_slice(&30u16.to_be_bytes());
    f
}

fn main() {
    let bits: u32 = std::env::args().nth(1).map_or(22, |a| a.parse().unwrap());
    let zipf = std::env::args().nth(2).is_some_and(|a| a == "zipf");
    let burst: usize = std::env::args().nth(3).map_or(64, |a| a.parse().unwrap());
    let entries = 1usize << bits;
    let flows = (entries / 2) as u32;
    let (p, mut c) = ring::<Slot>(1 << 16);
    let config = Config {
        k: 10,
        idle_timeout_s: 30,
        closed_timeout_s: 5,
        active_timeout_s: 0,
        end_on_fin_rst: true,
        hash: HashKind::Keyed { seed: 7 },
        max_flows: entries,
        buckets: entries / 4,
        effect: Effect::Arrival,
        dscp: vec![Some(10); 10],
        record_series: false,
        flow_id_first: 0,
        flow_id_step: 1,
    };
    let mut m = Manager::new(config, p).unwrap();
    let labels = m.labels();
    let n = 1usize << std::env::var("N").map_or(23, |n| n.parse().unwrap());
    let mut data = Vec::with_capacity(n * 64);
    let mut x = 88172645463325252u64;
    let mut rnd = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    // zipf(1.0) by inverse of the harmonic CDF approximation
    let h = (flows as f64).ln();
    for _ in 0..n {
        let f = if zipf {
            let u = (rnd() >> 11) as f64 / (1u64 << 53) as f64;
            let r = (u * h).exp() as u32; // 1..flows
            (r.min(flows - 1)).wrapping_mul(2654435761) % flows
        } else {
            (rnd() % flows as u64) as u32
        };
        data.extend_from_slice(&frame(f));
    }
    let mut fates = Vec::new();
    let mk = |at: usize, t: i64| Packet {
        at,
        captured: 64,
        link: 1,
        time_us: t,
        rss: None,
    };
    // preload all flows with 11 packets, labelled
    let mut pre = Vec::new();
    let t0 = Instant::now();
    for chunk in 0..flows / 64 {
        pre.clear();
        for f in 0..64 {
            pre.extend_from_slice(&frame(chunk * 64 + f));
        }
        let packets: Vec<_> = (0..64).map(|i| mk(i * 64, 0)).collect();
        for _ in 0..10 {
            m.burst(&mut pre, &packets, 0, &mut fates);
        }
        let w = c.waiting();
        for i in 0..w {
            let s = c.get(i).flow;
            labels
                .word(s.index)
                .decide(
                    s.generation,
                    cring::Label::Class {
                        class: 1,
                        confidence: 1000,
                        source: cring::Source::Model,
                    },
                )
                .unwrap();
        }
        c.release(w);
        m.settle(u64::MAX, 0, &mut |_| {});
    }
    println!("preload {:?} alive {}", t0.elapsed(), m.flows_alive());
    let mut packets = Vec::with_capacity(burst);
    for round in 0..std::env::var("R").map_or(5, |n| n.parse().unwrap()) {
        let t = Instant::now();
        let mut i = 0;
        while i < n {
            packets.clear();
            for j in i..(i + burst).min(n) {
                packets.push(mk(j * 64, 1000));
            }
            m.burst(&mut data, &packets, 0, &mut fates);
            i += burst;
        }
        let e = t.elapsed().as_secs_f64();
        println!(
            "round {round}: {:.2} Mpps {:.1} ns",
            n as f64 / e / 1e6,
            e / n as f64 * 1e9
        );
    }
    println!("{:?}", m.counters().verdicts.of(verdict::Verdict::Tagged));
}
