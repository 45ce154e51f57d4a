//! Addresses of rules: trees of source and destination prefixes whose shape is a profile's, in the
//! manner of ClassBench.
//!
//! All rules begin at the root and go down, bit by bit, each until its prefix has its length. A
//! node has two children or one, by the chance of its level, and shares its rules out to two as
//! the skew of its level says. Where a path has as many prefixes as the profile allows, rules whose
//! prefixes end one level below go to one child and all others to the other child.
//!
//! A destination first goes where its source goes, with the chance of its level. From where they
//! part on, it is shared out as above, and nodes give the lighter child what it lacks.

use crate::rng::Rng;

/// Bits of an address.
const LEVELS: u8 = 32;

/// The shape of a tree, by level.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Share of nodes with two children, and how much less the smaller one gets of theirs: 0
    /// nothing, 1 all.
    branching: [(f64, f64); LEVELS as usize],
    /// Prefixes on a path, about.
    nesting: u8,
}

impl Shape {
    /// Each figure, in %, is for four levels. If the set is `growth` times as large as the one that
    /// the figures come from, its tree is balanced from the root on: a level that has become
    /// balanced makes room for up to twice as many rules.
    pub fn new(branching: &[u8; 8], skew: &[u8; 8], nesting: u8, growth: f64) -> Shape {
        let level = |level: usize| {
            let share = |percent: u8| f64::from(percent) / 100.0;
            (share(branching[level / 4]), share(skew[level / 4]))
        };
        let mut branching = std::array::from_fn(level);
        // How far a level is from balance: 2 where all nodes have one child or one child has all.
        let mut left = if growth > 1.0 { growth } else { 0.0 };
        for (two, skew) in &mut branching {
            let lack = 2.0 * ((1.0 - *two) + *skew * *two);
            if lack > left {
                let more = left / lack;
                *two += (1.0 - *two) * more;
                *skew *= 1.0 - more;
                break;
            }
            left -= lack;
            (*two, *skew) = (1.0, 0.0);
        }
        Shape { branching, nesting }
    }
}

/// A prefix: its bits, the others 0, and how many.
type Prefix = (u32, u8);

/// The child's prefix.
fn child(prefix: u32, level: u8, bit: bool) -> u32 {
    prefix | u32::from(bit) << (LEVELS - 1 - level)
}

/// Bit `level` of an address, from the first.
fn bit(address: u32, level: u8) -> bool {
    address >> (LEVELS - 1 - level) & 1 == 1
}

/// Prefixes of these lengths.
pub fn sources(lengths: &[u8], shape: &Shape, rng: &mut Rng) -> Vec<u32> {
    Tree::new(lengths, shape, rng).grown()
}

/// Prefixes of these lengths beside their sources, with the chance of each level that a
/// destination goes where its source goes.
pub fn destinations(
    lengths: &[u8],
    sources: &[Prefix],
    correlation: &[u8; 8],
    shape: &Shape,
    rng: &mut Rng,
) -> Vec<u32> {
    let mut tree = Tree::new(lengths, shape, rng);
    let rules = (0..lengths.len() as u32).collect();
    tree.follow(0, 0, rules, 0, (sources, correlation));
    tree.grown()
}

struct Tree<'a> {
    lengths: &'a [u8],
    shape: &'a Shape,
    rng: &'a mut Rng,
    /// Down to where each rule follows its source.
    followed: Vec<Prefix>,
    prefixes: Vec<u32>,
}

impl<'a> Tree<'a> {
    fn new(lengths: &'a [u8], shape: &'a Shape, rng: &'a mut Rng) -> Tree<'a> {
        Tree {
            lengths,
            shape,
            rng,
            followed: vec![(0, 0); lengths.len()],
            prefixes: vec![0; lengths.len()],
        }
    }

    fn grown(mut self) -> Vec<u32> {
        let rules = 0..self.lengths.len() as u32;
        let (free, bound) = rules.partition(|&rule| self.followed[rule as usize].1 == 0);
        self.grow(0, 0, free, bound, 0);
        self.prefixes
    }

    fn length(&self, rule: u32) -> u8 {
        self.lengths[rule as usize]
    }

    /// Whether rules whose prefixes end below go apart from the others.
    fn is_nested(&self, level: u8, nesting: u8, rules: &[u32]) -> bool {
        rules.len() > 1
            && nesting + 1 >= self.shape.nesting
            && level + 1 < LEVELS
            && rules.iter().any(|&rule| self.length(rule) == level + 1)
    }

    /// Lets rules go where their sources go, until they part.
    fn follow(
        &mut self,
        level: u8,
        prefix: u32,
        rules: Vec<u32>,
        nesting: u8,
        (sources, correlation): (&[Prefix], &[u8; 8]),
    ) {
        let (ended, rules): (Vec<u32>, Vec<u32>) =
            rules.into_iter().partition(|&rule| self.length(rule) == level);
        for &rule in &ended {
            self.followed[rule as usize] = (prefix, level);
        }
        let nesting = nesting + u8::from(!ended.is_empty());
        if self.is_nested(level, nesting, &rules) {
            for rule in rules {
                self.followed[rule as usize] = (prefix, level);
            }
            return;
        }
        let mut children = [Vec::new(), Vec::new()];
        for rule in rules {
            let (source, source_length) = sources[rule as usize];
            if source_length <= level {
                self.followed[rule as usize] = (prefix, level);
                continue;
            }
            let bit = bit(source, level);
            let chance = f64::from(correlation[usize::from(level) / 4]) / 100.0;
            // Where the source ends on the next level, they part, so that neither lies within the
            // other.
            match source_length > level + 1 && self.rng.share() < chance {
                true => children[usize::from(bit)].push(rule),
                false => self.followed[rule as usize] = (child(prefix, level, !bit), level + 1),
            }
        }
        for (bit, rules) in [false, true].into_iter().zip(children) {
            if !rules.is_empty() {
                let prefix = child(prefix, level, bit);
                self.follow(level + 1, prefix, rules, nesting, (sources, correlation));
            }
        }
    }

    /// Shares rules out to the children of a node: those that are free, and those that are bound
    /// to go on as their source.
    fn grow(&mut self, level: u8, prefix: u32, mut free: Vec<u32>, bound: Vec<u32>, nesting: u8) {
        let mut children = [Vec::new(), Vec::new()];
        for rule in bound {
            let (followed, until) = self.followed[rule as usize];
            match until > level {
                true => children[usize::from(bit(followed, level))].push(rule),
                false => free.push(rule),
            }
        }
        let before = free.len();
        free.retain(|&rule| {
            let is_ended = self.lengths[rule as usize] == level;
            if is_ended {
                self.prefixes[rule as usize] = prefix;
            }
            !is_ended
        });
        let nesting = nesting + u8::from(free.len() < before);
        if children.iter().all(Vec::is_empty) && free.len() == 1 {
            self.finish(free[0], level, prefix);
            return;
        }
        let parts = match free.is_empty() {
            true => Default::default(),
            false => self.split(level, free, [children[0].len(), children[1].len()], nesting),
        };
        for ((bit, free), bound) in [false, true].into_iter().zip(parts).zip(children) {
            if !free.is_empty() || !bound.is_empty() {
                self.grow(level + 1, child(prefix, level, bit), free, bound, nesting);
            }
        }
    }

    /// The only rule of a node: the rest of its prefix is random.
    fn finish(&mut self, rule: u32, level: u8, prefix: u32) {
        let length = self.length(rule);
        let random = (self.rng.bits() >> 32) as u32;
        let above = u32::MAX.checked_shr(u32::from(level)).unwrap_or(0);
        let below = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
        self.prefixes[rule as usize] = prefix | random & above & !below;
    }

    /// The parts of the free rules that go to either child; `bound` rules must go there already.
    fn split(
        &mut self,
        level: u8,
        mut free: Vec<u32>,
        bound: [usize; 2],
        nesting: u8,
    ) -> [Vec<u32>; 2] {
        let heavy = match bound[0] == bound[1] {
            true => self.rng.below(2) as usize,
            false => usize::from(bound[0] < bound[1]),
        };
        let mut parts = [Vec::new(), Vec::new()];
        if self.is_nested(level, nesting, &free) {
            let (ending, others): (Vec<u32>, Vec<u32>) =
                free.into_iter().partition(|&rule| self.length(rule) == level + 1);
            let is_heavier = ending.len() > others.len();
            let to = if is_heavier { heavy } else { 1 - heavy };
            (parts[to], parts[1 - to]) = (ending, others);
            return parts;
        }
        let (branching, skew) = self.shape.branching[usize::from(level)];
        if self.rng.share() >= branching && (bound[0] == 0 || bound[1] == 0) {
            parts[heavy] = free;
            return parts;
        }
        let all = free.len() + bound[0] + bound[1];
        let heavier = (all as f64 / (2.0 - skew)) as usize;
        let lighter = all - heavier;
        let light = if bound[heavy] >= heavier {
            free.len()
        } else {
            lighter.saturating_sub(bound[1 - heavy]).min(free.len())
        };
        parts[heavy] = free.split_off(light);
        parts[1 - heavy] = free;
        parts
    }
}
