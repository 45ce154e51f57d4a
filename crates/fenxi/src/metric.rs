//! Metrics and their samples, independent of the format.

use hdrhistogram::Histogram;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    /// The value goes up and down.
    Gauge,
    Histogram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Unit of the value; empty if it has none.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// Its meaning, in one line.
    pub help: &'static str,
}

impl Metric {
    pub const fn new(
        kind: Kind,
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric { name, kind, unit, labels, help }
    }
}

#[derive(Debug, Clone)]
pub struct Family {
    pub metric: Metric,
    pub samples: Vec<Sample>,
}

impl Family {
    pub fn counter(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: impl IntoIterator<Item = Sample>,
    ) -> Family {
        let metric = Metric::new(Kind::Counter, name, unit, labels, help);
        Family { metric, samples: samples.into_iter().collect() }
    }

    /// A gauge.
    pub fn gauge(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: impl IntoIterator<Item = Sample>,
    ) -> Family {
        let metric = Metric::new(Kind::Gauge, name, unit, labels, help);
        Family { metric, samples: samples.into_iter().collect() }
    }
}

/// Upper bounds for times, in seconds; one is 10 ms, the goal for labels.
pub const TIMES: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Seconds in a microsecond.
pub const US: f64 = 1e-6;

/// One value of a metric, with the values of its labels in the metric's order.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// As many as the metric has labels.
    pub labels: Vec<String>,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Count(u64),
    Number(f64),
    Buckets(Buckets),
}

/// A distribution over fixed bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Upper bound of each bucket, and the number of values up to it.
    pub cumulative: Vec<(f64, u64)>,
    pub sum: f64,
    pub count: u64,
}

impl Buckets {
    pub fn new(bounds: &[f64]) -> Buckets {
        Buckets { cumulative: bounds.iter().map(|bound| (*bound, 0)).collect(), sum: 0.0, count: 0 }
    }

    /// Adds a histogram of values in `unit`s. A value counts as the greatest one that the histogram
    /// does not distinguish from it, so buckets are conservative; the sum errs by at most 1 %.
    pub fn add(&mut self, values: &Histogram<u64>, unit: f64) {
        for step in values.iter_recorded() {
            let (value, count) = (step.value_iterated_to(), step.count_at_value());
            let greatest = value as f64 * unit;
            for (bound, sum) in &mut self.cumulative {
                *sum += if greatest <= *bound { count } else { 0 };
            }
            self.sum += values.median_equivalent(value) as f64 * unit * count as f64;
            self.count += count;
        }
    }
}

/// A sample of a metric, its labels in the metric's order.
pub fn sample(labels: &[&str], value: Value) -> Sample {
    Sample { labels: labels.iter().map(|label| (*label).to_owned()).collect(), value }
}

pub fn count(labels: &[&str], value: u64) -> Sample {
    sample(labels, Value::Count(value))
}

pub fn number(labels: &[&str], value: f64) -> Sample {
    sample(labels, Value::Number(value))
}

/// A histogram of values in `unit`s, over fixed bounds.
pub fn buckets(bounds: &[f64], unit: f64, values: &Histogram<u64>) -> Value {
    let mut buckets = Buckets::new(bounds);
    buckets.add(values, unit);
    Value::Buckets(buckets)
}
