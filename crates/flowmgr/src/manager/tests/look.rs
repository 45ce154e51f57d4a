//! Looks at the table: each flow once, in portions, without changing anything.

use super::*;
use crate::look::{CHAIN_FLOWS_MAX, Found, Standing, Wanted};

/// A label that counts.
fn class(class: u16) -> Label {
    Label::Class { class, confidence: 60_000, source: Source::Cache, model: 2 }
}

#[test]
fn each_flow_is_seen_once_however_small_the_portions() {
    let mut bench = Bench::new(config());
    let packets: Vec<Tcp> = (1..=60).map(|from| tcp(0, from, 200, TCP_SYN)).collect();
    bench.burst(&packets);
    for most in [CHAIN_FLOWS_MAX, CHAIN_FLOWS_MAX + 7, usize::MAX] {
        let mut rows = Vec::with_capacity(CHAIN_FLOWS_MAX + 8);
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let next = bench.manager.read_flows(from, most, &mut rows);
            assert!(rows.len() <= rows.capacity().min(most));
            seen.extend(rows.drain(..).map(|row| row.flow.flow_id));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<u64>>());
    }
}

#[test]
fn a_row_says_how_far_the_flow_is_on_the_way_to_its_label() {
    let mut bench = Bench::new(config());
    let standing = |bench: &Bench| {
        let mut rows = Vec::with_capacity(CHAIN_FLOWS_MAX);
        bench.manager.read_flows(0, usize::MAX, &mut rows);
        rows[0].standing
    };
    bench.burst(&[tcp(0, 1, 2, TCP_SYN), tcp(1, 2, 1, TCP_SYN | TCP_ACK)]);
    assert_eq!(standing(&bench), Standing::Collecting { elements: 2 });
    bench.burst(&[tcp(2, 1, 2, TCP_ACK)]);
    assert_eq!(standing(&bench), Standing::Asked);
    bench.answer(class(1));
    let Standing::Labelled(decision) = standing(&bench) else {
        panic!("no label");
    };
    assert_eq!((decision.class, decision.confidence), (1, 60_000));
    assert_eq!((decision.depth, decision.model), (3, 2));
    let mut rows = Vec::with_capacity(CHAIN_FLOWS_MAX);
    bench.manager.read_flows(0, usize::MAX, &mut rows);
    assert_eq!(rows[0].counts.packets, [2, 1]);
    assert!(!rows[0].midstream && !rows[0].is_closed);
}

#[test]
fn a_flow_is_found_by_its_ends_with_its_series_and_answers() {
    let mut bench = Bench::new(config());
    bench.burst(&[
        tcp(0, 1, 2, TCP_SYN),
        tcp(1, 2, 1, TCP_SYN | TCP_ACK),
        tcp(2, 1, 2, TCP_ACK),
        tcp(3, 3, 2, TCP_SYN),
    ]);
    bench.answer(class(1));
    let ends = [([10, 0, 0, 2].into(), 80), ([10, 0, 0, 1].into(), 80)];
    let wanted = Wanted::Ends { protocol: Some(wire::TCP), ends };
    let Found::Flow(detail) = bench.manager.look_for(0, usize::MAX, &wanted) else {
        panic!("not found");
    };
    let lengths: Vec<i32> = detail.series.signed_lengths().collect();
    assert_eq!(lengths, [40, -40, 40]);
    assert_eq!(detail.answers[0], Some((3, class(1))));
    assert_eq!((detail.answers[1], detail.decided), (None, Some(0)));
    assert_eq!(detail.series.server_port, 80);
    let nowhere = bench.manager.look_for(0, usize::MAX, &Wanted::Id(9));
    assert!(matches!(nowhere, Found::Nowhere));
    let later = bench.manager.look_for(0, 1, &Wanted::Id(9));
    assert!(matches!(later, Found::NotYet { .. } | Found::Nowhere));
}

#[test]
fn a_series_that_was_given_up_is_lost_and_one_of_a_torn_connection_withheld() {
    let mut bench = Bench::new(config());
    let packets: Vec<Tcp> = (0..3).map(|at| tcp(at, 1, 2, TCP_SYN)).collect();
    bench.burst(&packets);
    bench.answer(Label::Unlabelled);
    let mut rows = Vec::with_capacity(CHAIN_FLOWS_MAX);
    bench.manager.read_flows(0, usize::MAX, &mut rows);
    assert_eq!(rows[0].standing, Standing::Lost);

    let mut strict = config();
    strict.tasks[0].midstream = false;
    let mut bench = Bench::new(strict);
    let packets: Vec<Tcp> = (0..3).map(|at| tcp(at, 1, 2, TCP_ACK)).collect();
    bench.burst(&packets);
    rows.clear();
    bench.manager.read_flows(0, usize::MAX, &mut rows);
    assert_eq!(rows[0].standing, Standing::Withheld);
    assert!(rows[0].midstream);
}

#[test]
fn each_task_has_a_standing_and_a_label_of_its_own() {
    let mut tasks = vec![task(&[3], 0); 3];
    tasks[2].asked.protocols = vec![17];
    let config = Config { tasks, effect: Effect::Arrival, ..config() };
    let (rings, consumers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring(64)).unzip();
    let rings = rings.into_iter().map(|ring| vec![ring]).collect();
    let mut bench = Bench {
        manager: Manager::with_rings(config, rings).unwrap(),
        ring: consumers.into_iter().next().unwrap(),
        records: Vec::new(),
        fates: Vec::new(),
    };
    let found = |bench: &Bench| {
        let Found::Flow(detail) = bench.manager.look_for(0, usize::MAX, &Wanted::Id(0)) else {
            panic!("not found");
        };
        detail
    };
    let standings = |detail: &crate::FlowDetail| {
        let others = detail.others.iter().flatten();
        others.map(|it| it.standing).collect::<Vec<_>>()
    };
    bench.burst(&[tcp(0, 1, 2, TCP_SYN)]);
    let detail = found(&bench);
    let collecting = Standing::Collecting { elements: 1 };
    assert_eq!(detail.look.standing, collecting);
    assert_eq!(standings(&detail), [collecting, Standing::NotAsked]);
    bench.burst(&[tcp(1, 2, 1, TCP_SYN | TCP_ACK), tcp(2, 1, 2, TCP_ACK)]);
    assert_eq!(standings(&found(&bench))[0], Standing::Asked);
    assert_eq!(bench.ring.waiting(), 1);
    let flow = bench.ring.get(0).flow;
    let labels = bench.manager.labels();
    let decided = labels.word(1, flow.index).decide(flow.generation, class(2));
    assert!(decided.is_ok());
    let detail = found(&bench);
    assert_eq!(detail.look.standing, Standing::Asked);
    let label = detail.look.others[0].expect("its label");
    assert_eq!((label.class, label.confidence, label.depth), (2, 60_000, 3));
    assert_eq!(detail.look.others[1], None);
    let other = detail.others[0].expect("a task");
    assert_eq!((other.answers[0], other.decided), (Some((3, class(2))), Some(0)));
    assert_eq!(other.series.k(), 3);
}
