//! Escapes text from outside, so that a line of the log or of an error stays one line whatever paths and names it contains.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

pub use display::text::escape;

/// Standard error, for events of which each is one line.
pub struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line(io::stderr())
    }
}

/// Takes a whole event with its line feed at a time.
pub struct Line(io::Stderr);

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(line(event).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// An event as one line.
fn line(event: &[u8]) -> String {
    let text = String::from_utf8_lossy(event);
    match text.strip_suffix('\n') {
        Some(text) => escape(text).into_owned() + "\n",
        None => escape(&text).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(line(b"WARN x\nWARN y: gone\n"), "WARN x\\nWARN y: gone\n");
        assert_eq!(line(b"no end"), "no end");
    }
}
