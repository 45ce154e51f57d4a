//! Filters whose addresses overlap, without comparing each with each.
//!
//! Filters are sorted by source, then destination. Prefixes are nested or disjoint, so in this order the sources that contain
//! the present one form a stack. All filters of one source are a *group*, in which the destinations that contain a given
//! one are found by binary search, one search for each length that the group has.

use super::equal::Covers;
use super::{Cause, takes_all_of};
use crate::{Address, Filter, RuleSet};

/// Steps for one filter, at most. Beyond that, it counts as not compared.
const FILTER_STEPS: u64 = 1 << 15;
/// Steps for covers and for overlaps of all filters, at most: some seconds.
const STEPS: u64 = 1 << 31;
/// Steps that a binary search counts for.
const SEARCH_STEPS: u64 = 8;
/// A group of so many filters is compared one by one.
const SMALL: usize = 12;

/// Filters in the order of their sources and destinations.
pub struct Sweep<'a, A> {
    filters: &'a [Filter<A>],
    order: Vec<u32>,
}

/// The filters of one source.
struct Group {
    first: usize,
    end: usize,
    /// Lengths of their destinations.
    lengths: Vec<u8>,
}

/// Steps that are left.
struct Steps {
    all: u64,
    of_filter: u64,
}

impl Steps {
    fn new() -> Steps {
        Steps {
            all: STEPS,
            of_filter: 0,
        }
    }

    fn begin(&mut self) {
        self.of_filter = FILTER_STEPS.min(self.all);
    }

    /// Whether so many were left.
    fn take(&mut self, steps: u64) -> bool {
        let is_left = self.of_filter >= steps;
        self.of_filter = self.of_filter.saturating_sub(steps);
        self.all = self.all.saturating_sub(steps);
        is_left
    }
}

impl<'a, A: Address> Sweep<'a, A> {
    /// Of these filters.
    pub fn new(filters: &'a [Filter<A>]) -> Sweep<'a, A> {
        let mut order: Vec<u32> = (0..filters.len() as u32).collect();
        order.sort_unstable_by_key(|place| {
            let filter = &filters[*place as usize];
            (source(filter), destination(filter), filter.rank)
        });
        Sweep { filters, order }
    }

    /// Finds for each filter without a cover a rule that comes first, takes all flows of its condition and has a box around
    /// it. Gives the number of filters that were not compared with all.
    pub fn cover(&self, rules: &RuleSet, covers: &mut Covers) -> usize {
        let mut not_compared = 0;
        let mut steps = Steps::new();
        self.walk(|stack, place| {
            let at = self.order[place] as usize;
            if covers[at].is_some() {
                return;
            }
            steps.begin();
            let filter = &self.filters[at];
            let mut cover = None;
            let mut is_whole = true;
            for group in stack {
                is_whole &= self.around(group, filter, &mut steps, |other| {
                    let other = self.at(other);
                    let is_cover = other.rank < filter.rank
                        && other.rule != filter.rule
                        && takes_all_of(rules, other.rule, filter.rule)
                        && other.covers(filter);
                    if is_cover {
                        cover = Some((other.rule, Cause::Shadowed));
                    }
                    // Behind the filter's own rank none comes first.
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

    /// Gives each pair of filters whose addresses overlap, once; those with a cover are left out. Gives the number of filters
    /// that were not compared with all.
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
                    // Of two with one destination in one group, the later sees the earlier.
                    let is_seen = is_own
                        && other >= place
                        && destination(self.at(other)) == destination(filter);
                    if !is_seen && !is_idle(other) {
                        found(self.at(other), filter);
                    }
                    false
                });
                // In its own group, those inside see this one as one around them.
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
        &self.filters[self.order[place] as usize]
    }

    /// Visits each filter with the groups whose source contains its own, the own one last.
    fn walk(&self, mut visit: impl FnMut(&[Group], usize)) {
        let mut stack: Vec<Group> = Vec::new();
        let mut first = 0;
        while first < self.order.len() {
            let own = source(self.at(first));
            let count = self.order[first..]
                .partition_point(|place| source(&self.filters[*place as usize]) == own);
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
        Group {
            first,
            end,
            lengths: lengths.collect(),
        }
    }

    /// Visits the filters of a group whose destination contains that of `filter`, those of one destination by rank, until
    /// `visit` says that no more of that destination are wanted. False: steps ran out.
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
        for &shorter in group
            .lengths
            .iter()
            .take_while(|shorter| **shorter <= length)
        {
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

    /// Visits the filters of a group whose destination lies in that of `filter` and is longer. False: steps ran out.
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

    /// The first place of a group of which the destination is not `before` the wanted one.
    fn search(&self, group: &Group, before: impl Fn((A, u8)) -> bool) -> usize {
        let places = &self.order[group.first..group.end];
        group.first
            + places.partition_point(|place| before(destination(&self.filters[*place as usize])))
    }
}

fn source<A: Address>(filter: &Filter<A>) -> (A, u8) {
    (filter.source, filter.source_length)
}

fn destination<A: Address>(filter: &Filter<A>) -> (A, u8) {
    (filter.destination, filter.destination_length)
}
