//! What is compared: fenxi's classifier and its rivals, behind one interface.

use std::time::Instant;

use policy::classifier::{Classifier, TableFull};
use policy::{Address, Filter, Key, RuleNumber};

use super::tss::{Savings, TupleSpace};
use fenxi::exit::Failure;

/// Something that finds the rules of keys.
pub trait Finder<A> {
    /// The rule of each key.
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]);

    /// Bytes on the heap.
    fn bytes(&self) -> usize;
}

impl<A: Address> Finder<A> for Classifier<A> {
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]) {
        Classifier::find(self, keys, |_| true, found);
    }

    fn bytes(&self) -> usize {
        self.describe().bytes
    }
}

impl<A: Address> Finder<A> for TupleSpace<A> {
    fn find(&self, keys: &[Key<A>], found: &mut [Option<RuleNumber>]) {
        for (key, found) in keys.iter().zip(found) {
            *found = TupleSpace::find(self, key);
        }
    }

    fn bytes(&self) -> usize {
        TupleSpace::bytes(self)
    }
}

/// The one that is compared with the others.
pub const OURS: usize = 0;
/// TupleMerge (Daly et al., ToN 2019), which is also where the learned classifier keeps what its models do not cover.
pub const TUPLE_MERGE: usize = 1;
/// Tuple space search, in three ways; the fastest counts.
pub const TSS: [usize; 3] = [2, 3, 4];
/// Names of all, in the order of [`built`].
pub const NAMES: [&str; 5] = [
    "learned",
    "TupleMerge",
    "TSS",
    "TSS with tries",
    "TSS with tries and stages",
];

/// A classifier of a set.
pub struct Peer<A> {
    pub finder: Box<dyn Finder<A>>,
    /// How long it took to build.
    pub built_s: f64,
}

/// All of a set.
///
/// # Errors
/// The set is too large.
pub fn built<A: Address>(filters: &[Filter<A>]) -> Result<Vec<Peer<A>>, Failure> {
    let tss = |tries, stages| timed(|| Ok(TupleSpace::new(filters, Savings { tries, stages })));
    let full = |error: TableFull| Failure::data(error.to_string());
    let learned = || Classifier::new(filters).map_err(full);
    let tuple_merge = || Classifier::untrained(filters).map_err(full);
    Ok(vec![
        timed(learned)?,
        timed(tuple_merge)?,
        tss(false, false)?,
        tss(true, false)?,
        tss(true, true)?,
    ])
}

fn timed<A, F: Finder<A> + 'static>(
    build: impl FnOnce() -> Result<F, Failure>,
) -> Result<Peer<A>, Failure> {
    let start = Instant::now();
    let finder = Box::new(build()?);
    Ok(Peer {
        finder,
        built_s: start.elapsed().as_secs_f64(),
    })
}
