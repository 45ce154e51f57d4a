//! Which labels are emitted live, and when, while several are on their way.

use super::*;

/// The first flow's series is on a device that hangs, all others on one that answers.
#[test]
fn a_label_that_is_there_does_not_wait_behind_one_that_is_not() {
    let mut bench =
        Bench::new(Config { effect: Effect::Arrival, max_flows: 256, buckets: 64, ..config() });
    let flows = 14;
    for port in 1..=flows {
        bench.burst(&[tcp(0, port, 100 + port, TCP_ACK); 3]);
    }
    bench.settle();
    assert_eq!(bench.ring.waiting(), usize::from(flows));
    let labels = bench.manager.labels();
    for at in 1..usize::from(flows) {
        let flow = bench.ring.get(at).flow;
        let word = labels.word(0, flow.index);
        assert!(word.decide(flow.generation, CLASS_0).is_ok());
    }
    (0..flows).for_each(|_| bench.settle());
    assert_eq!(bench.manager.labels_awaited(), 1);
    assert_eq!(bench.labels(), usize::from(flows) - 1);
    let flow = bench.ring.get(0).flow;
    let word = labels.word(0, flow.index);
    assert!(word.decide(flow.generation, CLASS_0).is_ok());
    bench.settle();
    assert_eq!(bench.manager.labels_awaited(), 0);
    assert_eq!(bench.labels(), usize::from(flows));
}

/// Live, a label may be there while an earlier one is still on its way.
#[test]
fn a_report_names_no_label_that_was_not_said() {
    let mut bench = Bench::new(Config {
        effect: Effect::Arrival,
        settings: Settings { active_timeout_s: 10, ..config().settings },
        ..config()
    });
    for port in 1..=8 {
        bench.burst(&[tcp(0, port, 100, 0); 3]);
    }
    assert_eq!(bench.ring.waiting(), 8);
    let last = bench.ring.get(7).flow;
    let labels = bench.manager.labels();
    let word = labels.word(0, last.index);
    word.decide(last.generation, CLASS_0).unwrap();
    bench.burst(&[tcp(11 * SECOND_US, 8, 100, 0)]);
    // Seven are on their way, and the last is not looked at yet.
    bench.settle();
    assert_eq!((bench.labels(), bench.flows().len()), (1, 1));
    let decision = bench.flows()[0].decisions[0].unwrap();
    assert_eq!(decision.time_to_label_us, Some(0));
    bench.answer(CLASS_0);
    (0..8).for_each(|_| bench.settle());
    assert_eq!(bench.labels(), 8, "each once");
}

/// Live, nothing need come between a flow's last packet and its label.
#[test]
fn the_time_of_a_label_is_not_before_the_label() {
    let mut bench = Bench::new(Config { effect: Effect::Arrival, ..config() });
    bench.burst(&[tcp(SECOND_US, 1, 100, TCP_ACK); 3]);
    bench.answer(CLASS_0);
    let records = &mut bench.records;
    let took_ns = 7_000_000;
    bench.manager.settle(u64::MAX, took_ns, &mut |record| records.push(record.clone()));
    let Some(Record::Label(label)) = bench.records.first() else {
        panic!("no label");
    };
    assert_eq!(label.time_us, SECOND_US + 7000);
    assert_eq!(label.decision.time_to_label_us, Some(7000));
}
