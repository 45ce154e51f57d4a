//! The producer. librdkafka, which `rdkafka` builds and binds, keeps the queue, finds the brokers
//! and retries.
//!
//! [`Topic::send`] never waits: while the brokers are away, messages stay in the queue of
//! librdkafka, whose size is bounded; what finds no room is dropped and counted, and what is not
//! delivered within `message.timeout.ms` is counted as failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tracing::{debug, info, warn};

use super::{Kafka, TopicCounts};
use crate::exit::Failure;

/// What librdkafka is told unless the user says otherwise: 16 MiB of messages may wait, and a batch
/// is sent after 100 ms.
const DEFAULTS: [(&str, &str); 4] = [
    ("client.id", "fenxi"),
    ("queue.buffering.max.kbytes", "16384"),
    ("queue.buffering.max.ms", "100"),
    ("compression.codec", "lz4"),
];

pub struct Topic {
    producer: ThreadedProducer<Deliveries>,
    topic: String,
    deliveries: Arc<Shared>,
    dropped: AtomicU64,
}

/// Hears from librdkafka what became of the messages, on its thread.
struct Deliveries(Arc<Shared>);

#[derive(Default)]
struct Shared {
    brokers: String,
    sent: AtomicU64,
    failed: AtomicU64,
    /// No broker can be reached, and that was said.
    is_away: AtomicBool,
}

impl Topic {
    /// Starts the producer. Brokers need not be there.
    ///
    /// # Errors
    /// 78: librdkafka does not know one of the options, or options contradict one another.
    pub fn start(kafka: &Kafka) -> Result<Topic, Failure> {
        let brokers: Vec<String> = kafka.brokers.iter().map(ToString::to_string).collect();
        let brokers = brokers.join(",");
        let mut config = ClientConfig::new();
        let given = kafka.options.iter();
        let given = given.map(|(name, value)| (&**name, &**value));
        for (name, value) in DEFAULTS.into_iter().chain(given) {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &brokers);
        config.set_log_level(RDKafkaLogLevel::Warning);
        let deliveries = Arc::new(Shared { brokers, ..Shared::default() });
        let context = Deliveries(deliveries.clone());
        let producer = config.create_with_context(context).map_err(refused)?;
        Ok(Topic { producer, topic: kafka.topic.clone(), deliveries, dropped: AtomicU64::new(0) })
    }

    /// Hands a message over, or counts it as dropped. Messages with one key stay in order.
    pub fn send(&self, key: &[u8], message: &[u8]) {
        let record = BaseRecord::to(&self.topic).key(key).payload(message);
        if self.producer.send(record).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn counts(&self) -> TopicCounts {
        TopicCounts {
            sent: self.deliveries.sent.load(Ordering::Relaxed),
            failed: self.deliveries.failed.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            waiting: u64::try_from(self.producer.in_flight_count()).unwrap_or(0),
        }
    }

    /// Waits until nothing waits any more, but no longer than `within`. What is left then has
    /// failed.
    pub fn finish(&self, within: Duration) -> TopicCounts {
        if self.producer.flush(within).is_err() {
            self.producer.purge(PurgeConfig::default().queue().inflight());
            // A purged message is reported like one that failed.
            let _ = self.producer.flush(Duration::from_millis(200));
        }
        self.counts()
    }
}

fn refused(error: KafkaError) -> Failure {
    match error {
        KafkaError::ClientConfig(_, why, name, _) => {
            Failure::config(format!("kafka.options: {name}: {why}"))
        }
        error => Failure::config(format!("kafka: {error}; see kafka.options")),
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _: ()) {
        let shared = &self.0;
        if let Err((error, _)) = result {
            if shared.failed.fetch_add(1, Ordering::Relaxed) == 0 {
                warn!("kafka: {}: a record is lost: {error}", shared.brokers);
            }
            return;
        }
        shared.sent.fetch_add(1, Ordering::Relaxed);
        if shared.is_away.swap(false, Ordering::Relaxed) {
            info!("kafka: {}: sending records again", shared.brokers);
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        debug!("kafka: {facility}: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let is_away = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        match is_away && self.0.is_away.swap(true, Ordering::Relaxed) {
            true => debug!("kafka: {error}: {reason}"),
            false if is_away => {
                warn!("kafka: {}: no broker can be reached; records wait", self.0.brokers)
            }
            // One broker of several; librdkafka goes on to the next.
            false => debug!("kafka: {error}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sinks::ipfix::Endpoint;

    use super::*;

    fn kafka(options: &[(&str, &str)]) -> Kafka {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Kafka {
            // The port of `discard`, on which nothing listens here.
            brokers: vec![Endpoint::parse("127.0.0.1:9").unwrap()],
            topic: "flows".to_owned(),
            options: options.iter().map(own).collect(),
        }
    }

    #[test]
    fn an_option_that_is_none_is_named() {
        let error = Topic::start(&kafka(&[("no.such", "1")])).err().unwrap();
        assert!(error.to_string().starts_with("kafka.options: no.such: "), "{error}");
        let error = Topic::start(&kafka(&[("compression.codec", "x")])).err().unwrap();
        assert!(error.to_string().contains("compression.codec"), "{error}");
    }

    #[test]
    fn without_a_broker_the_queue_is_bounded_and_everything_is_counted() {
        let topic = Topic::start(&kafka(&[("queue.buffering.max.messages", "10")])).unwrap();
        for _ in 0..25 {
            topic.send(b"1", b"{}");
        }
        let counts = topic.counts();
        assert_eq!((counts.waiting, counts.dropped), (10, 15));
        let counts = topic.finish(Duration::from_millis(50));
        assert_eq!((counts.sent, counts.failed, counts.waiting), (0, 10, 0));
    }
}
