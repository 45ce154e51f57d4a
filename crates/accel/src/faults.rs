//! Lists of faults to inject, in a form that a user can write.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// A fault, and the runs that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Run N fails.
    Error { run: u64 },
    /// Every N-th run fails.
    ErrorEvery { runs: u64 },
    /// Run N takes this long.
    Hang { run: u64, lasts: Duration },
    /// Run N and all later ones fail.
    Vanish { run: u64 },
    /// The output of run N has a NaN.
    Nan { run: u64 },
    /// The output of run N has a wrong shape.
    Shape { run: u64 },
    /// Every run takes this many times as long.
    Slow { factor: u32 },
}

/// Faults to inject, parsed from a list such as `error=3,slow=100,until=8`:
///
/// | part | what goes wrong |
/// |---|---|
/// | `error=N` | run N fails |
/// | `error-every=N` | each N-th run fails |
/// | `hang=N:MS` | run N takes MS milliseconds |
/// | `vanish=N` | run N and all after it fail |
/// | `nan=N` | the output of run N has a NaN |
/// | `shape=N` | the output of run N has a wrong shape |
/// | `slow=F` | every run takes F times as long |
/// | `until=N` | runs after the N-th are sound |
///
/// A part may occur several times. If several failures apply to one run, the first in the list
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    list: Vec<Fault>,
    /// The last run that can have faults.
    until: Option<u64>,
}

/// Why a list of faults is refused: its part, and what is expected.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FaultsError(String);

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Faults::default();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let run = || {
                let number = value.parse().ok().filter(|&run| run > 0);
                number.ok_or_else(|| malformed(part, "NAME=N with a whole number N above 0"))
            };
            faults.list.push(match name {
                "error" => Fault::Error { run: run()? },
                "error-every" => Fault::ErrorEvery { runs: run()? },
                "hang" => hang(part, value)?,
                "vanish" => Fault::Vanish { run: run()? },
                "nan" => Fault::Nan { run: run()? },
                "shape" => Fault::Shape { run: run()? },
                "slow" => Fault::Slow {
                    factor: u32::try_from(run()?)
                        .map_err(|_| malformed(part, "a factor below 2^32"))?,
                },
                "until" => {
                    faults.until = Some(run()?);
                    continue;
                }
                _ => {
                    return Err(FaultsError(format!(
                        "{part}: no such fault; there are error, error-every, hang, vanish, nan, \
                         shape, slow and until"
                    )));
                }
            });
        }
        Ok(faults)
    }
}

fn hang(part: &str, value: &str) -> Result<Fault, FaultsError> {
    let parsed = value.split_once(':').and_then(|(run, ms)| {
        let run = run.parse().ok().filter(|&run| run > 0)?;
        let lasts = Duration::from_millis(u64::from(ms.parse::<u32>().ok()?));
        Some(Fault::Hang { run, lasts })
    });
    parsed.ok_or_else(|| malformed(part, "hang=N:MS, the run and its milliseconds"))
}

fn malformed(part: &str, expected: &str) -> FaultsError {
    FaultsError(format!("{part}: expected {expected}"))
}

impl Faults {
    /// The faults that apply to a run.
    pub(crate) fn in_run(&self, run: u64) -> impl Iterator<Item = Fault> {
        let faults = self.list.iter().copied();
        let sound = self.until.is_some_and(|until| run > until);
        faults.filter(move |fault| {
            !sound
                && match *fault {
                    Fault::Error { run: at }
                    | Fault::Hang { run: at, .. }
                    | Fault::Nan { run: at }
                    | Fault::Shape { run: at } => run == at,
                    Fault::Vanish { run: from } => run >= from,
                    Fault::ErrorEvery { runs } => run.is_multiple_of(runs),
                    Fault::Slow { .. } => true,
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_or_malformed_is_named() {
        let message = |list: &str| list.parse::<Faults>().unwrap_err().to_string();
        for (list, part) in [
            ("", ": no such fault"),
            ("error=1,explode=2", "explode=2: no such fault"),
            ("error", "error: expected NAME=N"),
            ("error=0", "error=0: expected NAME=N"),
            ("nan=-1", "nan=-1: expected NAME=N"),
            ("hang=4", "hang=4: expected hang=N:MS"),
            ("hang=0:5", "hang=0:5: expected hang=N:MS"),
            ("slow=5000000000", "slow=5000000000: expected a factor"),
        ] {
            let message = message(list);
            assert!(message.starts_with(part), "{list}: {message}");
        }
    }
}
