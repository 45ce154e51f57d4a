//! Clocks that step.

use super::*;

const DAY_US: i64 = 86_400 * SECOND_US;
/// 1 January 2100.
const YEAR_2100_US: i64 = 4_102_444_800 * SECOND_US;
const NOW_US: i64 = 1_800_000_000 * SECOND_US;

/// A flow in each second, which is over after 20 s and gone after 41: the table of 64 has room.
fn table() -> Config {
    Config { settings: Settings { idle_timeout_s: 20, ..config().settings }, ..config() }
}

fn many_short_flows(number: i64) -> Tcp {
    let turn = (number % 80) as u8;
    tcp(NOW_US + number * SECOND_US, 100 + turn, 1, TCP_SYN)
}

/// After a step of the clock by a day, and back, silent flows end and a full table finds room.
#[test]
fn silent_flows_end_after_the_clock_went_a_day_ahead_and_back() {
    for effect in [Effect::PacketTime { delay_us: 0 }, Effect::Arrival] {
        let mut bench = Bench::new(Config { effect, ..table() });
        let ahead = |packet: Tcp| Tcp { time_us: packet.time_us + DAY_US, ..packet };
        for number in 0..1000 {
            let packet = many_short_flows(number);
            let packet = match number {
                300..400 => ahead(packet),
                _ => packet,
            };
            bench.burst(&[packet]);
            bench.settle();
        }
        // Where the clock stays at the day ahead, 64 flows fill the table and stay.
        let counters = bench.manager.counters();
        assert_eq!(counters.verdicts.get(Verdict::TableFull), 0);
        assert_eq!(counters.clock_rebased, 1);
        assert!(counters.flows_ended[EndReason::Idle as usize] > 900);
        // Records have the times that the packets had.
        let flows = bench.finish();
        assert_eq!(flows.len(), 1000);
        for flow in flows {
            let number = flow.flow.flow_id as i64;
            let ahead_us = if (300..400).contains(&number) { DAY_US } else { 0 };
            assert_eq!(flow.last_us, NOW_US + number * SECOND_US + ahead_us);
            assert_eq!(flow.flow.first_us, flow.last_us);
        }
    }
}

/// However a capture with one packet of the year 2100 is cut into bursts, the same flows end in the
/// same order.
#[test]
fn one_absurd_time_fills_no_table_and_repeats() {
    let run = |burst: usize| {
        let mut bench = Bench::new(table());
        let mut packets: Vec<Tcp> = (0..1000).map(many_short_flows).collect();
        packets[500].time_us = YEAR_2100_US;
        for packets in packets.chunks(burst) {
            bench.burst(packets);
            bench.answer(CLASS_0);
        }
        bench.settle();
        let flows = bench.finish();
        let counters = bench.manager.counters();
        assert_eq!(counters.verdicts.get(Verdict::TableFull), 0);
        assert_eq!(counters.clock_rebased, 1);
        flows
    };
    let flows = run(1);
    assert_eq!(flows.len(), 1000);
    assert_eq!(run(32), flows);
    assert_eq!(run(128), flows);
}

/// A flow survives a step back: its label counts, and it is reported when its time has come.
#[test]
fn a_flow_keeps_its_label_and_its_reports_over_a_step_back() {
    let mut bench = Bench::new(Config {
        settings: Settings { active_timeout_s: 10, ..config().settings },
        ..config()
    });
    let at = |second: i64| tcp(NOW_US + second * SECOND_US, 1, 2, TCP_SYN);
    bench.burst(&[at(0), at(0), at(0)]);
    bench.answer(CLASS_0);
    for second in 1..=25 {
        bench.burst(&[Tcp { time_us: at(second).time_us - DAY_US, ..at(second) }]);
        assert_eq!(bench.verdicts(), [Verdict::Labelled], "second {second}");
        bench.settle();
    }
    let flows = bench.finish();
    let reasons: Vec<_> = flows.iter().map(|flow| flow.reason).collect();
    assert_eq!(reasons, [EndReason::Active, EndReason::Active, EndReason::Drain]);
    assert_eq!(flows[0].counts.packets[0], 13);
}

/// Two captures merged, their clocks an hour apart: no flow is cut in two.
#[test]
fn two_clocks_that_alternate_cut_no_flow() {
    let mut bench = Bench::new(config());
    for second in 0..200 {
        let time_us = NOW_US + second * SECOND_US;
        bench.burst(&[tcp(time_us, 1, 2, TCP_ACK), tcp(time_us + 3600 * SECOND_US, 3, 4, TCP_ACK)]);
        bench.answer(CLASS_0);
    }
    bench.settle();
    let flows = bench.finish();
    // The first time that it is seen, the other clock might as well be a pause.
    let packets: Vec<_> = flows.iter().map(|flow| flow.counts.packets[0]).collect();
    assert_eq!(packets.iter().sum::<u64>(), 400);
    assert_eq!(packets, [1, 200, 199]);
    assert_eq!(bench.manager.counters().clock_rebased, 199);
}
