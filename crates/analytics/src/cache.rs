//! The prefix cache (FENXI §5.2, Algorithm 3): series that begin alike get the label that the model
//! gave to one of them.
//!
//! A key is the protocol, the task (a depth of it), the server's port if the model sees it, and for
//! the first δ elements the directions and all features that the model sees. With δ = K two series
//! with the same key make the same model input, and a hit is as good as an inference. With δ < K a
//! hit is an approximation, whose error the *audit* measures: a fixed share of the hits, spread
//! evenly, is inferred as well, and the two classes are compared. An audit only looks on: its
//! result is not entered, so that what is measured does not depend on how much of it is measured.
//!
//! A series is looked up once, when it is first seen, and entered when its result comes. Two alike
//! that are seen in between are both inferred, because making one wait for the other would cost
//! more than it saves, and delay a label.
//!
//! The least recently used entry makes room for a new one (crate `lru`). Its hash is seeded at
//! random, so that a sender does not know beforehand which series collide. Keys have a fixed size:
//! until the cache is full only a new entry's node is allocated, and from then on nothing.
//!
//! When the model is swapped its answers become stale at once, without a walk over them: each
//! carries the number of its model's swap, and is not found under another one.
//!
//! [`governor`] decides whether the cache pays.

mod governor;

use crate::CacheConfig;
use crate::config::CACHE_KEY_WORDS_MAX;
use crate::device_slot::Model;
use accel::Classification;
use cring::{Context, Feature, Features, Label, Series, Source, in_words};
pub(crate) use governor::{CacheGovernor, Transition};
use lru::LruCache;
use std::num::NonZeroUsize;

/// What the model said of a series, in the label word's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub class: u16,
    /// 0 to 65,535 for 0 to 1.
    confidence: u16,
    /// Which model said so.
    model: Model,
}

impl Answer {
    pub fn label(self, source: Source) -> Label {
        Label::Class {
            class: self.class,
            confidence: self.confidence,
            source,
            model: self.model.generation,
        }
    }
}

/// The cached answer with which a series' inference is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Audit(Answer);

impl Audit {
    /// Whether the model gives the same class; `None` for another model.
    pub fn agrees(self, answer: Answer) -> Option<bool> {
        (self.0.model == answer.model).then_some(self.0.class == answer.class)
    }
}

impl Answer {
    pub fn new(classification: &Classification, model: Model) -> Self {
        let confidence = in_words(classification.confidence);
        Self { class: classification.class, confidence, model }
    }
}

/// What all series that share an answer have in common. Beyond the prefix it is 0.
///
/// Of fixed size, and hashed and compared as a whole, which takes less time than a part whose
/// length is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    protocol: u8,
    /// Elements in the prefix: fewer than δ where the series is shorter.
    elements: u8,
    /// The task that asks: more elements say more, so the answers to several depths are kept apart.
    task: u8,
    server_port: u16,
    directions: u32,
    words: [u16; CACHE_KEY_WORDS_MAX],
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookUp {
    Miss,
    Hit {
        answer: Answer,
        /// Set if this hit is one of the share that the model infers as well.
        audit: Option<Audit>,
    },
}

/// One unit of the audit's running sum.
const ONE_HIT: u64 = 1 << 32;

/// The cache of one task.
pub(crate) struct Cache {
    prefix: usize,
    features: Features,
    /// The model sees the server's port.
    has_port: bool,
    answers: LruCache<Key, Answer>,
    /// The swap of the model whose answers it holds.
    swap: u32,
    pub governor: CacheGovernor,
    /// The audit's share of one hit, in parts of [`ONE_HIT`].
    audit_step: u64,
    /// The sum of these parts, less the audited hits.
    audit_sum: u64,
}

impl Cache {
    /// For series of these features; `None` where the configuration turns it off, or the model
    /// reads local context, which differs between series that begin alike.
    pub fn new(config: &CacheConfig, features: &[Feature], context: &[Context]) -> Option<Self> {
        let entries = NonZeroUsize::new(config.entries)?;
        let has_local = context.iter().any(|number| number.is_local());
        (config.prefix > 0 && !has_local).then(|| Self {
            prefix: config.prefix,
            features: features.iter().copied().collect(),
            answers: LruCache::new(entries),
            has_port: context.contains(&Context::ServerPort),
            swap: 0,
            governor: CacheGovernor::new(config.entries),
            audit_step: audit_step(config.audit),
            audit_sum: 0,
        })
    }

    /// Sets the share of the hits that is inferred as well, from now on.
    pub fn set_audit(&mut self, share: f64) {
        self.audit_step = audit_step(share);
    }

    fn key(&self, series: &Series) -> Key {
        let prefix = self.prefix.min(series.k());
        let mut key = Key {
            protocol: series.protocol,
            elements: prefix as u8,
            task: series.task,
            server_port: if self.has_port { series.server_port } else { 0 },
            // 64 bits, because a prefix of 32 shifts by 32.
            directions: series.directions & ((1_u64 << prefix) - 1) as u32,
            words: [0; CACHE_KEY_WORDS_MAX],
        };
        if self.features == Features::LENGTHS {
            // The usual case, without a look at each feature.
            let lengths = series.channel(Feature::SignedLength);
            let words = prefix.min(lengths.len());
            key.words[..words].copy_from_slice(&lengths[..words]);
            return key;
        }
        let mut used = 0;
        for feature in self.features.iter() {
            let words = prefix * feature.words();
            let channel = series.channel(feature).iter().take(words);
            for (word, &value) in key.words[used..].iter_mut().zip(channel) {
                *word = value;
            }
            used += words;
        }
        key
    }

    /// Prefixes that it remembers, including stale ones.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Looks a series up, and marks what it finds as the most recently used.
    pub fn look_up(&mut self, series: &Series) -> LookUp {
        let key = self.key(series);
        match self.answers.get(&key).copied() {
            Some(answer) if answer.model.swap == self.swap => {
                LookUp::Hit { answer, audit: self.is_audited().then_some(Audit(answer)) }
            }
            _ => LookUp::Miss,
        }
    }

    /// Remembers an answer, unless its model is on its way out.
    pub fn insert(&mut self, series: &Series, answer: Answer) {
        if answer.model.swap == self.swap {
            self.answers.put(self.key(series), answer);
        }
    }

    /// Answers of earlier swaps are no longer found.
    pub fn begin(&mut self, swap: u32) {
        self.swap = swap;
    }

    fn is_audited(&mut self) -> bool {
        self.audit_sum += self.audit_step;
        let audited = self.audit_sum >= ONE_HIT;
        if audited {
            self.audit_sum -= ONE_HIT;
        }
        audited
    }
}

fn audit_step(share: f64) -> u64 {
    (share * ONE_HIT as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use cring::K_MAX;

    fn cache(prefix: usize, entries: usize, audit: f64) -> Cache {
        let config = CacheConfig { prefix, entries, audit };
        Cache::new(&config, &[Feature::SignedLength], &[]).unwrap()
    }

    fn series(protocol: u8, signed: &[i32]) -> Series {
        let mut series = Series::new(protocol, signed.len(), Features::LENGTHS);
        for (i, &length) in signed.iter().enumerate() {
            series.set_signed(i, length);
        }
        series
    }

    fn answer(class: u16) -> Answer {
        Answer { class, confidence: 1, model: Model::default() }
    }

    fn hit(class: u16) -> LookUp {
        LookUp::Hit { answer: answer(class), audit: None }
    }

    #[test]
    fn series_that_begin_alike_share_an_answer() {
        let mut cache = cache(2, 8, 0.0);
        let first = series(6, &[60, -1500, 52]);
        assert_eq!(cache.look_up(&first), LookUp::Miss);
        cache.insert(&first, answer(7));
        assert_eq!(cache.look_up(&first), hit(7));
        assert_eq!(cache.look_up(&series(6, &[60, -1500, -900, 1])), hit(7));
        for other in [
            series(17, &[60, -1500, 52]),
            series(6, &[60, 1500, 52]),
            series(6, &[-60, -1500, 52]),
            series(6, &[60, -1499, 52]),
            series(6, &[60]),
        ] {
            assert_eq!(cache.look_up(&other), LookUp::Miss, "{other:?}");
        }
    }

    #[test]
    fn there_is_none_for_local_context() {
        let config = CacheConfig { prefix: 2, entries: 8, audit: 0.0 };
        let cache = |context| Cache::new(&config, &[Feature::SignedLength], context);
        assert!(cache(&[Context::ServerPort]).is_some());
        assert!(cache(&[Context::ServerPort, Context::ServerGap]).is_none());
    }

    #[test]
    fn all_of_the_longest_series_can_be_the_key() {
        let mut cache = cache(K_MAX, 8, 0.0);
        let mut signed = [-65_535; K_MAX];
        let long = series(6, &signed);
        cache.insert(&long, answer(1));
        signed[K_MAX - 1] = 65_535;
        assert_eq!(cache.look_up(&long), hit(1));
        assert_eq!(cache.look_up(&series(6, &signed)), LookUp::Miss);
    }

    #[test]
    fn what_lies_beyond_a_short_series_does_not_count() {
        let mut cache = cache(4, 8, 0.0);
        let mut short = series(6, &[60, -60]);
        cache.insert(&short, answer(3));
        short.directions |= 1 << 3;
        assert_eq!(cache.look_up(&short), hit(3));
    }

    #[test]
    fn every_feature_that_the_model_sees_is_part_of_the_key() {
        let config = CacheConfig { prefix: 2, entries: 8, audit: 0.0 };
        let seen = [Feature::InterArrival, Feature::SignedLength];
        let mut cache = Cache::new(&config, &seen, &[]).unwrap();
        let mut first = Series::new(6, 3, Features::ALL);
        (0..3).for_each(|i| first.set_signed(i, 60));
        first.set_inter_arrival_us(1, 70_000);
        cache.insert(&first, answer(1));
        let mut other = first;
        other.set_inter_arrival_us(2, 5);
        other.channel_mut(Feature::TcpFlags).fill(2);
        assert_eq!(cache.look_up(&other), hit(1));
        other.set_inter_arrival_us(1, 70_000 - (1 << 16));
        assert_eq!(cache.look_up(&other), LookUp::Miss);
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut cache = cache(1, 2, 0.0);
        let [a, b, c] = [1, 2, 3].map(|length| series(6, &[length]));
        cache.insert(&a, answer(1));
        cache.insert(&b, answer(2));
        assert_eq!(cache.look_up(&a), hit(1));
        cache.insert(&c, answer(3));
        assert_eq!(cache.look_up(&b), LookUp::Miss);
        assert_eq!(cache.look_up(&a), hit(1));
        assert_eq!(cache.look_up(&c), hit(3));
    }

    #[test]
    fn an_exchange_of_the_model_makes_every_answer_stale() {
        let mut cache = cache(1, 2, 1.0);
        let series = series(6, &[60]);
        cache.insert(&series, answer(1));
        let of = |generation, swap| Answer { model: Model { generation, swap }, ..answer(2) };
        // The same generation again, as after it has wrapped.
        cache.begin(512);
        assert_eq!(cache.look_up(&series), LookUp::Miss);
        cache.insert(&series, answer(1));
        assert_eq!(cache.look_up(&series), LookUp::Miss, "too late");
        cache.insert(&series, of(0, 512));
        let LookUp::Hit { answer, audit } = cache.look_up(&series) else {
            panic!("no hit");
        };
        assert_eq!(answer, of(0, 512));
        // The audit is of that model only.
        let audit = audit.unwrap();
        assert_eq!(audit.agrees(of(0, 512)), Some(true));
        assert_eq!(audit.agrees(of(1, 513)), None);
    }

    #[test]
    fn nothing_to_remember_means_no_cache() {
        for (prefix, entries) in [(0, 10), (10, 0), (0, 0)] {
            let config = CacheConfig { prefix, entries, audit: 0.0 };
            assert!(Cache::new(&config, &[Feature::SignedLength], &[]).is_none());
        }
    }

    #[test]
    fn the_audited_share_is_exact_and_even() {
        for (share, audited) in [(0.0, 0), (0.01, 10), (0.25, 250), (0.1, 100), (1.0, 1000)] {
            let mut cache = cache(1, 1, share);
            let hits: Vec<bool> = (0..1000).map(|_| cache.is_audited()).collect();
            assert_eq!(hits.iter().filter(|audit| **audit).count(), audited);
            if share == 0.25 {
                assert_eq!(hits[..8], [false, false, false, true].repeat(2));
            }
        }
    }

    #[test]
    fn confidence_is_rounded_to_the_label_words_units() {
        for (confidence, units) in [
            (0.0, 0),
            (1.0, 65_535),
            (0.5, 32_768),
            (1e-5, 1),
            (7e-6, 0),
            (1.1, 65_535),
            (f32::NAN, 0),
        ] {
            let classification = Classification { class: 1, confidence };
            assert_eq!(
                Answer::new(&classification, Model::default()).confidence,
                units,
                "{confidence}"
            );
        }
    }
}
