//! What was reached, because a property that never meets a full table says nothing about full
//! tables.

use std::collections::BTreeMap;

/// How often each thing was seen, by its name.
#[derive(Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn saw(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn saw_if(&mut self, is_so: bool, what: &'static str) {
        self.add(what, u64::from(is_so));
    }

    pub fn add(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn merge(&mut self, other: Coverage) {
        other.0.into_iter().for_each(|(what, times)| self.add(what, times));
    }

    /// Panics if one of these was not seen.
    pub fn assert_seen(&self, all: &[&str]) {
        let was_seen = |what: &&&str| self.0.get(**what).is_some_and(|times| *times > 0);
        let missing: Vec<_> = all.iter().filter(|what| !was_seen(what)).collect();
        assert!(missing.is_empty(), "never reached: {missing:?}; reached: {self:#?}");
    }
}
