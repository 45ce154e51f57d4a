//! Slots by weight, with as few changes as possible.

/// The slots that change, with their new server: each server then has its share of the slots by
/// weight, rounded by largest remainder, and no other server for a slot would change fewer.
///
/// `present` is by slot; an index beyond the weights is a server that gets no slots. Weights are
/// finite and at least 0, and their sum is finite and above 0. A server whose share is below a
/// slot may get none.
pub(super) fn changes(present: &[Option<usize>], weights: &[f64]) -> Vec<(usize, usize)> {
    let mut held = vec![0_usize; weights.len()];
    for server in present.iter().flatten() {
        if let Some(held) = held.get_mut(*server) {
            *held += 1;
        }
    }
    let mut missing = apportion(weights, present.len(), &held);
    // A slot stays with its server up to that server's share.
    let mut is_free = |server: Option<usize>| {
        let missing = server.and_then(|server| missing.get_mut(server));
        match missing.filter(|missing| **missing > 0) {
            Some(missing) => {
                *missing -= 1;
                false
            }
            None => true,
        }
    };
    let free: Vec<usize> = (0..present.len()).filter(|slot| is_free(present[*slot])).collect();
    let takers =
        missing.iter().enumerate().flat_map(|(at, missing)| std::iter::repeat_n(at, *missing));
    free.into_iter().zip(takers).collect()
}

/// Slots of each server. Of equal remainders, servers that hold such a slot come first.
fn apportion(weights: &[f64], slots: usize, held: &[usize]) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let shares: Vec<f64> = weights.iter().map(|weight| weight / total * slots as f64).collect();
    let mut counts: Vec<usize> = shares.iter().map(|share| share.floor() as usize).collect();
    let left = slots.saturating_sub(counts.iter().sum());
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by(|one, other| {
        let [one, other] = [*one, *other].map(|at| (shares[at].fract(), held[at] > counts[at]));
        other.0.total_cmp(&one.0).then(other.1.cmp(&one.1))
    });
    for server in by_remainder.into_iter().take(left) {
        counts[server] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(present: &[Option<usize>], servers: usize) -> Vec<usize> {
        (0..servers).map(|it| present.iter().filter(|at| **at == Some(it)).count()).collect()
    }

    fn apply(present: &mut [Option<usize>], weights: &[f64]) -> usize {
        let changed = changes(present, weights);
        for (slot, server) in &changed {
            assert_ne!(present[*slot], Some(*server), "a slot that stays is not changed");
            present[*slot] = Some(*server);
        }
        changed.len()
    }

    #[test]
    fn examples() {
        let mut present = vec![None; 256];
        assert_eq!(apply(&mut present, &[1.0, 2.0]), 256);
        assert_eq!(counts(&present, 2), [85, 171]);
        assert_eq!(apply(&mut present, &[1.0, 1.0]), 43);
        // Of four equal remainders, those who hold the extra slot keep it.
        let mut present: Vec<_> = [3, 2, 1, 0, 3, 2].map(Some).to_vec();
        assert_eq!(apply(&mut present, &[7.0; 4]), 0);
        // A server that left, and one that is to leave.
        let mut present: Vec<_> = [9, 0, 1, 1].map(Some).to_vec();
        assert_eq!(apply(&mut present, &[1.0, 0.0]), 3);
        assert_eq!(present, [Some(0); 4]);
    }

    proptest! {
        #[test]
        fn slots_follow_weights_with_the_fewest_changes(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e300, 0.0..1.0], 1..65),
            equal: bool,
            present in prop::collection::vec(prop::option::of(0..70_usize), 1..1025),
        ) {
            let weights = if equal { vec![0.1; weights.len()] } else { weights };
            let total: f64 = weights.iter().sum();
            prop_assume!(total > 0.0);
            let (slots, mut after) = (present.len(), present.clone());
            let changed = apply(&mut after, &weights);
            let counted = counts(&after, weights.len());
            prop_assert_eq!(counted.iter().sum::<usize>(), slots);
            for (count, weight) in counted.iter().zip(&weights) {
                let share = weight / total * slots as f64;
                prop_assert!((*count as f64 - share).abs() < 1.0 + 1e-9, "{} of {}", count, share);
                prop_assert!(*weight > 0.0 || *count == 0);
            }
            // Only slots above a server's new count have to change.
            let before = counts(&present, weights.len());
            let kept: usize = before.iter().zip(&counted).map(|(a, b)| *a.min(b)).sum();
            prop_assert_eq!(changed, slots - kept);
            prop_assert_eq!(apply(&mut after, &weights), 0);
        }
    }
}
