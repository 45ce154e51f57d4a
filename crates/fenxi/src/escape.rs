//! Escapes text from outside, so that a line of the log or of an error stays one line whatever paths and names it contains.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

/// The text with everything escaped that moves a cursor, ends a line or turns the direction of reading: control characters
/// as in `\\n` and `\\u{1b}`, separators of lines, and marks of direction (Unicode TR 36, section 2.6).
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_unsafe(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

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
    fn only_what_could_deceive_is_escaped() {
        assert!(matches!(escape("/tmp/päth → x y"), Cow::Borrowed(_)));
        assert_eq!(escape("a\nfenxi: b\r\t"), "a\\nfenxi: b\\r\\t");
        assert_eq!(escape("\u{1b}[2J\u{9b}"), "\\u{1b}[2J\\u{9b}");
        assert_eq!(escape("a\u{2028}\u{202e}b"), "a\\u{2028}\\u{202e}b");
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(line(b"WARN x\nWARN y: gone\n"), "WARN x\\nWARN y: gone\n");
        assert_eq!(line(b"no end"), "no end");
    }
}
