//! Finding the rule of a tuple.

mod linear;

pub use linear::Linear;

use crate::{Address, Filter, Key, RuleNumber};

/// Filters of one family that can be looked up.
#[derive(Debug)]
pub struct Classifier<A> {
    linear: Linear<A>,
}

impl<A: Address> Classifier<A> {
    /// Of these filters, in any order.
    pub fn new(filters: &[Filter<A>]) -> Classifier<A> {
        Classifier {
            linear: Linear::new(filters),
        }
    }

    /// For each of `keys`, the rule of the least rank of which a filter has the key; of rules with a condition only those that
    /// `accepts`, which gets the place of the key and the rule's number. `found` has as many places as there are keys.
    pub fn find(
        &self,
        keys: &[Key<A>],
        mut accepts: impl FnMut(usize, RuleNumber) -> bool,
        found: &mut [Option<RuleNumber>],
    ) {
        for (place, (key, found)) in keys.iter().zip(found).enumerate() {
            *found = self.linear.find(key, |rule| accepts(place, rule));
        }
    }
}
