//! What an interface, or the kernel for it, does to packets before they are seen here: merging
//! those that come in (GRO, LRO), and leaving it to the card to split and to sum up those that go
//! out (TSO, GSO, checksums). `fenxi check --deep` and the start of a run look at it.

use std::io;
use std::os::fd::AsFd;

use super::{AfPacketError, Interface, sys, system};

/// Commands of `SIOCETHTOOL` that yield one number, and a bit of the flags.
const GENERIC_SEGMENTATION: u32 = 0x23;
const GENERIC_RECEIVE: u32 = 0x2b;
const TCP_SEGMENTATION: u32 = 0x1e;
const FLAGS: u32 = 0x25;
const FLAG_LARGE_RECEIVE: u32 = 1 << 15;

/// Which offloads of an interface are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Generic receive offload: the kernel merges packets that come in.
    pub gro: bool,
    /// Large receive offload: the card merges them, for good.
    pub lro: bool,
    /// TCP segmentation offload: the card splits what goes out.
    pub tso: bool,
    /// Generic segmentation offload: the kernel splits it late.
    pub gso: bool,
}

impl Offloads {
    /// Asks an interface; needs no capability. What it cannot tell counts as off.
    ///
    /// # Errors
    /// There is no such interface, or it cannot be asked.
    pub fn of(interface: &str) -> Result<Self, AfPacketError> {
        let asked = Interface::open(interface)?;
        let ask = |command| match sys::ethtool(asked.query.as_fd(), interface, command) {
            Ok(value) => Ok(value),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
            Err(error) => Err(error),
        };
        let all = || -> io::Result<Self> {
            Ok(Self {
                gro: ask(GENERIC_RECEIVE)? != 0,
                lro: ask(FLAGS)? & FLAG_LARGE_RECEIVE != 0,
                tso: ask(TCP_SEGMENTATION)? != 0,
                gso: ask(GENERIC_SEGMENTATION)? != 0,
            })
        };
        all().map_err(system(interface, "its offloads cannot be asked for"))
    }

    /// The line that turns off what is on; `None` if nothing is.
    pub fn remedy(&self, interface: &str) -> Option<String> {
        let all = [
            ("gro", self.gro),
            ("lro", self.lro),
            ("tso", self.tso),
            ("gso", self.gso),
        ];
        let on: Vec<_> = all
            .iter()
            .filter(|(_, is_on)| *is_on)
            .map(|(name, _)| format!("{name} off"))
            .collect();
        (!on.is_empty()).then(|| format!("ethtool -K {interface} {}", on.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_what_is_on() {
        assert_eq!(Offloads::default().remedy("eth0"), None);
        let some = Offloads {
            gro: true,
            tso: true,
            ..Offloads::default()
        };
        assert_eq!(
            some.remedy("eth0").as_deref(),
            Some("ethtool -K eth0 gro off tso off")
        );
    }
}
