//! Where the log goes: to the journal by its own protocol, or to stderr as lines of text.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::Subscriber;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::registry::LookupSpan;

use crate::escape::Stderr;
use crate::exit::Failure;
use config::checked::LogTo;

/// The usual priorities; the library's defaults are one lower.
const PRIORITIES: PriorityMappings = PriorityMappings {
    error: Priority::Error,
    warn: Priority::Warning,
    info: Priority::Informational,
    debug: Priority::Debug,
    trace: Priority::Debug,
};

type Output<S> = Box<dyn Layer<S> + Send + Sync>;

/// Opens the output. If stderr is connected to the journal, events go to the journal directly, so
/// that they keep their levels.
pub fn open<S>(to: LogTo) -> Result<Output<S>, Failure>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let leads_to_journal = leads_to_journal();
    let journal = match to {
        LogTo::Stderr => None,
        LogTo::Journald => Some(tracing_journald::layer().map_err(no_journal)?),
        LogTo::Auto if leads_to_journal => tracing_journald::layer().ok(),
        LogTo::Auto => None,
    };
    if let Some(journal) = journal {
        return Ok(Box::new(journal.with_priority_mappings(PRIORITIES)));
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(Stderr)
        // Without stderr the error cannot be reported anywhere.
        .log_internal_errors(false);
    Ok(match leads_to_journal {
        // The journal stamps every line itself.
        true => Box::new(lines.without_time()),
        false => Box::new(lines.with_timer(Utc)),
    })
}

fn no_journal(error: io::Error) -> Failure {
    Failure::unavailable(format!(
        "log.to = \"journald\": no journal listens on /run/systemd/journal/socket: {error}; set \
        log.to = \"stderr\""
    ))
}

/// Whether stderr still is the stream that the service manager has connected to the journal.
fn leads_to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let found = stderr.and_then(|file| file.metadata());
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// Formats times as in records: RFC 3339 in UTC with microseconds.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.6}", jiff::Timestamp::now())
    }
}
