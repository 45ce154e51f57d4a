//! CSV: a header with the names of keys, then a rule per line. `;` separates values in a cell.

use std::borrow::Cow;
use std::io::Read;

use crate::draft::{Draft, Key};
use crate::error::Problem;
use crate::lines::{LineError, Lines};
use crate::sets::Sets;

/// Reads rules; passes each to `add` with its line.
pub fn read<R: Read>(
    lines: &mut Lines<R>,
    sets: &Sets,
    mut add: impl FnMut(Draft, u32) -> Result<(), Problem>,
) -> Result<(), LineError> {
    let header = lines.next()?.ok_or(LineError::Wrong(Problem::NoHeader))?;
    let columns = columns(header).map_err(LineError::Wrong)?;
    while let Some(line) = lines.next()? {
        let draft = row(line, &columns, sets).map_err(LineError::Wrong)?;
        add(draft, lines.number()).map_err(LineError::Wrong)?;
    }
    Ok(())
}

fn columns(header: &str) -> Result<Vec<Key>, Problem> {
    let mut columns = Vec::new();
    for name in Cells(Some(header)) {
        let key = Key::parse("column", name?.trim())?;
        if columns.contains(&key) {
            return Err(Problem::ColumnTwice(key.name()));
        }
        columns.push(key);
    }
    Ok(columns)
}

fn row(line: &str, columns: &[Key], sets: &Sets) -> Result<Draft, Problem> {
    let mut draft = Draft::default();
    let mut found = 0;
    for cell in Cells(Some(line)) {
        let cell = cell?;
        let cell = cell.trim();
        if let (Some(key), false) = (columns.get(found), cell.is_empty()) {
            match key.takes_list() && cell.contains(';') {
                true => {
                    let values: Vec<&str> = cell.split(';').map(str::trim).collect();
                    draft.set(*key, &values, sets)?;
                }
                false => draft.set(*key, &[cell], sets)?,
            }
        }
        found += 1;
    }
    match found == columns.len() {
        true => Ok(draft),
        false => Err(Problem::Cells { found, expected: columns.len() }),
    }
}

/// The cells of a line (RFC 4180, without line breaks in cells), by the rest of the line, if any.
struct Cells<'a>(Option<&'a str>);

impl<'a> Iterator for Cells<'a> {
    type Item = Result<Cow<'a, str>, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0?;
        if let Some(quoted) = rest.strip_prefix('"') {
            return Some(self.quoted(quoted));
        }
        let (cell, rest) = match rest.split_once(',') {
            Some((cell, rest)) => (cell, Some(rest)),
            None => (rest, None),
        };
        self.0 = rest;
        Some(Ok(cell.into()))
    }
}

impl<'a> Cells<'a> {
    /// A cell whose opening quote has been taken off `text`.
    fn quoted(&mut self, text: &'a str) -> Result<Cow<'a, str>, Problem> {
        self.0 = None;
        let mut cell = Cow::Borrowed("");
        let mut rest = text;
        loop {
            let (part, behind) = rest.split_once('"').ok_or(Problem::OpenQuote)?;
            cell += part;
            let Some(more) = behind.strip_prefix('"') else {
                rest = behind;
                break;
            };
            cell += "\"";
            rest = more;
        }
        if !rest.is_empty() {
            self.0 = Some(rest.strip_prefix(',').ok_or(Problem::AfterQuote)?);
        }
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(line: &str) -> Result<Vec<String>, Problem> {
        Cells(Some(line)).map(|cell| cell.map(Cow::into_owned)).collect()
    }

    #[test]
    fn cells_may_be_quoted() {
        assert_eq!(cells("a,,b").unwrap(), ["a", "", "b"]);
        assert_eq!(cells(r#""a,b","say ""x""","#).unwrap(), ["a,b", "say \"x\"", ""]);
        assert_eq!(cells(r#""a"#), Err(Problem::OpenQuote));
        assert_eq!(cells(r#""a"b,c"#), Err(Problem::AfterQuote));
    }
}
