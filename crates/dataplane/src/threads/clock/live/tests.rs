use cring::ring;
use flowmgr::Packet;
use flowmgr::record::{EndReason, Record};
use flowmgr::verdict::Verdict;

use super::*;
use crate::opening::inline::FlowManager;
use crate::threads::small_table::config;

const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 86_400 * SECOND_US;

/// A machine that has been up for an hour, with a wall clock that can be set.
struct Machine {
    boot_us: i64,
    wall_less_boot_us: i64,
}

impl Machine {
    fn new() -> Machine {
        Machine { boot_us: 3600 * SECOND_US, wall_less_boot_us: 1_700_000_000 * SECOND_US }
    }

    fn wall_us(&self) -> i64 {
        self.boot_us + self.wall_less_boot_us
    }

    fn reading(&self) -> Reading {
        Reading { boot_us: self.boot_us, wall_us: self.wall_us() }
    }
}

#[test]
fn while_nobody_sets_the_clock_flow_time_is_wall_time() {
    let mut machine = Machine::new();
    let mut clock = LiveClock::new(machine.reading());
    for _ in 0..100 {
        machine.boot_us += SECOND_US;
        assert_eq!(clock.read(machine.reading()), None);
        let now_us = clock.flow_time(machine.boot_us);
        assert_eq!(now_us, machine.wall_us());
        let stamp_us = machine.wall_us() - 2000;
        assert_eq!(clock.flow_time_of(stamp_us, now_us), stamp_us);
    }
    assert_eq!((clock.ahead_us(), clock.steps()), (0, 0));
}

/// Packets stamped before and after a step, read after it, with the step noticed or not.
#[test]
fn each_packet_is_as_old_as_it_is_whenever_the_clock_was_set() {
    for step_us in [DAY_US, -DAY_US, 10 * SECOND_US, -10 * SECOND_US] {
        let mut machine = Machine::new();
        let mut clock = LiveClock::new(machine.reading());
        let before_us = machine.wall_us();
        machine.boot_us += 3000;
        machine.wall_less_boot_us += step_us;
        let after_us = machine.wall_us();
        machine.boot_us += 2000;
        let now_us = clock.flow_time(machine.boot_us);
        // Not noticed yet: the packet of after says so.
        assert!(clock.fits(before_us, now_us));
        assert!(!clock.fits(after_us, now_us), "{step_us}");
        assert_eq!(clock.read(machine.reading()), Some(step_us));
        assert_eq!(clock.read(machine.reading()), None, "once");
        assert_eq!(clock.flow_time_of(before_us, now_us), now_us - 5000);
        assert_eq!(clock.flow_time_of(after_us, now_us), now_us - 2000);
        // Records have the new time.
        assert_eq!(now_us + clock.ahead_us(), machine.wall_us());
        // An hour later.
        machine.boot_us += 3600 * SECOND_US;
        let now_us = clock.flow_time(machine.boot_us);
        let stamp_us = machine.wall_us() - 400;
        assert_eq!(clock.flow_time_of(stamp_us, now_us), now_us - 400);
        // And back.
        machine.wall_less_boot_us -= step_us;
        assert_eq!(clock.read(machine.reading()), Some(-step_us));
        assert_eq!((clock.ahead_us(), clock.steps()), (0, 2));
    }
}

/// Under overload packets wait in a ring for seconds.
#[test]
fn packets_that_waited_keep_their_age() {
    let mut machine = Machine::new();
    let mut clock = LiveClock::new(machine.reading());
    let stamp_us = machine.wall_us();
    machine.boot_us += 4 * SECOND_US;
    let now_us = clock.flow_time(machine.boot_us);
    assert!(!clock.fits(stamp_us, now_us));
    assert_eq!(clock.read(machine.reading()), None);
    assert_eq!(clock.flow_time_of(stamp_us, now_us), stamp_us);
}

#[test]
fn a_stamp_that_says_nothing_moves_no_clock() {
    let machine = Machine::new();
    let clock = LiveClock::new(machine.reading());
    let now_us = clock.flow_time(machine.boot_us);
    for stamp_us in [0, i64::MIN, i64::MAX, now_us + DAY_US, now_us - DAY_US] {
        let at_us = clock.flow_time_of(stamp_us, now_us);
        assert!((now_us - WAIT_MAX_US..=now_us).contains(&at_us), "{stamp_us}");
    }
}

/// NTP slews both clocks alike; even if it did not, flow time and records would follow.
#[test]
fn a_slow_slew_never_leaves_packets_or_records_behind() {
    let mut machine = Machine::new();
    let mut clock = LiveClock::new(machine.reading());
    for _ in 0..1000 {
        machine.boot_us += SECOND_US;
        machine.wall_less_boot_us += 500;
        clock.read(machine.reading());
        let now_us = clock.flow_time(machine.boot_us);
        let at_us = clock.flow_time_of(machine.wall_us(), now_us);
        assert!((at_us - now_us).abs() <= STEP_US);
        assert!((now_us + clock.ahead_us() - machine.wall_us()).abs() <= STEP_US);
    }
    assert_eq!(clock.steps(), 4, "half a second in portions");
}

/// A SYN from the numbered host, raw IPv4.
fn syn(host: u8) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, host, 10, 0, 1, 1];
    packet.extend([0, 80, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
    packet
}

fn manager() -> FlowManager {
    let (producer, _) = ring(64);
    let mut config = config(256);
    config.tasks[0].midstream = true;
    FlowManager::with_parts(config, vec![vec![producer]], None).unwrap()
}

/// A flow each second through a table of 256, with the wall clock a day ahead for a while: flows
/// end, and the table never fills up. Records have the wall time of when they were written.
#[test]
fn idle_flows_end_after_the_clock_was_set_a_day_ahead_and_back() {
    let mut machine = Machine::new();
    let mut clock = LiveClock::new(machine.reading());
    let mut manager = manager();
    let (mut fates, mut ended) = (Vec::new(), 0);
    for second in 0..1200 {
        machine.boot_us += SECOND_US;
        match second {
            300 => machine.wall_less_boot_us += DAY_US,
            400 => machine.wall_less_boot_us -= DAY_US,
            _ => {}
        }
        let (stamp_us, now_us) = (machine.wall_us() - 500, clock.flow_time(machine.boot_us));
        if !clock.fits(stamp_us, now_us) {
            clock.read(machine.reading());
        }
        let mut data = syn((second % 250) as u8);
        let packet = Packet {
            at: 0,
            captured: data.len() as u32,
            wire: u32::MAX,
            link: 101,
            time_us: clock.flow_time_of(stamp_us, now_us),
            rss: None,
            gso: flowmgr::Gso::NONE,
        };
        manager.burst(&mut data, &[packet], 0, &mut fates);
        assert_eq!(fates[0].verdict, Verdict::Unlabelled, "second {second}");
        manager.pass(now_us - 100_000);
        let ahead_us = clock.ahead_us();
        manager.settle(u64::MAX, 0, &mut |record| {
            record.shift(ahead_us);
            if let Record::Flow(flow) = record {
                assert_eq!(flow.reason, EndReason::Idle);
                let age_us = machine.wall_us() - flow.last_us;
                assert!((30 * SECOND_US..62 * SECOND_US).contains(&age_us), "{age_us}");
                ended += 1;
            }
        });
        assert!(manager.flows_alive() <= 62, "{}", manager.flows_alive());
    }
    assert!(ended > 1100);
    assert_eq!(clock.steps(), 2);
    assert_eq!(manager.counters().clock_rebased, 0);
}
