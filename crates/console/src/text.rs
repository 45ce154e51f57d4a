//! Text from outside, made harmless and fitted into columns.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text with everything escaped that moves a cursor, ends a line or turns the direction of
/// reading: control characters as in `\\n` and `\\u{1b}`, separators of lines, and marks of
/// direction (Unicode TR 36, section 2.6).
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

/// Whether the character moves a cursor, ends a line or turns the direction of reading.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The columns that the text takes once it is escaped.
pub fn columns(text: &str) -> usize {
    escape(text).width()
}

/// The text, escaped, exactly `width` columns wide: cut with `…` or padded with spaces.
pub fn left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let fill = width.saturating_sub(text.width());
    text + &" ".repeat(fill)
}

/// The same with spaces before it.
pub fn right(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let fill = width.saturating_sub(text.width());
    " ".repeat(fill) + &text
}

/// The text, escaped, at most `width` columns wide.
pub fn cut(text: &str, width: usize) -> String {
    let text = escape(text);
    if text.width() <= width {
        return text.into_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for character in text.chars() {
        let columns = character.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        used += columns;
        cut.push(character);
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// The text with what HTML would take for markup written as entities.
pub fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in escape(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
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
    fn columns_are_columns_of_the_terminal() {
        assert_eq!(left("TLS", 5), "TLS  ");
        assert_eq!(right("TLS", 5), "  TLS");
        assert_eq!(left("PostgreSQL", 5), "Post…");
        // Wide characters take two columns each.
        assert_eq!(left("流量分类", 5), "流量…");
        assert_eq!(left("流量分类", 6), "流量… ");
        assert_eq!(left("流量", 4), "流量");
        assert_eq!(left("\u{1b}[31mred", 6), "\\u{1b…");
        assert_eq!((left("x", 0), cut("", 3)), (String::new(), String::new()));
    }

    #[test]
    fn markup_is_text() {
        let name = "<script>alert('x')</script>&\"\u{1b}";
        let shown = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\\u{1b}";
        assert_eq!(html(name), shown);
    }
}
