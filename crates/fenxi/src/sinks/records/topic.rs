//! Lines to a topic of Kafka, in a build with the feature `kafka`; any other build says that it has
//! none.

#[cfg(feature = "kafka")]
mod producer;

use crate::metric::{Family, Kind, Metric, count, number};
use crate::sinks::Lost;

#[cfg(not(feature = "kafka"))]
pub use none::Topic;
#[cfg(feature = "kafka")]
pub use producer::Topic;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// A broker has confirmed them.
    pub sent: u64,
    /// No broker took them in time, or one refused them.
    pub failed: u64,
    /// They found the queue full.
    pub dropped: u64,
    /// They wait for a broker.
    pub waiting: u64,
}

impl Counts {
    /// Lines that no broker has and none will get.
    pub fn lost(&self) -> u64 {
        self.failed + self.dropped
    }
}

pub fn metrics(counts: Counts) -> [Family; 2] {
    [
        Family::counter(
            "fenxi_kafka_records_total",
            "records",
            &["outcome"],
            "Records for a topic of Kafka: sent, a broker has confirmed them; failed, none took \
             them in time; dropped, the queue was full.",
            [
                count(&["sent"], counts.sent),
                count(&["failed"], counts.failed),
                count(&["dropped"], counts.dropped),
            ],
        ),
        Family {
            metric: Metric::new(
                Kind::Gauge,
                "fenxi_kafka_waiting",
                "records",
                &[],
                "Records that wait for a broker of Kafka.",
            ),
            samples: vec![number(&[], counts.waiting as f64)],
        },
    ]
}

pub fn losses(counts: Counts) -> Lost {
    Lost {
        what: "records for Kafka are lost; see kafka.options and the brokers",
        count: counts.lost(),
        why: String::new(),
    }
}

#[cfg(not(feature = "kafka"))]
mod none {
    use std::time::Duration;

    use crate::sinks::records::Kafka;

    use super::Counts;
    use crate::exit::Failure;

    pub enum Topic {}

    impl Topic {
        pub fn start(_: &Kafka) -> Result<Topic, Failure> {
            Err(Failure::config(
                "kafka.brokers: this fenxi was built without Kafka; build it with `cargo build \
                 --features kafka`, or use \
                 records.socket and a program that forwards to Kafka (docs/records.md)",
            ))
        }

        pub fn send(&self, _: &[u8], _: &[u8]) {
            match *self {}
        }

        pub fn counts(&self) -> Counts {
            match *self {}
        }

        pub fn finish(&self, _: Duration) -> Counts {
            match *self {}
        }
    }
}
