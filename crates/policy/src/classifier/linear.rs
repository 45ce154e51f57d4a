//! All filters, one after the other: the definition that every other classifier is held against, and the fastest for few.

use crate::{Address, Filter, Key, RuleNumber};

/// Filters by rank.
#[derive(Clone, Debug)]
pub struct Linear<A> {
    filters: Vec<Filter<A>>,
}

impl<A: Address> Linear<A> {
    /// Of these filters, in any order.
    pub fn new(filters: &[Filter<A>]) -> Linear<A> {
        let mut filters = filters.to_vec();
        filters.sort_by_key(|filter| filter.rank);
        Linear { filters }
    }

    /// The rule of the least rank of which a filter has the key; of rules with a condition, those that `accepts`.
    pub fn find(
        &self,
        key: &Key<A>,
        mut accepts: impl FnMut(RuleNumber) -> bool,
    ) -> Option<RuleNumber> {
        let fits = |filter: &&Filter<A>| {
            filter.has(key) && (!filter.is_conditional || accepts(filter.rule))
        };
        self.filters.iter().find(fits).map(|filter| filter.rule)
    }
}
