//! Samples of flows, for a program that tunes models.

use std::path::PathBuf;
use std::time::Duration;

use flowmgr::SeriesShare;

use crate::kind::{Kind, float, integer};
use crate::section;
use crate::setting::Setting;

section! {
    /// Samples of flows, for a program that tunes models.
    pub struct Learn = One "learn";

    /// the Unix socket on which fenxi gives samples of flows that have ended to a program that
    /// tunes models, at most 4 at a time: what a model was asked, what it answered, and what came
    /// behind it; no addresses. Only root and the user of the service may connect
    socket: Option<PathBuf> = restart "socket", Kind::Text, "\"\"",
        "path, empty = none" => Setting::socket;
    /// which flows are sampled; a keyed hash chooses them. A quarter of them is never given away:
    /// what a tuned model is judged by
    share: f64 = restart "share", float(0.0, 1.0), "0.1", "share of the flows";
    /// how often samples are given
    every: Duration = restart "every_ms", integer(100, 1000), "500",
        "milliseconds" => |s| Ok(Duration::from_millis(s.get()?));
    /// whose signature a model needs that is offered: the public key of minisign, or the path of
    /// its file
    key: Option<String> = restart "key", Kind::Text, "\"\"",
        "empty = none is needed" => key;
    /// the topic at `kafka.brokers` that gets samples, too: for one tuner of many routers
    /// (docs/learn.md)
    topic: Option<String> = restart "topic", Kind::Text, "\"\"", "empty = none" => Setting::topic;
}

/// A key, or a path seen from the place where it was set.
fn key(setting: &Setting) -> Result<Option<String>, String> {
    let text = setting.word()?;
    // The text of a key: 42 bytes as base64, of which the first two say that it is one.
    match text.as_deref().is_some_and(|it| it.starts_with("RW") && it.len() == 56) {
        true => Ok(text),
        false => Ok(setting.file()?.map(|path| path.display().to_string())),
    }
}

impl Learn {
    /// Whether samples are given to anybody.
    pub fn is_on(&self) -> bool {
        self.socket.is_some() || self.topic.is_some()
    }

    /// Which flows are sampled.
    pub fn samples(&self) -> SeriesShare {
        if self.is_on() { SeriesShare::new(self.share) } else { SeriesShare::NONE }
    }
}
