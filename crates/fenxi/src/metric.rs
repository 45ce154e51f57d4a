//! What a metric is, and its values at one moment, however they are written down.

use hdrhistogram::Histogram;

/// What becomes of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// They are counted by size.
    Histogram,
}

impl Kind {
    /// The name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// What becomes of its values.
    pub kind: Kind,
    /// What one of the value is; empty where it counts nothing.
    pub unit: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it says, in one line.
    pub help: &'static str,
}

impl Metric {
    /// Declares a metric.
    pub const fn new(
        kind: Kind,
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Metric {
        Metric {
            name,
            kind,
            unit,
            labels,
            help,
        }
    }
}

/// A metric with its samples.
#[derive(Debug, Clone)]
pub struct Family {
    /// What it is.
    pub metric: Metric,
    /// Its values, each with as many labels as the metric has.
    pub samples: Vec<Sample>,
}

impl Family {
    /// A counter.
    pub fn counter(
        name: &'static str,
        unit: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
        samples: impl IntoIterator<Item = Sample>,
    ) -> Family {
        Family {
            metric: Metric::new(Kind::Counter, name, unit, labels, help),
            samples: samples.into_iter().collect(),
        }
    }
}

/// Upper bounds for times, in seconds; 10 ms, what a label may take, is one.
pub const TIMES: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// Seconds in a microsecond.
pub const US: f64 = 1e-6;

/// One value of a metric, with the values of its labels in the metric's order.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// As many as the metric has labels.
    pub labels: Vec<String>,
    /// The value.
    pub value: Value,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Any number.
    Number(f64),
    /// A distribution.
    Buckets(Buckets),
}

/// A distribution over fixed bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// Upper bound of each bucket, and how many are at most so large, those of smaller buckets among them.
    pub cumulative: Vec<(f64, u64)>,
    /// Sum of all values.
    pub sum: f64,
    /// How many values there are.
    pub count: u64,
}

impl Buckets {
    /// None yet.
    pub fn new(bounds: &[f64]) -> Buckets {
        Buckets {
            cumulative: bounds.iter().map(|bound| (*bound, 0)).collect(),
            sum: 0.0,
            count: 0,
        }
    }

    /// Adds a histogram whose values are so many of the metric's unit each. A value counts as the greatest that the
    /// histogram does not tell from it, so that no bucket flatters; the sum errs as the histogram does, by 1 % at most.
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
    Sample {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        value,
    }
}

/// One that is a count.
pub fn count(labels: &[&str], value: u64) -> Sample {
    sample(labels, Value::Count(value))
}

/// One that is any number.
pub fn number(labels: &[&str], value: f64) -> Sample {
    sample(labels, Value::Number(value))
}

/// A histogram whose values are so many of the unit each.
pub fn buckets(bounds: &[f64], unit: f64, values: &Histogram<u64>) -> Value {
    let mut buckets = Buckets::new(bounds);
    buckets.add(values, unit);
    Value::Buckets(buckets)
}
