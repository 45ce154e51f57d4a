//! Settings that change while flows go on.

use super::*;
use crate::Actions;

fn settings(config: Config) -> Settings {
    config.settings
}

fn live() -> Config {
    Config { effect: Effect::Arrival, ..config() }
}

#[test]
fn flows_that_are_there_end_by_the_new_timeout() {
    let mut bench = Bench::new(live());
    bench.burst(&[tcp(0, 1, 2, 0), tcp(0, 3, 4, 0)]);
    bench.manager.pass(10 * SECOND_US);
    let mut other =
        settings(Config { settings: Settings { idle_timeout_s: 4, ..live().settings }, ..live() });
    bench.manager.configure(&mut other);
    assert_eq!(other, settings(live()), "the old ones come back");
    assert_eq!(bench.manager.flows_alive(), 2);
    for second in 11..17 {
        bench.manager.pass(second * SECOND_US);
    }
    assert_eq!(bench.manager.flows_alive(), 0);
    let counters = bench.manager.counters().clone();
    assert_eq!((counters.flows_begun.total(), bench.finish().len()), (2, 2));
}

#[test]
fn settings_that_do_not_change_do_not_hold_up_the_sweep() {
    let mut bench = Bench::new(live());
    bench.burst(&[tcp(0, 1, 2, 0)]);
    for half_second in 1..80 {
        bench.manager.configure(&mut settings(live()));
        bench.manager.pass(half_second * SECOND_US / 2);
    }
    assert_eq!(bench.manager.flows_alive(), 0);
}

#[test]
fn reports_begin_and_end_with_the_active_timeout() {
    let mut bench = Bench::new(live());
    let every_second = |bench: &mut Bench, seconds: std::ops::Range<i64>| {
        for second in seconds {
            bench.burst(&[tcp(second * SECOND_US, 1, 2, 0)]);
            bench.settle();
        }
        bench.flows().len()
    };
    assert_eq!(every_second(&mut bench, 0..20), 0);
    let with_timeout = |active_timeout_s| {
        settings(Config { settings: Settings { active_timeout_s, ..live().settings }, ..live() })
    };
    bench.manager.configure(&mut with_timeout(8));
    let reports = every_second(&mut bench, 20..60);
    assert!((4..=5).contains(&reports), "{reports}");
    bench.manager.configure(&mut with_timeout(0));
    assert_eq!(every_second(&mut bench, 60..90), reports);
    let flows = bench.finish();
    let packets = flows.iter().map(|flow| flow.counts.packets[0]);
    assert_eq!(packets.sum::<u64>(), 90, "each in one record");
}

#[test]
fn labels_get_the_new_dscp_from_the_next_packet_on() {
    let mut bench = Bench::new(live());
    let packet = tcp(0, 1, 2, TCP_ACK);
    bench.burst(&[packet; 3]);
    bench.answer(CLASS_0);
    assert_eq!(bench.burst(&[packet])[1] >> 2, 46);
    let mut other = settings(live());
    other.actions = Actions::of_dscp(&[Some(10), None, None]);
    bench.manager.configure(&mut other);
    assert_eq!(bench.burst(&[packet])[1] >> 2, 10);
    other.actions = Actions::of_dscp(&[None; 3]);
    bench.manager.configure(&mut other);
    assert_eq!(bench.burst(&[packet])[1] >> 2, 0);
    assert_eq!(bench.verdicts(), [Verdict::Labelled], "it has its label");
}

#[test]
fn fin_and_rst_end_flows_or_do_not() {
    let mut bench = Bench::new(live());
    let mut other = settings(Config {
        settings: Settings { end_on_fin_rst: false, ..live().settings },
        ..live()
    });
    bench.manager.configure(&mut other);
    bench.burst(&[tcp(0, 1, 2, TCP_RST), tcp(0, 1, 2, TCP_SYN)]);
    assert_eq!(bench.manager.flows_alive(), 1);
    bench.manager.configure(&mut other);
    bench.burst(&[tcp(0, 1, 2, TCP_RST), tcp(0, 1, 2, TCP_SYN)]);
    assert_eq!(bench.manager.counters().flows_begun.total(), 2);
}
