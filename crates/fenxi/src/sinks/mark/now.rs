//! What the kernel has of a flow's connection now, beside what was written: why a mark did not
//! stick, for `fenxi ctl explain`.

use std::fs;
use std::io;

use netfilter::conntrack::{Connection, Path};
use policy::Mark;

use crate::protocol::Written;

/// Connections in the network namespace of the calling thread.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// The connection as it was `found`, against the marks that were written and are remembered.
pub fn connection(found: io::Result<Option<Connection>>, written: &[Mark]) -> Written {
    let (value, outcome) = match found {
        Ok(Some(connection)) => {
            let value = format!("mark {:#x}", connection.mark);
            (value, format!("{}{}", mark(connection.mark, written), path(connection.path())))
        }
        Ok(None) => {
            let tracks_none = fs::read_to_string(COUNT).is_ok_and(|count| count.trim() == "0");
            let why = match tracks_none {
                true => {
                    "there is none, nor any other: the kernel tracks connections only while a rule \
                     needs it (NAT, or ct)"
                }
                false => {
                    "there is none now: it is over, a rule says notrack, or it is in another zone \
                     than mark.zone"
                }
            };
            (String::new(), why.to_owned())
        }
        Err(error) => (String::new(), format!("cannot be read: {error}")),
    };
    Written { what: "connection now".to_owned(), value, outcome, at: None }
}

fn mark(now: u32, written: &[Mark]) -> String {
    let lost = written.iter().find(|mark| now & mark.mask != mark.bits);
    let Some(Mark { bits, mask }) = lost else {
        return match written {
            [] => "fenxi remembers no mark that it wrote".to_owned(),
            _ => "the bits are as fenxi wrote them; rules see them as ct mark, and as meta mark \
                  only behind a rule that copies them"
                .to_owned(),
        };
    };
    let how = match now & mask {
        0 => "cleared",
        _ => "overwritten",
    };
    format!(
        "fenxi wrote {bits:#x}/{mask:#x}, and another program has {how} these bits: a rule that \
         sets the whole mark, or another writer of connections; `fenxi check --deep` names rules, \
         which should keep them: ct mark set ct mark and {mask:#x} or ..."
    )
}

fn path(path: Path) -> &'static str {
    match path {
        Path::Rules => "",
        Path::Flowtable => {
            "; it is in a flowtable, so its packets bypass chains of nftables behind ingress; tc \
             sees them"
        }
        Path::Card => "; a network card forwards its packets, so neither nftables nor tc sees them",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_a_mark_away_is_told() {
        let written =
            [Mark { bits: 0x0500_0000, mask: 0xff00_0000 }, Mark { bits: 0x10, mask: 0xf0 }];
        assert!(mark(0x0500_0f1f, &written).starts_with("the bits are as fenxi wrote them"));
        for (now, said) in [
            (0x0000_0010, "fenxi wrote 0x5000000/0xff000000, and another program has cleared "),
            (0x0700_0010, "fenxi wrote 0x5000000/0xff000000, and another program has overwritten "),
            (0x0500_0000, "fenxi wrote 0x10/0xf0, and another program has cleared "),
        ] {
            assert!(mark(now, &written).starts_with(said), "{}", mark(now, &written));
        }
        assert_eq!(mark(7, &[]), "fenxi remembers no mark that it wrote");
        let refused = connection(Err(io::Error::other("no answer")), &written);
        assert_eq!(refused.outcome, "cannot be read: no answer");
    }
}
