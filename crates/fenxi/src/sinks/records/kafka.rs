//! Records for a topic of Kafka.

use config::Setting;
use config::kind::Kind;

use crate::sinks::ipfix::Endpoint;

config::section! {
    /// Records for a topic of Kafka.
    pub struct Kafka = One "kafka";

    /// brokers to which `fenxi run` sends records as JSON, a message each (docs/records.md); only
    /// in a build with the feature kafka
    brokers: Vec<Endpoint> = restart "brokers", Kind::TextList { least: 0 }, "[]",
        "HOST:PORT; empty = none" => brokers;
    /// their topic
    topic: String = restart "topic", Kind::Text, "\"fenxi\"", "" => topic;
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

fn topic(setting: &Setting) -> Result<String, String> {
    let topic: String = setting.get()?;
    // What a broker accepts.
    let is_of_topic = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match (1..=249).contains(&topic.len()) && topic.chars().all(is_of_topic) {
        true => Ok(topic),
        false => Err("expected 1 to 249 letters, digits, dots, underscores and hyphens".to_owned()),
    }
}
