//! The configuration of an analytics manager, and its check.

use crate::{After, Policy};
use cring::{Context, Feature, Features, K_MAX};
use std::ops::RangeInclusive;
use thiserror::Error;

/// The largest cache, in entries. At some 150 bytes an entry this is 2.5 GB, far more series than
/// are worth remembering; a larger number is taken for a typing error.
pub const CACHE_ENTRIES_MAX: usize = 1 << 24;

/// K: elements in a series.
pub const K: RangeInclusive<usize> = 1..=K_MAX;
/// Φ: the allowed share of padding (FENXI, Algorithm 2).
pub const PHI: RangeInclusive<f64> = 0.0..=0.5;
/// δ of the policy `slo`: the share of the latency goal that is kept in reserve (Batchy, §4).
pub const SLO_DELTA: RangeInclusive<f64> = 0.0..=0.5;
/// The share of the cache's hits that the model classifies as well.
pub const AUDIT: RangeInclusive<f64> = 0.0..=1.0;

/// 16-bit words of a series that a cache key has room for: δ elements of all features together. A
/// length, a payload length and TCP flags take one each, an inter-arrival time two.
pub const CACHE_KEY_WORDS_MAX: usize = 32;

/// The configuration of one task of an analytics manager.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Elements per series, as the model wants them: 1 to [`K_MAX`].
    pub k: usize,
    /// The features of each element, in the order of the model's input channels: at least one, none
    /// twice.
    pub features: Vec<Feature>,
    /// The context of each flow, in the order of the model's second input; empty without one.
    pub context: Vec<Context>,
    /// When batches are fired.
    pub policy: Policy,
    /// The prefix cache.
    pub cache: CacheConfig,
    /// One row of input on which the model is known to work, such as a golden input: K numbers for
    /// each feature, then the context's. A device that failed is probed with it. Empty for zeros.
    pub probe: Vec<f32>,
    /// Number of the label word of its first depth, by which other tasks name it in `after`.
    pub word: u8,
    /// Where devices cannot keep up, series of the task with the lowest number are shed first.
    pub priority: u8,
    /// Which labels of other tasks a flow must have for this one to be asked.
    pub after: After,
}

/// The prefix cache's settings. It is off when `prefix` or `entries` is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// δ: how many elements of a series make the key, at most K, and at most
    /// [`CACHE_KEY_WORDS_MAX`] words. K itself makes the cache exact.
    pub prefix: usize,
    /// How many answers it remembers.
    pub entries: usize,
    /// The share of hits, 0 to 1, that the model classifies as well, so that the cache's error is
    /// measured.
    pub audit: f64,
}

/// Why a manager is refused: the setting or the device, and what would do.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl Config {
    /// Numbers in one row of a device's input: K for each feature.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.k * self.features.len()
    }

    /// Checks what can be checked without the devices.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.problem().map_or(Ok(()), |problem| Err(ConfigError(problem)))
    }

    fn problem(&self) -> Option<String> {
        let k = self.k;
        let CacheConfig { prefix, entries, audit } = self.cache;
        if !K.contains(&k) {
            return Some(format!("k is {k}: a series has 1 to {K_MAX} elements"));
        }
        let features: Features = self.features.iter().copied().collect();
        if features.is_empty() || features.iter().count() != self.features.len() {
            let found = &self.features;
            return Some(format!("the features are {found:?}: name at least one, and none twice"));
        }
        if prefix > k {
            return Some(format!(
                "the cache's prefix is {prefix}, but a series has only {k} elements: choose 0 \
                 (off) to {k}"
            ));
        }
        let most = CACHE_KEY_WORDS_MAX / features.words();
        if prefix > most {
            return Some(format!(
                "the cache's prefix is {prefix}, but with these features a key has room for \
                 {most} elements: choose 0 (off) to {most}"
            ));
        }
        if entries > CACHE_ENTRIES_MAX {
            return Some(format!(
                "a cache of {entries} entries: at most {CACHE_ENTRIES_MAX} are possible"
            ));
        }
        if !AUDIT.contains(&audit) {
            return Some(format!("the cache's audit share is {audit}: it lies between 0 and 1"));
        }
        let row_len = self.row_len() + self.context.len();
        let floats = self.probe.len();
        if floats != 0 && floats != row_len {
            return Some(format!(
                "the probe has {floats} numbers, but a row has {row_len}, k for each feature and \
                 the context"
            ));
        }
        match self.policy {
            Policy::CarryOver { phi, .. } if !PHI.contains(&phi) => {
                Some(format!("phi is {phi}: the allowed share of padding lies between 0 and 0.5"))
            }
            Policy::CarryOver { timeout, max_wait, .. } if max_wait < timeout => Some(format!(
                "max_wait is {max_wait:?}, shorter than the timeout of {timeout:?}: make it at \
                 least that long"
            )),
            policy => match policy.goal() {
                Some((latency_goal, _)) if latency_goal.is_zero() => {
                    Some("the latency goal is 0: it must be longer".to_owned())
                }
                Some((_, delta)) if !SLO_DELTA.contains(&delta) => Some(format!(
                    "delta is {delta}: the share of the latency goal kept in reserve lies between \
                     0 and 0.5"
                )),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn valid() -> Config {
        Config {
            k: 10,
            features: vec![Feature::SignedLength],
            policy: Policy::CarryOver {
                timeout: Duration::from_millis(10),
                phi: 0.2,
                max_wait: Duration::from_millis(50),
            },
            cache: CacheConfig { prefix: 6, entries: 1000, audit: 0.01 },
            context: Vec::new(),
            probe: Vec::new(),
            word: 0,
            priority: 0,
            after: After::default(),
        }
    }

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = valid();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn a_sound_one_passes() {
        assert_eq!(valid().check(), Ok(()));
    }

    #[test]
    fn each_impossible_one_is_named() {
        let policy = |timeout_ms, phi| Policy::CarryOver {
            timeout: Duration::from_millis(timeout_ms),
            phi,
            max_wait: Duration::from_millis(50),
        };
        assert!(refused(|c| c.k = 0).starts_with("k is 0"));
        assert!(refused(|c| c.k = K_MAX + 1).starts_with("k is 33"));
        assert!(refused(|c| c.cache.prefix = 11).contains("prefix is 11"));
        assert!(refused(|c| c.features.clear()).starts_with("the features are []"));
        let twice = vec![Feature::TcpFlags; 2];
        assert!(refused(|c| c.features = twice).contains("none twice"));
        let wide = |config: &mut Config| {
            config.k = K_MAX;
            config.features = Feature::ALL.to_vec();
            config.cache.prefix = 7;
        };
        assert!(refused(wide).contains("choose 0 (off) to 6"));
        assert!(refused(|c| c.cache.entries = usize::MAX).contains("entries"));
        assert!(refused(|c| c.cache.audit = 1.1).contains("audit share is 1.1"));
        assert!(refused(|c| c.cache.audit = f64::NAN).contains("audit share is NaN"));
        assert!(refused(|c| c.policy = policy(10, 0.6)).starts_with("phi is 0.6"));
        assert!(refused(|c| c.policy = policy(51, 0.2)).starts_with("max_wait is 50ms"));
        assert!(refused(|c| c.probe = vec![1.0; 9]).starts_with("the probe has 9 numbers"));
        let slo =
            |goal_ms, delta| Policy::Slo { latency_goal: Duration::from_millis(goal_ms), delta };
        assert!(refused(|c| c.policy = slo(0, 0.05)).starts_with("the latency goal is 0"));
        assert!(refused(|c| c.policy = slo(2, 1.0)).starts_with("delta is 1"));
        assert!(refused(|c| c.policy = slo(2, 0.6)).contains("between 0 and 0.5"));
    }
}
