//! Programs and maps of an object, and causes of aya's errors.

use std::error::Error;
use std::io::{self, Read};

use aya::maps::Map;
use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfError};
use flate2::bufread::ZlibDecoder;

type Cause<'a> = &'a (dyn Error + 'static);

fn causes(error: Cause<'_>) -> impl Iterator<Item = Cause<'_>> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// An object as `build.rs` has packed it.
pub(crate) fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut object = Vec::new();
    ZlibDecoder::new(packed).read_to_end(&mut object)?;
    Ok(object)
}

/// Loads a program into the kernel, unless it is loaded.
pub(crate) fn load_program<'a>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SchedClassifier, Box<dyn Error>> {
    let program = ebpf.program_mut(name).ok_or("the object lacks a program")?;
    let program: &mut SchedClassifier = program.try_into()?;
    match program.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(program),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, Box<dyn Error>> {
    let missing = || format!("the object has no map {name}");
    Ok(ebpf.take_map(name).ok_or_else(missing)?)
}

/// The system's error number in an error or its causes.
pub(crate) fn errno(error: Cause<'_>) -> Option<i32> {
    causes(error).find_map(|it| it.downcast_ref::<io::Error>()?.raw_os_error())
}

/// The system's error behind an error, otherwise its text.
pub(crate) fn system_error(error: Cause<'_>) -> io::Error {
    let text = || io::Error::other(error.to_string());
    errno(error).map_or_else(text, io::Error::from_raw_os_error)
}

/// Why the kernel did not load a program: its error, and the last lines of the verifier's log,
/// which give the reason, joined to one.
pub(crate) fn load_error(error: Cause<'_>) -> Option<(&io::Error, Option<String>)> {
    causes(error).find_map(|it| {
        // `EbpfError` shows its inner error as its own, so `causes` skips that.
        let inner = match it.downcast_ref() {
            Some(EbpfError::ProgramError(inner)) => Some(inner),
            _ => it.downcast_ref(),
        };
        match inner? {
            ProgramError::LoadError { io_error, verifier_log } => {
                Some((io_error, last_lines(&verifier_log.to_string())))
            }
            _ => None,
        }
    })
}

fn last_lines(log: &str) -> Option<String> {
    const LINES: usize = 3;
    // The lines of counts at the end give no reason.
    let counts = ["processed ", "verification time ", "stack depth "];
    let is_count = |line: &str| counts.iter().any(|it| line.starts_with(it));
    let is_reason = |line: &&str| !line.is_empty() && !is_count(line);
    let lines: Vec<&str> = log.lines().map(str::trim).filter(is_reason).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    (!last.is_empty()).then(|| last.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_the_verifier_says_the_last_lines_are_told() {
        let log = "0: (61) r2 = *(u32 *)(r1 +16)\n1: (18) r1\nR1 invalid mem access \
            'scalar'\nprocessed 3 insns\n\n";
        let told = last_lines(log).unwrap();
        assert!(told.ends_with("| R1 invalid mem access 'scalar'"), "{told}");
        assert_eq!(last_lines("processed 0 insns"), None);
    }
}
