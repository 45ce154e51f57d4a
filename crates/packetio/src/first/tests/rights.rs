//! Which capabilities the program needs.

use std::time::Instant;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::interfaces::{programs, settings_of};
use super::packets::{udp, v4};
use super::{SOON, Wire, namespace};
use crate::af_packet::AF_PACKET;
use crate::error::OpenError;
use crate::open::{open, probe};
use crate::settings::{Direction, PortSettings};

/// Leaves a thread these capabilities, for now.
pub fn have(effective: CapabilitySet) {
    let CapabilitySets { permitted, .. } = capabilities(None).unwrap();
    let sets = CapabilitySets {
        effective: effective & permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).unwrap();
}

/// Opens and probes; why it is refused.
fn refusal(settings: &PortSettings) -> String {
    let opened = open(&AF_PACKET, std::slice::from_ref(settings), 1);
    let errors = [opened.map(drop).unwrap_err(), probe(&AF_PACKET, settings).unwrap_err()];
    let [opened, probed] = errors.map(|error| {
        let OpenError::FirstPackets { interface, why } = &error else {
            panic!("{error}");
        };
        assert_eq!(interface, "b0");
        assert!(!error.to_string().contains('\n'));
        why.clone()
    });
    assert_eq!(named(&opened), named(&probed));
    opened
}

/// The capabilities that a line names.
fn named(line: &str) -> CapabilitySet {
    let names = line.split(|c: char| c != '_' && !c.is_ascii_uppercase());
    let names = names.filter_map(|name| name.strip_prefix("CAP_"));
    names.map(|name| CapabilitySet::from_name(name).unwrap()).collect()
}

#[test]
fn a_missing_capability_is_named() {
    let Some(netns) = namespace("first: a_missing_capability_is_named") else {
        return;
    };
    netns.inside(|| {
        let settings = settings_of("b0", Direction::Both);
        // What the kernel can is found out once in a process, and not by a thread that may not ask.
        probe(&AF_PACKET, &settings).unwrap();
        // CAP_SYS_ADMIN implies all of it.
        let all = CapabilitySet::all() - CapabilitySet::SYS_ADMIN;
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
        for missing in [CapabilitySet::BPF, CapabilitySet::NET_ADMIN, needed, all] {
            have(all - missing);
            let why = refusal(&settings);
            assert!(why.ends_with(" are needed"), "{why}");
            assert!(named(&why).contains(needed), "{why}");
        }
        have(CapabilitySet::all());
        assert_eq!(programs("b0"), [0, 0]);
        assert!(open(&AF_PACKET, &[settings], 1).is_ok());
    });
}

#[test]
fn the_capabilities_that_are_named_suffice() {
    let Some(netns) = namespace("the_capabilities_that_are_named_suffice") else {
        return;
    };
    netns.inside(|| {
        let wire = Wire::new("a0");
        let settings = settings_of("b0", Direction::Both);
        probe(&AF_PACKET, &settings).unwrap();
        have(CapabilitySet::empty());
        let named = named(&refusal(&settings));
        have(named);
        let ports = open(&AF_PACKET, &[settings], 1);
        let mut ports = ports.unwrap_or_else(|error| panic!("{named:?}: {error}")).remove(0);
        wire.send(&udp(v4(1, 7), v4(2, 9), 10).bytes());
        let began = Instant::now();
        while ports[0].rx.receive(8).unwrap().burst().is_none() {
            assert!(began.elapsed() < SOON);
        }
    });
}
