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
/// is sent after 100 ms. A frame of samples has up to 1 MiB, but brokers count what is compressed.
const DEFAULTS: [(&str, &str); 5] = [
    ("client.id", "fenxi"),
    ("queue.buffering.max.kbytes", "16384"),
    ("queue.buffering.max.ms", "100"),
    ("compression.codec", "lz4"),
    ("message.max.bytes", "1100000"),
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
    pub fn start(kafka: &Kafka, topic: &str) -> Result<Topic, Failure> {
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
        Ok(Topic { producer, topic: topic.to_owned(), deliveries, dropped: AtomicU64::new(0) })
    }

    /// Hands over a message of `items` items, or counts them as dropped. Messages with one key stay
    /// in order.
    pub fn send(&self, key: &[u8], message: &[u8], items: usize) {
        let record = BaseRecord::with_opaque_to(&self.topic, items).key(key).payload(message);
        if self.producer.send(record).is_err() {
            self.dropped.fetch_add(items as u64, Ordering::Relaxed);
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
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, items: usize) {
        let shared = &self.0;
        if let Err((error, _)) = result {
            if shared.failed.fetch_add(items as u64, Ordering::Relaxed) == 0 {
                warn!("kafka: {}: a message is lost: {error}", shared.brokers);
            }
            return;
        }
        shared.sent.fetch_add(items as u64, Ordering::Relaxed);
        if shared.is_away.swap(false, Ordering::Relaxed) {
            info!("kafka: {}: sending again", shared.brokers);
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
                warn!("kafka: {}: no broker can be reached; messages wait", self.0.brokers)
            }
            // One broker of several; librdkafka goes on to the next.
            false => debug!("kafka: {error}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdkafka::Message;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::mocking::MockCluster;

    use crate::sinks::ipfix::Endpoint;

    use super::*;

    fn kafka(options: &[(&str, &str)]) -> Kafka {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Kafka {
            // The port of `discard`, on which nothing listens here.
            brokers: vec![Endpoint::parse("127.0.0.1:9").unwrap()],
            topic: None,
            options: options.iter().map(own).collect(),
        }
    }

    #[test]
    fn an_option_that_is_none_is_named() {
        let error = Topic::start(&kafka(&[("no.such", "1")]), "flows").err().unwrap();
        assert!(error.to_string().starts_with("kafka.options: no.such: "), "{error}");
        let error = Topic::start(&kafka(&[("compression.codec", "x")]), "flows").err().unwrap();
        assert!(error.to_string().contains("compression.codec"), "{error}");
    }

    #[test]
    fn without_a_broker_the_queue_is_bounded_and_everything_is_counted() {
        let topic = kafka(&[("queue.buffering.max.messages", "10")]);
        let topic = Topic::start(&topic, "flows").unwrap();
        for _ in 0..25 {
            topic.send(b"1", b"{}", 3);
        }
        let counts = topic.counts();
        // Events of librdkafka wait in the same queue.
        assert!(counts.waiting >= 10 && counts.dropped == 45, "{counts:?}");
        let counts = topic.finish(Duration::from_millis(50));
        assert_eq!((counts.sent, counts.failed, counts.waiting), (0, 30, 0));
    }

    /// The broker of librdkafka's own tests.
    #[test]
    fn frames_of_any_size_reach_a_broker_by_router_and_in_order() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("samples", 3, 1).unwrap();
        let endpoint = Endpoint::parse(&cluster.bootstrap_servers()).unwrap();
        let topic = Topic::start(&Kafka { brokers: vec![endpoint], ..kafka(&[]) }, "samples");
        let topic = topic.unwrap();
        // As large as a frame can be, and as JSON, which shrinks.
        let largest = "[583,22000],".repeat((1 << 20) / 12);
        for (router, text) in [("a", "1"), ("b", "2"), ("a", largest.as_str()), ("a", "3")] {
            topic.send(router.as_bytes(), text.as_bytes(), 2);
        }
        let counts = topic.finish(Duration::from_secs(20));
        assert_eq!((counts.sent, counts.lost(), counts.waiting), (8, 0, 0));
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("group.id", "test")
            .set("auto.offset.reset", "earliest")
            .create()
            .unwrap();
        consumer.subscribe(&["samples"]).unwrap();
        let mut found = Vec::new();
        let began = Instant::now();
        while found.len() < 4 {
            assert!(began.elapsed() < Duration::from_secs(60), "{} messages", found.len());
            let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
            let message = message.unwrap();
            let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            found.push((text(message.key()), text(message.payload())));
        }
        let of = |router: &str| -> Vec<&str> {
            found.iter().filter(|it| it.0 == router).map(|it| it.1.as_str()).collect()
        };
        assert!(of("a") == ["1", &largest, "3"] && of("b") == ["2"]);
    }
}
