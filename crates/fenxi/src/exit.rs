//! How the program ends: exit codes of sysexits(3), so that a supervisor can tell "broken for good"
//! from "try again".
//!
//! Whatever goes wrong travels up as a [`Failure`], and `main` alone prints it. A reader that goes
//! away (`| head`) is no failure of ours: it travels the same way, but says nothing and exits 0.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use config::ConfigErrors;
use packetio::RxError;
use recording::RecordingError;

use crate::escape;

mod usage;

pub use usage::of_clap;

/// The end of the program before its work was done: what to tell the user, and the exit code.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .lines.join("\n"))]
pub struct Failure {
    lines: Vec<String>,
    code: u8,
}

/// Declares a constructor for each exit code.
macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Failure {
            Failure::new($code, message)
        })*
    };
}

impl Failure {
    /// A failure of one line; control characters in names are escaped, and long names are
    /// shortened.
    fn new(code: u8, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure::of_lines(code, (!message.is_empty()).then_some(message.as_str()))
    }

    /// A line for each problem.
    fn of_lines<'a>(code: u8, lines: impl IntoIterator<Item = &'a str>) -> Failure {
        let lines = lines.into_iter().map(escape::message);
        Failure { lines: lines.collect(), code }
    }

    failures! {
        /// 64: the command line is wrong.
        usage = 64;
        /// 65: a capture or a bundle is not what it should be.
        data = 65;
        /// 66: an input cannot be opened.
        no_input = 66;
        /// 69: something needed, such as a library or a device, is missing.
        unavailable = 69;
        /// 70: a bug of ours.
        software = 70;
        /// 73: an output cannot be created.
        cannot_create = 73;
        /// 74: reading or writing failed.
        io = 74;
        /// 77: permission denied.
        not_allowed = 77;
        /// 78: the configuration is wrong.
        config = 78;
    }

    /// The same, with a line for each problem.
    pub fn config_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Failure {
        Failure::of_lines(78, lines)
    }

    /// The reader of our output has closed the pipe: prints nothing and exits with 0.
    pub fn quiet() -> Failure {
        Failure { lines: Vec::new(), code: 0 }
    }

    /// `path` could not be created.
    pub fn creating(path: &Path, error: &io::Error) -> Failure {
        Failure::cannot_create(format!("{}: cannot be created: {error}", path.display()))
    }

    /// Writing to `output` failed; a closed pipe ends quietly.
    pub fn writing(output: &str, error: &io::Error) -> Failure {
        if error.kind() == ErrorKind::BrokenPipe {
            Failure::quiet()
        } else {
            Failure::io(format!("{output}: write failed: {error}"))
        }
    }

    /// Combines two failures: the lines of both, and the exit code of the first that is not quiet.
    pub fn and(mut self, other: Failure) -> Failure {
        if self.code == 0 {
            self.code = other.code;
        }
        self.lines.extend(other.lines);
        self
    }

    /// All of these failures as one, if there are any.
    pub fn all(failures: impl IntoIterator<Item = Option<Failure>>) -> Result<(), Failure> {
        failures.into_iter().flatten().reduce(Failure::and).map_or(Ok(()), Err)
    }

    /// Whether it prints nothing.
    pub fn is_quiet(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether something needed is missing.
    pub fn is_unavailable(&self) -> bool {
        self.code == 69
    }

    /// The exit code as a number.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Prints the lines on stderr, each with the program's name, and gives the exit code. For
    /// `main`.
    pub fn report(&self) -> ExitCode {
        self.print();
        ExitCode::from(self.code)
    }

    /// Prints the lines on stderr, each with the program's name.
    pub fn print(&self) {
        self.print_as("fenxi");
    }

    /// The same for a program of this name.
    pub fn print_as(&self, program: &str) {
        let mut stderr = io::stderr().lock();
        for line in &self.lines {
            // Without stderr, only the exit code can report the failure.
            let _ = writeln!(stderr, "{program}: {line}");
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Failure {
        match errors {
            ConfigErrors::Unreadable(message) => Failure::no_input(message),
            ConfigErrors::Invalid(lines) => Failure::config_lines(lines.iter().map(String::as_str)),
        }
    }
}

impl From<dataplane::Error> for Failure {
    fn from(error: dataplane::Error) -> Failure {
        use dataplane::Error;
        match error {
            // Problems of a configuration are a line each.
            Error::Config(lines) => Failure::config_lines(lines.lines()),
            Error::Data(line) => Failure::data(line),
            Error::NoInput(line) => Failure::no_input(line),
            Error::Unavailable(line) => Failure::unavailable(line),
            Error::CannotCreate(line) => Failure::cannot_create(line),
            Error::Io(line) => Failure::io(line),
            Error::NotAllowed(line) => Failure::not_allowed(line),
            Error::Software(line) => Failure::software(line),
        }
    }
}

impl From<RxError> for Failure {
    fn from(error: RxError) -> Failure {
        dataplane::Error::from(error).into()
    }
}

impl From<RecordingError> for Failure {
    fn from(error: RecordingError) -> Failure {
        let line = error.to_string();
        match error {
            RecordingError::NoInput(_) => Failure::no_input(line),
            RecordingError::Damaged(_) => Failure::data(line),
            RecordingError::CannotCreate(_) => Failure::cannot_create(line),
            RecordingError::NoThread(_) => Failure::unavailable(line),
        }
    }
}

/// Exits with this code if a thread was left behind; otherwise `main` returns normally.
pub fn end(code: u8) -> ExitCode {
    if dataplane::leaves_threads_behind() {
        let _ = io::stdout().flush();
        signal_hook::low_level::exit(code.into());
    }
    ExitCode::from(code)
}

/// Writes `text` to stdout and flushes it, so that a full disk behind `>` is noticed while it can
/// still be reported.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::writing("stdout", &error))
}

/// Writes `text` to stderr, where a full disk is an error as well and no reason to panic.
pub fn remark(text: &str) -> Result<(), Failure> {
    let written = io::stderr().lock().write_all(text.as_bytes());
    written.map_err(|error| Failure::writing("stderr", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        let closed = Failure::writing("stdout", &ErrorKind::BrokenPipe.into());
        assert_eq!((closed.code(), closed.lines.len()), (0, 0));
        let full = Failure::writing("out.jsonl", &ErrorKind::StorageFull.into());
        assert_eq!(full.code(), 74);
        assert!(full.to_string().starts_with("out.jsonl: write failed: "), "{full}");
    }

    #[test]
    fn codes_are_those_of_sysexits() {
        let made = [
            Failure::usage(""),
            Failure::data(""),
            Failure::no_input(""),
            Failure::unavailable(""),
            Failure::software(""),
            Failure::cannot_create(""),
            Failure::io(""),
            Failure::not_allowed(""),
            Failure::config(""),
        ];
        assert_eq!(made.map(|failure| failure.code()), [64, 65, 66, 69, 70, 73, 74, 77, 78]);
    }

    #[test]
    fn a_name_cannot_make_a_line_of_its_own() {
        let failure = Failure::no_input("x\nfenxi: success\u{1b}[K: not found");
        assert_eq!(failure.lines, ["x\\nfenxi: success\\u{1b}[K: not found"]);
        let problems = ConfigErrors::Invalid(vec!["a\nb: x".to_owned(), "c: y".to_owned()]);
        assert_eq!(Failure::from(problems).lines, ["a\\nb: x", "c: y"]);
    }

    #[test]
    fn configuration_problems_keep_their_lines() {
        let failure =
            Failure::from(ConfigErrors::Invalid(vec!["a:1: x".to_owned(), "a:2: y".to_owned()]));
        assert_eq!((failure.code(), failure.lines.len()), (78, 2));
        assert_eq!(Failure::from(ConfigErrors::Unreadable("no".to_owned())).code(), 66);
    }
}
