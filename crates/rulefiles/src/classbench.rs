//! ClassBench filters: prefixes, port ranges, protocol with mask, TCP flags with mask.

use std::io::Read;

use policy::Ports;

use crate::draft::Draft;
use crate::error::Problem;
use crate::lines::{LineError, Lines};
use crate::values;

/// Reads rules; passes each to `add` with its line and whether it has TCP flags.
pub fn read<R: Read>(
    lines: &mut Lines<R>,
    mut add: impl FnMut(Draft, u32, bool) -> Result<(), Problem>,
) -> Result<(), LineError> {
    while let Some(line) = lines.next()? {
        let (draft, has_flags) = filter(line).map_err(LineError::Wrong)?;
        add(draft, lines.number(), has_flags).map_err(LineError::Wrong)?;
    }
    Ok(())
}

fn filter(line: &str) -> Result<(Draft, bool), Problem> {
    let wrong = |what: &str| Problem::NotClassBench(what.to_owned());
    let line = line.strip_prefix('@').ok_or_else(|| wrong("no @ at the beginning"))?;
    let mut words = line.split_ascii_whitespace();
    let mut next = |what| words.next().ok_or_else(|| wrong(what));
    let source = values::prefix("source", next("no source")?)?;
    let destination = values::prefix("destination", next("no destination")?)?;
    let mut range = |key| -> Result<Ports, Problem> {
        let (first, colon, last) = (next("no ports")?, next("no ports")?, next("no ports")?);
        if colon != ":" {
            return Err(wrong("ports without a colon"));
        }
        values::ports(key, &format!("{first}-{last}"))
    };
    let source_ports = range("source_port")?;
    let destination_ports = range("destination_port")?;
    let (number, mask) = hexadecimal_pair(next("no protocol")?)
        .ok_or_else(|| wrong("the protocol is no 0x11/0xFF"))?;
    let protocol = match (u8::try_from(number), mask) {
        (_, 0) => None,
        (Ok(number), 0xff) => Some(number),
        _ => return Err(wrong("the mask of the protocol is neither 0x00 nor 0xFF")),
    };
    let has_flags = match words.next().map(hexadecimal_pair) {
        None | Some(Some((_, 0))) => false,
        Some(Some(_)) => true,
        Some(None) => return Err(wrong("the flags are no 0x0000/0x0200")),
    };
    if words.next().is_some() {
        return Err(wrong("text behind the flags"));
    }
    let draft = Draft {
        source: Some(vec![source]),
        destination: Some(vec![destination]),
        source_ports: Some(vec![source_ports]),
        destination_ports: Some(vec![destination_ports]),
        protocol,
        ..Draft::default()
    };
    Ok((draft, has_flags))
}

/// `0x06/0xFF`.
fn hexadecimal_pair(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| {
        let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'))?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (value, mask) = text.split_once('/')?;
    Some((number(value)?, number(mask)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Prefix;

    #[test]
    fn a_filter_is_read() {
        let (draft, has_flags) =
            filter("@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 54\t0x11/0xFF\t0x0000/0x0200\t")
                .unwrap();
        assert_eq!(draft.source, Some(vec![Prefix::V4(0x0a00_0000, 8)]));
        assert_eq!(draft.destination_ports, Some(vec![Ports { first: 53, last: 54 }]));
        assert_eq!((draft.protocol, has_flags), (Some(17), true));
        let (draft, has_flags) =
            filter("@::/0 2001:db8::/32 0 : 65535 0 : 65535 0x00/0x00").unwrap();
        assert_eq!((draft.protocol, has_flags), (None, false));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for wrong in [
            "10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x11/0xFF",
            "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535",
            "@10.0.0.0/8 0.0.0.0/0 0 - 65535 0 : 65535 0x11/0xFF",
            "@10.0.0.0/8 0.0.0.0/0 0 : 65535 9 : 8 0x11/0xFF",
            "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x11/0xF0",
            "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 17",
            "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x11/0xFF 0x0/0x0 more",
            "@10.0.0.1/8 0.0.0.0/0 0 : 65535 0 : 65535 0x11/0xFF",
        ] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
    }
}
