//! Escapes text from outside, so that a line of the log or of an error stays one line whatever
//! paths and names it contains.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

pub use console::text::escape;

/// Standard error, for events of one line each.
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

fn line(event: &[u8]) -> String {
    let text = String::from_utf8_lossy(event);
    match text.strip_suffix('\n') {
        Some(text) => escape(text).into_owned() + "\n",
        None => escape(&text).into_owned(),
    }
}

/// The longest word of a message, in characters: paths are shorter.
const WORD_MAX: usize = 512;
const MESSAGE_MAX: usize = 16 * 1024;

/// A message of one line, escaped, in which no name from outside is longer than a reader can bear.
pub fn message(text: &str) -> String {
    let text = escape(text);
    let words = text.split(' ').map(|word| shortened(word, WORD_MAX));
    let text = words.collect::<Vec<_>>().join(" ");
    shortened(&text, MESSAGE_MAX).into_owned()
}

/// The beginning and the end of a text longer than `most` characters.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= most {
        return text.into();
    }
    let kept = most / 4;
    let begin: String = text.chars().take(kept).collect();
    let end: String = text.chars().skip(count - kept).collect();
    format!("{begin}…[{} characters]…{end}", count - 2 * kept).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(line(b"WARN x\nWARN y: gone\n"), "WARN x\\nWARN y: gone\n");
        assert_eq!(line(b"no end"), "no end");
    }

    #[test]
    fn a_long_name_is_shortened_and_the_rest_of_the_message_stays() {
        let path = "/x".repeat(WORD_MAX / 2 - 1);
        let fits = format!("{path}: not found\n");
        assert_eq!(message(&fits), format!("{path}: not found\\n"));
        let name = "a".repeat(1 << 16);
        let said = message(&format!("f.toml:3: task.{name}: expected a word"));
        assert!(said.starts_with("f.toml:3: task.aaa"), "{said}");
        assert!(said.ends_with("aaa: expected a word"), "{said}");
        assert!(said.contains("…[65286 characters]…"), "{said}");
        let many = message(&"é ".repeat(1 << 16));
        assert!(many.chars().count() < MESSAGE_MAX, "{}", many.len());
    }
}
