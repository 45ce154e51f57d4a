//! What is compared: fenxi's classifier and its rivals, behind one interface.

use std::time::Instant;

use policy::classifier::Classifier;
use policy::{Address, Filter, Key, RuleNumber};

use super::tss::{Savings, TupleSpace};

/// Something that finds the rules of keys.
pub trait Finder<A> {
    /// The rule of each key.
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]);

    /// Bytes on the heap.
    fn bytes(&self) -> Option<usize>;
}

impl<A: Address> Finder<A> for Classifier<A> {
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]) {
        Classifier::find(self, keys, |_, _| true, found);
    }

    fn bytes(&self) -> Option<usize> {
        None
    }
}

impl<A: Address> Finder<A> for TupleSpace<A> {
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]) {
        for (key, found) in keys.iter().zip(found) {
            *found = TupleSpace::find(self, key);
        }
    }

    fn bytes(&self) -> Option<usize> {
        Some(TupleSpace::bytes(self))
    }
}

/// The one that is compared with the others.
pub const OURS: usize = 0;
/// Names of all, in the order of [`built`].
pub const NAMES: [&str; 4] = [
    "learned",
    "TSS",
    "TSS with tries",
    "TSS with tries and stages",
];
/// Where tuple space search stands among them, in three ways; the fastest counts.
pub const TSS: [usize; 3] = [1, 2, 3];

/// A classifier of a set.
pub struct Peer<A> {
    pub finder: Box<dyn Finder<A>>,
    /// How long it took to build.
    pub built_s: f64,
}

/// All of a set.
pub fn built<A: Address>(filters: &[Filter<A>]) -> Vec<Peer<A>> {
    let tss = |tries, stages| timed(|| TupleSpace::new(filters, Savings { tries, stages }));
    vec![
        timed(|| Classifier::new(filters)),
        tss(false, false),
        tss(true, false),
        tss(true, true),
    ]
}

fn timed<A, F: Finder<A> + 'static>(build: impl FnOnce() -> F) -> Peer<A> {
    let start = Instant::now();
    let finder = Box::new(build());
    Peer {
        finder,
        built_s: start.elapsed().as_secs_f64(),
    }
}
