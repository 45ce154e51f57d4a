//! Repetitions, interleaved: a disturbance of a shared machine that lasts a second affects all
//! points alike. The first round only warms up.

use std::convert::Infallible;
use std::time::{Duration, Instant};

/// The rates that the repetitions of one point gave, highest first.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    rates: Vec<f64>,
}

impl Rates {
    pub fn add(&mut self, rate: f64) {
        let at = self.rates.partition_point(|&other| other >= rate);
        self.rates.insert(at, rate);
    }

    pub fn best(&self) -> f64 {
        self.rates.first().copied().unwrap_or_default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// The middle rate; with an even number of rates, the lower one of the two.
    pub fn median(&self) -> f64 {
        self.rates.get(self.rates.len() / 2).copied().unwrap_or_default()
    }

    /// The median and the best.
    pub fn both(&self) -> [f64; 2] {
        [self.median(), self.best()]
    }
}

/// The least number of rounds that count.
const ROUNDS_MIN: usize = 3;

/// Measures `points` in turn, round by round, until `seconds` are over. `rate_of` measures one
/// point once.
pub fn interleave(
    seconds: f64,
    points: usize,
    mut rate_of: impl FnMut(usize) -> f64,
) -> Vec<Rates> {
    let Ok(all) = try_interleave(seconds, points, |point| Ok::<f64, Infallible>(rate_of(point)));
    all
}

/// As [`interleave`], for measurements that can fail.
///
/// # Errors
/// The first error of `rate_of`.
pub fn try_interleave<E>(
    seconds: f64,
    points: usize,
    mut rate_of: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<Rates>, E> {
    let mut all = vec![Rates::default(); points];
    for point in 0..points {
        let _warm_up = rate_of(point)?;
    }
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut round = 0;
    while round < ROUNDS_MIN || start.elapsed() < limit {
        for (point, rates) in all.iter_mut().enumerate() {
            rates.add(rate_of(point)?);
        }
        round += 1;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_does_not_count_and_the_others_are_in_order() {
        let mut calls = 0;
        let all = interleave(0.0, 2, |point| {
            calls += 1;
            [0.0, 0.0, 5.0, 1.0, 7.0, 2.0, 6.0, 3.0][calls - 1] + 10.0 * point as f64
        });
        assert_eq!(calls, 8);
        assert_eq!((all[0].best(), all[0].median()), (7.0, 6.0));
        assert_eq!((all[1].best(), all[1].median()), (13.0, 12.0));
    }
}
