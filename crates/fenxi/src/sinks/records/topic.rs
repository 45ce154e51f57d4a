//! Records and samples to topics of Kafka, in a build with the feature `kafka`; any other build
//! says that it has none.

#[cfg(feature = "kafka")]
mod producer;

use config::Setting;
use config::kind::Kind;

use crate::metric::{Family, count, number};
use crate::sinks::Lost;
use crate::sinks::ipfix::Endpoint;

#[cfg(not(feature = "kafka"))]
pub use none::Topic;
#[cfg(feature = "kafka")]
pub use producer::Topic;

config::section! {
    /// Brokers of Kafka.
    pub struct Kafka = One "kafka";

    /// brokers to which `fenxi run` sends records as JSON, a message each (docs/records.md); only
    /// in a build with the feature kafka
    brokers: Vec<Endpoint> = restart "brokers", Kind::TextList { least: 0 }, "[]",
        "HOST:PORT; empty = none" => brokers;
    /// their topic
    topic: Option<String> = restart "topic", Kind::Text, "\"fenxi\"",
        "empty = no records" => Setting::topic;
    /// such as security.protocol, as texts
    options: Vec<(String, String)> = restart "options", Kind::Map(&Kind::Text), "{}",
        "properties of librdkafka" => Setting::texts;
}

fn brokers(setting: &Setting) -> Result<Vec<Endpoint>, String> {
    setting.list(|text| {
        let refusal = "expected HOST:PORT; brackets around an IPv6 address";
        Endpoint::parse(text).ok_or_else(|| format!("found \"{text}\", {refusal}"))
    })
}

impl Kafka {
    /// Where records go.
    pub fn records_topic(&self) -> Option<&str> {
        self.topic.as_deref().filter(|_| !self.brokers.is_empty())
    }
}

/// What became of records or samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// A broker has confirmed them.
    pub sent: u64,
    /// No broker took them in time, or one refused them.
    pub failed: u64,
    /// They found the queue full.
    pub dropped: u64,
    /// Messages that wait for a broker.
    pub waiting: u64,
}

impl TopicCounts {
    /// Those that no broker has and none will get.
    pub fn lost(&self) -> u64 {
        self.failed + self.dropped
    }
}

pub fn metrics(counts: TopicCounts) -> [Family; 2] {
    [
        Family::counter(
            "fenxi_kafka_records_total",
            "records",
            &["outcome"],
            "Records for Kafka: sent, a broker has confirmed them; failed; dropped, the queue was \
             full.",
            [
                count(&["sent"], counts.sent),
                count(&["failed"], counts.failed),
                count(&["dropped"], counts.dropped),
            ],
        ),
        Family::gauge(
            "fenxi_kafka_waiting",
            "records",
            &[],
            "Records that wait for a broker of Kafka.",
            [number(&[], counts.waiting as f64)],
        ),
    ]
}

pub fn losses(counts: TopicCounts) -> Lost {
    let what = "records for Kafka are lost; see kafka.options and the brokers";
    Lost::new(what, counts.lost())
}

#[cfg(not(feature = "kafka"))]
mod none {
    use std::time::Duration;

    use super::{Kafka, TopicCounts};
    use crate::exit::Failure;

    pub enum Topic {}

    impl Topic {
        pub fn start(_: &Kafka, _: &str) -> Result<Topic, Failure> {
            Err(Failure::config(
                "kafka.brokers: this fenxi was built without Kafka; build it with `cargo build \
                 --features kafka`, or use \
                 records.socket and a program that forwards to Kafka (docs/records.md)",
            ))
        }

        pub fn send(&self, _: &[u8], _: &[u8], _: usize) {
            match *self {}
        }

        pub fn counts(&self) -> TopicCounts {
            match *self {}
        }

        pub fn finish(&self, _: Duration) -> TopicCounts {
            match *self {}
        }
    }
}
