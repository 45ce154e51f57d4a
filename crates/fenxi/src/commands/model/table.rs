//! Tables of flows: CSV, gzipped or not, with a line of column names. Whatever is wrong in one is
//! refused with its line.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

use csv::StringRecord;
use flate2::read::MultiGzDecoder;

use crate::exit::Failure;

/// The most bytes read for one row, so that neither a line without an end nor an open quote fills
/// the memory.
const ROW_BYTES_MAX: usize = 1 << 20;

/// The most bytes of a label, and of the name of a capture or group.
const NAME_MAX: usize = 512;

pub struct Table {
    path: String,
    reader: csv::Reader<Bounded>,
    /// Bytes that the current row may still take.
    left: Rc<Cell<usize>>,
    is_gzip: bool,
    header: StringRecord,
    record: StringRecord,
}

impl Table {
    pub fn open(path: &Path) -> Result<Table, Failure> {
        let shown = path.display().to_string();
        let (bytes, is_gzip) = File::open(path)
            .and_then(unzipped)
            .map_err(|error| Failure::no_input(format!("{shown}: cannot be read: {error}")))?;
        let left = Rc::new(Cell::new(ROW_BYTES_MAX));
        let bounded = Bounded { bytes, left: Rc::clone(&left) };
        let mut table = Table {
            path: shown,
            reader: csv::Reader::from_reader(bounded),
            left,
            is_gzip,
            header: StringRecord::new(),
            record: StringRecord::new(),
        };
        let header = table.reader.headers().cloned();
        let header = header.map_err(|error| table.unreadable(error))?;
        // Spreadsheets put a byte order mark before the first name.
        let names = header.iter();
        table.header = names.map(|name| name.trim_start_matches('\u{feff}')).collect();
        if table.header.is_empty() {
            let path = &table.path;
            return Err(Failure::data(format!(
                "{path}: empty; a table begins with a line of column names"
            )));
        }
        Ok(table)
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column == name)
    }

    /// The names of all columns.
    pub fn columns(&self) -> Vec<&str> {
        self.header.iter().collect()
    }

    pub fn refuse_header(&self, problem: &str) -> Failure {
        Failure::data(format!("{}: line 1: {problem}", self.path))
    }

    /// The next row; none at the end of the table.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, Failure> {
        self.left.set(ROW_BYTES_MAX);
        match self.reader.read_record(&mut self.record) {
            Ok(false) => Ok(None),
            Err(error) => Err(self.unreadable(error)),
            Ok(true) => Ok(Some(Row {
                path: &self.path,
                line: self.record.position().map_or(1, csv::Position::line),
                record: &self.record,
            })),
        }
    }

    fn unreadable(&self, error: csv::Error) -> Failure {
        let at = error.position().unwrap_or(self.reader.position()).line();
        let place = format!("{}: line {at}", self.path);
        match error.into_kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => Failure::data(format!(
                "{place}: {len} cells for {expected_len} columns; complete the line, or quote \
                 cells that hold commas"
            )),
            csv::ErrorKind::Utf8 { .. } => Failure::data(format!(
                "{place}: not UTF-8 text; convert the file, for example with iconv"
            )),
            csv::ErrorKind::Io(cause)
                if self.is_gzip && cause.kind() != ErrorKind::FileTooLarge =>
            {
                Failure::data(format!(
                    "{place}: the gzip file is cut off or damaged ({cause}); copy it again"
                ))
            }
            csv::ErrorKind::Io(cause) if cause.kind() == ErrorKind::FileTooLarge => {
                Failure::data(format!(
                    "{place}: longer than {} KiB; is this a table of flows, and is each quote \
                     closed?",
                    ROW_BYTES_MAX >> 10
                ))
            }
            csv::ErrorKind::Io(cause) => Failure::io(format!("{place}: cannot be read: {cause}")),
            _ => Failure::data(format!("{place}: not readable as CSV")),
        }
    }
}

pub struct Row<'a> {
    path: &'a str,
    pub line: u64,
    record: &'a StringRecord,
}

impl<'a> Row<'a> {
    /// The text of a cell without spaces around it; empty if the table lacks the column.
    pub fn cell(&self, column: Option<usize>) -> &'a str {
        let cell = column.and_then(|column| self.record.get(column));
        cell.unwrap_or_default().trim()
    }

    /// The text of a cell that is kept, such as a label or the name of a capture.
    pub fn name(&self, column: Option<usize>) -> Result<&'a str, Failure> {
        let name = self.cell(column);
        match name.len() > NAME_MAX {
            true => Err(self.refuse(&format!(
                "a name of {} bytes; {NAME_MAX} is the most for labels, captures and groups",
                name.len()
            ))),
            false => Ok(name),
        }
    }

    pub fn refuse(&self, problem: &str) -> Failure {
        Failure::data(format!("{}: line {}: {problem}", self.path, self.line))
    }
}

/// Bytes that end with an error when a row takes too many.
struct Bounded {
    bytes: Box<dyn Read>,
    left: Rc<Cell<usize>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let room = buffer.len().min(left);
        let read = self.bytes.read(&mut buffer[..room])?;
        self.left.set(left - read);
        Ok(read)
    }
}

fn unzipped(mut file: File) -> io::Result<(Box<dyn Read>, bool)> {
    let mut first = Vec::new();
    file.by_ref().take(2).read_to_end(&mut first)?;
    let is_gzip = first == [0x1f, 0x8b];
    let whole = io::Cursor::new(first).chain(file);
    Ok(match is_gzip {
        true => (Box::new(MultiGzDecoder::new(whole)), true),
        false => (Box::new(whole), false),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// All rows of a table of these bytes, or the message.
    fn rows(bytes: &[u8]) -> Result<Vec<String>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let read = || {
            let mut table = Table::open(file.path())?;
            let column = table.column("b");
            let mut cells = Vec::new();
            while let Some(row) = table.next_row()? {
                cells.push(row.cell(column).to_owned());
            }
            Ok(cells)
        };
        read().map_err(|failure: Failure| failure.to_string())
    }

    #[test]
    fn rows_are_read_gzipped_or_not() {
        let text = b"a,b\n1, x y \n2,\"p,q\"\n";
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text).unwrap();
        for bytes in [text.to_vec(), packed.finish().unwrap()] {
            assert_eq!(rows(&bytes).unwrap(), ["x y", "p,q"]);
        }
        assert!(rows(b"a\n1\n").unwrap()[0].is_empty());
        assert_eq!(rows("\u{feff}b,a\r\n1,2\r\n".as_bytes()).unwrap(), ["1"]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        for line in 0..5000 {
            writeln!(packed, "a{line},b{}", line * 7919).unwrap();
        }
        let mut packed = packed.finish().unwrap();
        packed.truncate(packed.len() / 2);
        let long = [b"a,b\n1,".as_slice(), &vec![b'x'; 2 << 20]].concat();
        let quote = [b"a,b\n1,2\n3,\"".as_slice(), "1,2\n".repeat(1 << 19).as_bytes()].concat();
        for (bytes, message) in [
            (b"".to_vec(), "empty; "),
            (b"a,b\n1,2\n1\n".to_vec(), "line 3: 1 cells for 2 columns; "),
            (b"a,b\n1,\xff\n".to_vec(), "line 2: not UTF-8 text; "),
            (packed, "the gzip file is cut off or damaged ("),
            (long, "line 2: longer than 1024 KiB; "),
            (quote, ": longer than 1024 KiB; "),
        ] {
            let refused = rows(&bytes).unwrap_err();
            assert!(refused.contains(message), "{message}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
        let failure = Table::open(Path::new("/")).err().unwrap();
        assert_eq!(failure.code(), 66, "{failure}");
    }
}
