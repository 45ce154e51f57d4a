//! Quantiles of a histogram of times.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Median, 99th percentile and maximum, ms.
#[derive(Serialize)]
pub struct Quantiles {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Quantiles {
    /// The quantiles of a histogram of microseconds; zeros if it is empty.
    pub fn from_us(times: &Histogram<u64>) -> Quantiles {
        let milliseconds = |us: u64| us as f64 / 1000.0;
        Quantiles {
            p50: milliseconds(times.value_at_quantile(0.5)),
            p99: milliseconds(times.value_at_quantile(0.99)),
            max: milliseconds(times.max()),
        }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles { p50, p99, max } = self;
        write!(f, "p50 {p50:.3}, p99 {p99:.3}, max {max:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_become_milliseconds() {
        let mut times = Histogram::new(3).unwrap();
        assert_eq!(Quantiles::from_us(&times).to_string(), "p50 0.000, p99 0.000, max 0.000");
        for us in 1..=100 {
            times.record(us * 10).unwrap();
        }
        assert_eq!(Quantiles::from_us(&times).to_string(), "p50 0.500, p99 0.990, max 1.000");
    }
}
