//! Prometheus' text format, version 0.0.4.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write as _;

use crate::metric::{Buckets, Family, Value};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Appends a metric: what it is, then its samples.
pub fn write(page: &mut String, family: &Family) {
    // Writing to a string cannot fail.
    let _ = write_family(page, family);
}

fn write_family(page: &mut String, Family { metric, samples }: &Family) -> std::fmt::Result {
    let name = metric.name;
    writeln!(page, "# HELP {name} {}", escaped_help(metric.help))?;
    writeln!(page, "# TYPE {name} {}", metric.kind.name())?;
    for sample in samples {
        debug_assert_eq!(sample.labels.len(), metric.labels.len(), "{name}");
        let labels = labels(metric.labels, &sample.labels);
        match &sample.value {
            Value::Count(count) => writeln!(page, "{name}{} {count}", braced(&labels))?,
            Value::Number(number) => {
                writeln!(page, "{name}{} {}", braced(&labels), text(*number))?;
            }
            Value::Buckets(buckets) => write_buckets(page, name, &labels, buckets)?,
        }
    }
    Ok(())
}

fn write_buckets(
    page: &mut String,
    name: &str,
    labels: &str,
    buckets: &Buckets,
) -> std::fmt::Result {
    let comma = if labels.is_empty() { "" } else { "," };
    for (bound, count) in &buckets.cumulative {
        let bound = text(*bound);
        writeln!(page, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}")?;
    }
    let (count, braced) = (buckets.count, braced(labels));
    writeln!(page, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}")?;
    writeln!(page, "{name}_sum{braced} {}", text(buckets.sum))?;
    writeln!(page, "{name}_count{braced} {count}")
}

/// `a="1",b="2"`.
fn labels(names: &[&str], values: &[String]) -> String {
    let pairs = names.iter().zip(values);
    let pairs: Vec<String> =
        pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    pairs.join(",")
}

fn braced(labels: &str) -> String {
    match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    }
}

/// A number in the format, which spells infinities and NaN as Go does.
fn text(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        number.to_string()
    }
}

/// A label's value: backslash, quote and line feed are written as two characters.
fn escaped(value: &str) -> String {
    escaped_help(value).replace('"', "\\\"")
}

/// A help text: quotes stay as they are.
fn escaped_help(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;
    use crate::metric::{Kind, Metric, Sample, sample};

    fn page(kind: Kind, labels: &'static [&'static str], samples: &[Sample]) -> String {
        let help = "What \"it\" is\\\nand why.";
        let family = Family {
            metric: Metric::new(kind, "m", "things", labels, help),
            samples: samples.to_vec(),
        };
        let mut page = String::new();
        write(&mut page, &family);
        page
    }

    #[test]
    fn help_and_type_come_first_and_what_is_special_is_escaped() {
        let samples = [
            sample(&["a\\b\"c\nd", "é"], Value::Count(u64::MAX)),
            sample(&["", ""], Value::Count(0)),
        ];
        assert_eq!(
            page(Kind::Counter, &["x", "y"], &samples),
            "# HELP m What \"it\" is\\\\\\nand why.\n\
             # TYPE m counter\n\
             m{x=\"a\\\\b\\\"c\\nd\",y=\"é\"} 18446744073709551615\n\
             m{x=\"\",y=\"\"} 0\n"
        );
    }

    #[test]
    fn numbers_are_go_s() {
        let numbers = [-0.25, 1e-7, 3.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let samples = numbers.map(|number| sample(&[], Value::Number(number)));
        let page = page(Kind::Gauge, &[], &samples);
        let lines: Vec<_> = page.lines().skip(2).collect();
        assert_eq!(lines, ["m -0.25", "m 0.0000001", "m 3", "m NaN", "m +Inf", "m -Inf"]);
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let mut values = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).unwrap();
        for us in [1, 999, 1000, 1001, 10_000_000] {
            values.record(us).unwrap();
        }
        let mut buckets = Buckets::new(&[0.001, 0.01]);
        buckets.add(&values, 1e-6);
        buckets.add(&values, 1e-6);
        let samples = [sample(&["0"], Value::Buckets(buckets))];
        let page = page(Kind::Histogram, &["pipeline"], &samples);
        let lines: Vec<_> = page.lines().skip(1).collect();
        assert_eq!(
            lines[..4],
            [
                "# TYPE m histogram",
                "m_bucket{pipeline=\"0\",le=\"0.001\"} 6",
                "m_bucket{pipeline=\"0\",le=\"0.01\"} 8",
                "m_bucket{pipeline=\"0\",le=\"+Inf\"} 10",
            ]
        );
        let (name, sum) = lines[4].rsplit_once(' ').unwrap();
        assert_eq!(name, "m_sum{pipeline=\"0\"}");
        let (sum, exact) = (sum.parse::<f64>().unwrap(), 20.006_002);
        assert!((sum - exact).abs() < exact / 1000.0, "{sum}");
        assert_eq!(lines[5..], ["m_count{pipeline=\"0\"} 10"]);
    }

    #[test]
    fn a_histogram_without_labels_has_bounds_only() {
        let samples = [sample(&[], Value::Buckets(Buckets::new(&[1.0])))];
        assert_eq!(
            page(Kind::Histogram, &[], &samples).lines().collect::<Vec<_>>()[2..],
            ["m_bucket{le=\"1\"} 0", "m_bucket{le=\"+Inf\"} 0", "m_sum 0", "m_count 0"]
        );
    }
}
