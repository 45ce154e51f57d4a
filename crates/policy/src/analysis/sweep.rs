//! Finds filters with overlapping addresses without comparing all pairs.
//!
//! Filters are sorted by source, then destination. Prefixes are nested or disjoint, so in this
//! order the sources that contain the current one form a stack. The filters of one source are a
//! *group*, in which the destinations that contain a given one are found by binary search, once per
//! length in the group.

use super::equal::Covers;
use super::{Cause, takes_all_of};
use crate::{Address, Filter, RuleSet};

/// Maximum steps per filter; beyond that, it counts as not compared.
const FILTER_STEPS: u64 = 1 << 13;
/// Maximum steps for covers and for overlaps of all filters: some seconds.
const STEPS: u64 = 1 << 29;
/// Cost of a binary search, steps.
const SEARCH_STEPS: u64 = 8;
/// Groups up to this size are searched linearly.
const SMALL: usize = 12;

/// Filters sorted by source and destination.
pub struct Sweep<A> {
    /// Copies, for locality.
    sorted: Vec<Filter<A>>,
    /// Original indices.
    order: Vec<u32>,
}

struct Group {
    first: usize,
    end: usize,
    lengths: Vec<u8>,
}

struct Steps {
    all: u64,
    of_filter: u64,
}

impl Steps {
    fn new() -> Steps {
        Steps { all: STEPS, of_filter: 0 }
    }

    fn begin(&mut self) {
        self.of_filter = FILTER_STEPS.min(self.all);
    }

    /// Takes steps; `false` if too few were left.
    fn take(&mut self, steps: u64) -> bool {
        let is_left = self.of_filter >= steps;
        self.of_filter = self.of_filter.saturating_sub(steps);
        self.all = self.all.saturating_sub(steps);
        is_left
    }
}

impl<A: Address> Sweep<A> {
    pub fn new(filters: &[Filter<A>]) -> Sweep<A> {
        let mut order: Vec<u32> = (0..filters.len() as u32).collect();
        order.sort_unstable_by_key(|place| {
            let filter = &filters[*place as usize];
            (source(filter), destination(filter), filter.rank)
        });
        let sorted = order.iter().map(|place| filters[*place as usize]);
        Sweep { sorted: sorted.collect(), order }
    }

    /// For each filter without a cover, finds an earlier rule that takes all flows of its condition
    /// and has a box around it. Returns the number of filters not compared with all.
    pub fn cover(&self, rules: &RuleSet, covers: &mut Covers) -> usize {
        let mut not_compared = 0;
        let mut steps = Steps::new();
        self.walk(|stack, place| {
            let at = self.order[place] as usize;
            if covers[at].is_some() {
                return;
            }
            steps.begin();
            let filter = self.at(place);
            let mut cover = None;
            let mut is_whole = true;
            for group in stack {
                is_whole &= self.around(group, filter, &mut steps, |other| {
                    let other = self.at(other);
                    let is_cover = cover.is_none()
                        && other.rank < filter.rank
                        && other.rule != filter.rule
                        && other.covers(filter)
                        && takes_all_of(rules, other.rule, filter.rule);
                    if is_cover {
                        cover = Some((other.rule, Cause::Shadowed));
                    }
                    // From the filter's own rank on, none is earlier.
                    is_cover || other.rank >= filter.rank
                });
                if cover.is_some() || !is_whole {
                    break;
                }
            }
            covers[at] = cover;
            not_compared += usize::from(cover.is_none() && !is_whole);
        });
        not_compared
    }

    /// Reports each pair of filters with overlapping addresses once, except those with a cover.
    /// Returns the number of filters not compared with all.
    pub fn overlaps(
        &self,
        covers: &Covers,
        mut found: impl FnMut(&Filter<A>, &Filter<A>),
    ) -> usize {
        let mut not_compared = 0;
        let mut steps = Steps::new();
        let is_idle = |place: usize| covers[self.order[place] as usize].is_some();
        self.walk(|stack, place| {
            if is_idle(place) {
                return;
            }
            steps.begin();
            let filter = self.at(place);
            let mut is_whole = true;
            for (depth, group) in stack.iter().enumerate() {
                let is_own = depth + 1 == stack.len();
                is_whole &= self.around(group, filter, &mut steps, |other| {
                    // Of two filters with one destination in one group, the later reports the pair.
                    let is_seen = is_own
                        && other >= place
                        && destination(self.at(other)) == destination(filter);
                    if !is_seen && !is_idle(other) {
                        found(self.at(other), filter);
                    }
                    false
                });
                // In its own group, inner filters report this one as around them.
                if !is_own {
                    is_whole &= self.inside(group, filter, &mut steps, |other| {
                        if !is_idle(other) {
                            found(self.at(other), filter);
                        }
                    });
                }
                if !is_whole {
                    break;
                }
            }
            not_compared += usize::from(!is_whole);
        });
        not_compared
    }

    fn at(&self, place: usize) -> &Filter<A> {
        &self.sorted[place]
    }

    /// Visits each filter with the groups whose source contains its own, its own group last.
    fn walk(&self, mut visit: impl FnMut(&[Group], usize)) {
        let mut stack: Vec<Group> = Vec::new();
        let mut first = 0;
        while first < self.order.len() {
            let own = source(self.at(first));
            let count = self.sorted[first..].partition_point(|filter| source(filter) == own);
            while stack.last().is_some_and(|group| {
                let (around, length) = source(self.at(group.first));
                length >= own.1 || own.0.prefix(length) != around
            }) {
                stack.pop();
            }
            stack.push(self.group(first, first + count));
            for place in first..first + count {
                visit(&stack, place);
            }
            first += count;
        }
    }

    fn group(&self, first: usize, end: usize) -> Group {
        let mut is_there = [false; 129];
        for place in first..end {
            is_there[usize::from(self.at(place).destination_length)] = true;
        }
        let lengths = (0..=128_u8).filter(|length| is_there[usize::from(*length)]);
        Group { first, end, lengths: lengths.collect() }
    }

    /// Visits the filters of a group whose destination contains `filter`'s; filters of one
    /// destination by rank, until `visit` returns true. `false`: steps ran out.
    fn around(
        &self,
        group: &Group,
        filter: &Filter<A>,
        steps: &mut Steps,
        mut visit: impl FnMut(usize) -> bool,
    ) -> bool {
        let (wanted, length) = destination(filter);
        if group.end - group.first <= SMALL {
            for place in group.first..group.end {
                let (around, shorter) = destination(self.at(place));
                if shorter <= length && wanted.prefix(shorter) == around {
                    visit(place);
                }
            }
            return steps.take((group.end - group.first) as u64);
        }
        for &shorter in group.lengths.iter().take_while(|shorter| **shorter <= length) {
            if !steps.take(SEARCH_STEPS) {
                return false;
            }
            let around = (wanted.prefix(shorter), shorter);
            for place in self.search(group, |at| at < around)..group.end {
                if destination(self.at(place)) != around {
                    break;
                }
                if !steps.take(1) {
                    return false;
                }
                if visit(place) {
                    break;
                }
            }
        }
        true
    }

    /// Visits the filters of a group whose destination lies in `filter`'s and is longer.
    /// `false`: steps ran out.
    fn inside(
        &self,
        group: &Group,
        filter: &Filter<A>,
        steps: &mut Steps,
        mut visit: impl FnMut(usize),
    ) -> bool {
        let own = destination(filter);
        let last = own.0.last(own.1);
        if group.lengths.last().is_none_or(|longest| *longest <= own.1) {
            return true;
        }
        if !steps.take(SEARCH_STEPS) {
            return false;
        }
        for place in self.search(group, |at| at <= own)..group.end {
            if self.at(place).destination > last {
                break;
            }
            if !steps.take(1) {
                return false;
            }
            visit(place);
        }
        true
    }

    /// The first index in a group whose destination is not `before` the wanted one.
    fn search(&self, group: &Group, before: impl Fn((A, u8)) -> bool) -> usize {
        let filters = &self.sorted[group.first..group.end];
        group.first + filters.partition_point(|filter| before(destination(filter)))
    }
}

fn source<A: Address>(filter: &Filter<A>) -> (A, u8) {
    (filter.source, filter.source_length)
}

fn destination<A: Address>(filter: &Filter<A>) -> (A, u8) {
    (filter.destination, filter.destination_length)
}
