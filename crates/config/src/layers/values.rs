//! Values and places as a TOML file or a command line has them.

use serde::Deserialize;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

/// A value as typed on a command line: TOML, or a bare word that stands for itself. Where
/// `is_text`, whatever is not a TOML string is the text as it stands, so that `1:1:1` or a path of
/// digits needs no quotes.
pub(super) fn loose(text: &str, is_text: bool) -> Result<Spanned<DeValue<'_>>, String> {
    let word = || Spanned::new(0..text.len(), DeValue::String(text.into()));
    match DeValue::parse(text) {
        Ok(value) if is_text && !value.get_ref().is_str() => Ok(word()),
        Ok(value) => Ok(value),
        Err(_) if !text.starts_with(['"', '\'', '[', '{']) => Ok(word()),
        Err(error) => Err(format!("{text} is not a TOML value: {}", one_line(error.message()))),
    }
}

/// The parser keeps numbers as text; here they become numbers, which fails beyond 64 bits. Err:
/// what was found.
pub(super) fn owned(value: &Spanned<DeValue<'_>>) -> Result<Value, String> {
    Value::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| {
        match value.get_ref() {
            DeValue::Integer(integer) => integer.as_str().to_owned(),
            _ => format!("a value that cannot be used ({})", one_line(error.message())),
        }
    })
}

/// A table's entries as they stand in the file.
pub(super) fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Line and column, both from 1, of the byte at `offset`.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// A message of the parser, which may have several lines, as one.
pub(super) fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
