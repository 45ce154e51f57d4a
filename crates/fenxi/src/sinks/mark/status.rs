//! The status of marks for people. A run that writes none must not look like a run that loses none.

use crate::figures::grouped;
use crate::protocol::Sums;

use super::Counts;
use crate::sinks::netfilter::{connections_line, connections_sentence};

/// Minimum labels without a connection for a warning, if no label had one.
const SUSPICIOUS: u64 = 64;

/// The line of `fenxi ctl status`; `None`: the run writes no marks.
pub fn line(sums: &Sums) -> Option<String> {
    let of = |name: &str| sums.get(name).copied().unwrap_or_default();
    let asked = *sums.get("marks_asked")?;
    let [written, kept, not_found] = ["marks_written", "marks_kept", "marks_not_found"].map(of);
    Some(match asked {
        0 => "marks     0 written: no label of a flow has a mark yet; `fenxi check` lists those \
            that have"
            .to_owned(),
        _ if written + kept == 0 && not_found > 0 => format!("marks     {}", nothing(not_found)),
        _ => connections_line("marks", [written, kept, not_found]),
    })
}

pub fn sentence(counts: &Counts) -> String {
    match counts.asked {
        0 => "marks: 0 written: no label of a flow has a mark; `fenxi check` lists those that have"
            .to_owned(),
        _ if is_nothing(counts) => format!("marks: {}", nothing(counts.not_found)),
        _ => connections_sentence("marks", counts),
    }
}

/// What is wrong where no connection was ever found; `None` as long as that may be chance.
pub fn fault(counts: &Counts) -> Option<String> {
    let is_certain = is_nothing(counts) && counts.not_found >= SUSPICIOUS;
    is_certain.then(|| nothing(counts.not_found))
}

fn is_nothing(counts: &Counts) -> bool {
    counts.written + counts.kept == 0 && counts.not_found > 0
}

fn nothing(not_found: u64) -> String {
    format!(
        "0 written: no connection was found for {} labels; is connection tracking on (conntrack \
         -C), and is mark.zone right? \
         fenxi check --deep looks",
        grouped(not_found)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(asked: u64, written: u64, not_found: u64) -> Sums {
        let rows = [
            ("marks_asked", asked),
            ("marks_written", written),
            ("marks_kept", 0),
            ("marks_not_found", not_found),
        ];
        rows.map(|(name, sum)| (name.to_owned(), sum)).into()
    }

    #[test]
    fn a_run_that_writes_nothing_says_why() {
        let said = |asked, written, not_found| line(&sums(asked, written, not_found)).unwrap();
        assert!(said(0, 0, 0).contains("0 written: no label of a flow has a mark yet"));
        assert!(said(512, 0, 512).contains("0 written: no connection was found for 512 labels"));
        assert!(
            said(513, 1, 512).ends_with("1 written, 0 kept as they were, 512 without a connection")
        );
        assert_eq!(line(&Sums::new()), None, "another mode");
    }

    #[test]
    fn a_few_labels_without_a_connection_are_no_fault() {
        let counts = |written, not_found| {
            let mut counts = Counts::none();
            (counts.asked, counts.written) = (written + not_found, written);
            counts.not_found = not_found;
            counts
        };
        assert_eq!(fault(&counts(0, SUSPICIOUS - 1)), None);
        assert_eq!(fault(&counts(1, 1000)), None);
        assert!(fault(&counts(0, SUSPICIOUS)).unwrap().contains("64 labels"));
        assert!(sentence(&counts(0, 3)).contains("no connection was found for 3 labels"));
    }
}
