use super::*;

const SECOND: u64 = 1_000_000_000;

pub(crate) fn egresses(count: u8) -> Vec<Egress> {
    (0..count).map(|n| Egress::server([192, 0, 2, n].into(), 80)).collect()
}

fn slot(index: u32, incarnation: u32) -> Slot {
    Slot { index, incarnation }
}

struct Both {
    actions: Actions,
    owner: ActionsWriter,
    slots: [Slot; 2],
    weights: [Option<f64>; 2],
}

impl Both {
    fn new() -> Self {
        let (actions, owner) = Actions::in_memory(&egresses(4), 7).unwrap();
        Self { actions, owner, slots: [slot(0, 1), slot(3, 2)], weights: [None; 2] }
    }

    fn publish(&mut self, weights: [f64; 2]) {
        for (slot, weight) in self.slots.into_iter().zip(weights) {
            self.owner.set(slot, weight);
        }
        self.owner.publish(100 * SECOND);
    }

    fn at(&mut self, now_ns: u64) -> Result<(), Refusal> {
        self.actions.weights(now_ns, &self.slots, &mut self.weights)
    }
}

#[test]
fn weights_come_back_as_they_were_set() {
    let mut both = Both::new();
    assert_eq!(both.owner.epoch_ns(), 7);
    let listed: Vec<_> = both.owner.egresses().collect();
    let slots = (0..4).map(|index| slot(index, 1));
    assert_eq!(listed, slots.zip(egresses(4)).collect::<Vec<_>>());
    for weights in [[1.0, 2.0], [0.0, 1e-300], [0.1, 1e300]] {
        both.publish(weights);
        assert_eq!(both.at(SECOND), Ok(()));
        assert_eq!(both.weights, weights.map(Some));
    }
}

#[test]
fn actions_come_with_the_weights() {
    let mut both = Both::new();
    let mut actions = [Action::default(); 4];
    assert_eq!(both.actions.actions(&mut actions), Ok(()));
    assert_eq!(actions, [Action::default(); 4]);
    let action = |mark, dscp, task| Action { mark, dscp, task };
    let given = [action(Some(7), None, None), action(Some(9), Some(46), Some(1))];
    both.owner.act(slot(0, 1), given[0]);
    both.owner.act(slot(3, 1), given[1]);
    both.owner.act(slot(4, 1), given[1]);
    assert_eq!(both.actions.actions(&mut actions), Ok(()));
    assert_eq!(actions, [Action::default(); 4], "not published yet");
    both.publish([1.0, 1.0]);
    assert_eq!(both.at(SECOND), Ok(()));
    // The next publication's come with its weights only.
    both.owner.act(slot(0, 1), Action::default());
    both.publish([2.0, 1.0]);
    assert_eq!(both.actions.actions(&mut actions), Ok(()));
    assert_eq!(actions, [given[0], Action::default(), Action::default(), given[1]]);
    // A program that knows no actions sees memory as it was.
    let at = super::actions(4);
    both.owner.memory[at].store(8, Ordering::Relaxed);
    both.publish([1.0, 1.0]);
    both.owner.memory[at].store(8, Ordering::Relaxed);
    assert_eq!(both.at(SECOND), Ok(()));
    assert_eq!(both.actions.actions(&mut actions), Err(Refusal::Action));
}

#[test]
fn what_is_no_weight_is_refused_by_name() {
    let mut both = Both::new();
    assert_eq!(both.at(1), Err(Refusal::Unwritten));
    both.owner.beat();
    assert_eq!(both.at(1), Err(Refusal::Unwritten));
    for (weights, refusal) in [
        ([1.0, f64::NAN], Refusal::NotANumber),
        ([f64::INFINITY, 1.0], Refusal::Infinite),
        ([f64::MAX, f64::MAX], Refusal::Infinite),
        ([1.0, -1e-9], Refusal::Negative),
        ([f64::NEG_INFINITY, 1.0], Refusal::Negative),
        ([0.0, -0.0], Refusal::AllZero),
    ] {
        both.publish(weights);
        assert_eq!(both.at(SECOND), Err(refusal), "{weights:?}");
    }
    both.publish([1.0, 1.0]);
    assert_eq!(both.at(SECOND), Ok(()));
}

#[test]
fn late_weights_and_those_of_a_dead_owner_do_not_apply() {
    let mut both = Both::new();
    both.publish([1.0, 1.0]);
    both.owner.publish(2 * SECOND);
    assert_eq!(both.at(SECOND), Ok(()));
    assert_eq!(both.at(SECOND + SILENCE_MAX_NS), Ok(()));
    assert_eq!(both.at(SECOND + SILENCE_MAX_NS + 1), Err(Refusal::Dead));
    both.owner.beat();
    assert_eq!(both.at(2 * SECOND - 1), Ok(()), "it lives again");
    both.owner.beat();
    assert_eq!(both.at(2 * SECOND), Err(Refusal::Late));
    both.owner.publish(0);
    assert_eq!(both.at(2 * SECOND), Err(Refusal::Unwritten));
}

#[test]
fn a_weight_for_an_egress_that_is_gone_is_none() {
    let mut both = Both::new();
    both.publish([1.0, 2.0]);
    both.slots = [slot(0, 1), slot(3, 9)];
    assert_eq!(both.at(SECOND), Ok(()));
    assert_eq!(both.weights, [Some(1.0), None]);
    both.slots = [slot(4, 1), slot(u32::MAX, 2)];
    assert_eq!(both.at(SECOND), Err(Refusal::Unwritten));
    // A weight that is not asked for does no harm.
    both.slots = [slot(0, 1), slot(1, 1)];
    both.owner.set(slot(2, 1), f64::NAN);
    both.owner.set(slot(4, 1), f64::NAN);
    both.owner.publish(100 * SECOND);
    assert_eq!(both.at(SECOND), Ok(()));
}

#[test]
fn an_owner_may_write_anything_anywhere() {
    let (mut actions, owner) = Actions::in_memory(&egresses(3), 7).unwrap();
    let slots = [slot(0, 1), slot(1, 1), slot(2, 1)];
    let mut weights = [None; 3];
    let mut random = 1u64;
    for round in 0..if cfg!(miri) { 20 } else { 2000 } {
        for word in owner.memory.iter() {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(round);
            word.store(if round % 3 == 0 { u64::MAX } else { random }, Ordering::Relaxed);
        }
        if actions.weights(SECOND, &slots, &mut weights).is_ok() {
            let all = weights.iter().flatten();
            assert!(all.clone().all(|weight| weight.is_finite() && *weight >= 0.0));
        }
        let _ = actions.actions(&mut [Action::default(); 3]);
    }
    // Nor does it get far when it opens what it wrote.
    assert!(matches!(ActionsWriter::new(owner.memory.clone()), Err(Error::Foreign)));
}

#[test]
fn a_header_that_does_not_fit_is_refused() {
    let (_, owner) = Actions::in_memory(&egresses(3), 7).unwrap();
    let with = |word: usize, value| {
        begin(&owner.memory, &egresses(3), 0, 7);
        owner.memory[word].store(value, Ordering::Relaxed);
        ActionsWriter::new(owner.memory.clone()).err()
    };
    assert!(with(2, 0).is_none(), "told by the memory itself");
    assert!(matches!(with(1, 2), Some(Error::Version(2))));
    assert!(matches!(with(3, 4000), Some(Error::Malformed(_))));
    for egresses in [0, EGRESSES_MAX as u64 + 1, u64::MAX] {
        assert!(matches!(with(3, egresses), Some(Error::Schema(_))));
    }
    assert!(Actions::create(&[], 0, 1).is_err());
}
