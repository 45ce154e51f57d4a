//! Linear search: the reference for every other classifier, and the fastest for a few filters.

use crate::{Address, Filter, Key, RuleNumber};

/// Filters by rank.
#[derive(Clone, Debug)]
pub struct Linear<A> {
    filters: Vec<Filter<A>>,
}

impl<A: Address> Linear<A> {
    /// A classifier for these filters, in any order.
    pub fn new(filters: &[Filter<A>]) -> Linear<A> {
        let mut filters = filters.to_vec();
        filters.sort_by_key(|filter| filter.rank);
        Linear { filters }
    }

    /// The rule of least rank with a filter that contains the key; conditional rules only if it
    /// `accepts` them.
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
