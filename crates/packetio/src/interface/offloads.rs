//! Changes to packets before a port sees them: an interface, or the kernel for it, merges incoming
//! packets (GRO, LRO), leaves splitting to the card (TSO) and strips VLAN tags.

use std::io;
use std::os::fd::AsFd;

use super::{Interface, system};
use crate::error::OpenError;
use crate::sys;

/// The name that `ethtool -K` uses, and the kernel features behind it.
const NAMES: [(&str, &[&str]); 10] = [
    ("gro", &["rx-gro"]),
    ("lro", &["rx-lro"]),
    ("rx-gro-hw", &["rx-gro-hw"]),
    ("rx-gro-list", &["rx-gro-list"]),
    ("rx-udp-gro-forwarding", &["rx-udp-gro-forwarding"]),
    ("tso", &["tx-tcp-segmentation", "tx-tcp6-segmentation"]),
    ("tx-udp-segmentation", &["tx-udp-segmentation"]),
    ("gso", &["tx-generic-segmentation"]),
    ("rxvlan", &["rx-vlan-hw-parse"]),
    ("rx-vlan-filter", &["rx-vlan-filter"]),
];

/// Offloads that merge incoming packets.
pub const MERGE_INCOMING: [&str; 5] =
    ["gro", "lro", "rx-gro-hw", "rx-gro-list", "rx-udp-gro-forwarding"];

/// Offloads that show a port outgoing packets before they are split. Not GSO: without TSO the
/// kernel splits merged packets before a port sees them.
pub const SPLIT_OUTGOING: [&str; 2] = ["tso", "tx-udp-segmentation"];

/// An offload that is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The name that `ethtool -K` uses.
    pub name: &'static str,
    /// Whether the driver does not allow turning it off.
    pub is_fixed: bool,
}

/// The offloads of an interface that are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    on: Vec<Offload>,
}

impl Offloads {
    /// Queries an interface; needs no capability. Unknown offloads count as off.
    ///
    /// # Errors
    /// There is no such interface, or it cannot be queried.
    pub fn query(interface: &str) -> Result<Self, OpenError> {
        let asked = Interface::open(interface)?;
        let socket = asked.query.as_fd();
        let ask = || -> io::Result<Self> {
            let names = sys::feature_names(socket, interface)?;
            Ok(Self::read(&names, &sys::features(socket, interface)?))
        };
        ask().map_err(system(interface, "its offloads cannot be queried"))
    }

    /// From the kernel's answers: a name per bit, and blocks of 32 bits as in `ethtool_gfeatures`.
    pub fn read(names: &[String], blocks: &[[u32; 4]]) -> Self {
        let bit = |name: &str| names.iter().position(|known| known == name);
        let state = |name: &str| {
            let bit = bit(name)?;
            let [available, _, active, never_changed] =
                blocks.get(bit / 32)?.map(|word| word >> (bit % 32) & 1 == 1);
            Some((active, !available || never_changed))
        };
        let known = NAMES.iter().filter_map(|(name, features)| {
            let mut on = features
                .iter()
                .filter_map(|name| state(name))
                .filter(|(is_on, _)| *is_on)
                .peekable();
            on.peek()?;
            let is_fixed = on.all(|(_, is_fixed)| is_fixed);
            Some(Offload { name, is_fixed })
        });
        Self { on: known.collect() }
    }

    /// The offloads in `names` that are on.
    pub fn on(&self, names: &[&str]) -> Vec<Offload> {
        let on = self.on.iter().filter(|offload| names.contains(&offload.name));
        on.copied().collect()
    }

    /// Whether an offload is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.on.iter().any(|offload| offload.name == name)
    }

    /// The command that turns off the offloads in `names`; `None` if none is on, or the driver does
    /// not allow it.
    pub fn remedy(&self, interface: &str, names: &[&str]) -> Option<String> {
        let on = self.on(names).into_iter().filter(|offload| !offload.is_fixed);
        let off: Vec<_> = on.map(|offload| format!("{} off", offload.name)).collect();
        (!off.is_empty()).then(|| format!("ethtool -K {interface} {}", off.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rx-gro` is bit 0, `rx-lro` bit 1, `rx-gro-hw` bit 33.
    fn read(available: u32, active: u32, never_changed: u32) -> Offloads {
        let mut names = vec!["rx-gro".to_owned(), "rx-lro".to_owned()];
        names.resize(33, "something-else".to_owned());
        names.push("rx-gro-hw".to_owned());
        Offloads::read(&names, &[[available, 0, active, never_changed], [0, 0, 0b10, 0]])
    }

    #[test]
    fn the_remedy_names_what_is_on_and_can_be_turned_off() {
        let names = &MERGE_INCOMING;
        let offloads = read(0b11, 0b01, 0);
        let fixed = Offload { name: "rx-gro-hw", is_fixed: true };
        let gro = Offload { name: "gro", is_fixed: false };
        assert_eq!(offloads.on(names), [gro, fixed]);
        assert_eq!(offloads.remedy("eth0", names).as_deref(), Some("ethtool -K eth0 gro off"));
        assert_eq!(
            read(0b11, 0b11, 0b10).remedy("eth0", names).as_deref(),
            Some("ethtool -K eth0 gro off")
        );
        assert_eq!(read(0b11, 0, 0).remedy("eth0", names), None);
        assert_eq!(Offloads::default().on(names), []);
    }

    #[test]
    fn an_answer_cut_short_is_off() {
        let names = ["rx-gro".to_owned()];
        assert!(!Offloads::read(&names, &[]).is_on("gro"));
    }
}
