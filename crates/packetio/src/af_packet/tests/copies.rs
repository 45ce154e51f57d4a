//! An interface that gets copies, while its link comes and goes.

use std::time::Duration;

use super::super::Copies;
use crate::error::OpenError;
use crate::rx::{LinkEvent, Rx};
use crate::tests::frames::{numbered, trace};
use crate::tests::netns::Netns;
use crate::tx::{Selection, Tx};

/// Longer than between two looks at a link.
const A_LOOK: Duration = Duration::from_millis(300);

/// Sends ten frames, of which every other one is marked.
fn copy(copies: &mut Copies) {
    let mut frames = trace(numbered(10));
    let burst = frames.receive(10).unwrap().burst().unwrap();
    let marks: Vec<bool> = (0..10).map(|i| i % 2 == 0).collect();
    copies.send(&burst, Selection::Marked(&marks)).unwrap();
}

#[test]
fn copies_for_a_link_that_is_away_are_lost_and_one_sender_says_so() {
    let test = "copies_for_a_link_that_is_away_are_lost_and_one_sender_says_so";
    let Some(netns) = Netns::with_pair(test) else {
        return;
    };
    netns.inside(|| {
        let mut senders = Copies::open("a0", 2).unwrap();
        assert_eq!(senders.len(), 2);
        let mut expected = (0, 0);
        let (down, gone) = (
            "a0: the interface is down, or has no carrier: copies of packets are lost",
            "a0: the interface is gone: copies of packets are lost",
        );
        for (line, is_away) in [
            ("true", None),
            ("ip link set a0 down", Some(down)),
            ("ip link set a0 up", None),
            ("ip link set b0 down", Some(down)),
            ("ip link set b0 up", None),
            ("ip link del a0", Some(gone)),
            (
                "ip link add a0 type veth peer name b0 && ip link set a0 up && ip link set b0 up",
                None,
            ),
        ] {
            netns.run(line);
            std::thread::sleep(A_LOOK);
            let mut events = Vec::new();
            for copies in &mut senders {
                copy(copies);
                events.extend(copies.link_event());
            }
            match is_away {
                Some(_) => expected.1 += 5,
                None => expected.0 += 5,
            }
            for copies in &senders {
                let counts = copies.counts();
                assert_eq!((counts.sent, counts.refused), expected, "{line}");
            }
            let event = match (is_away, line) {
                (Some(says), _) => vec![LinkEvent::Down(says.to_owned())],
                (None, "true") => vec![],
                (None, _) => {
                    let says = "a0: copies of packets are sent again";
                    vec![LinkEvent::Up(says.to_owned())]
                }
            };
            assert_eq!(events, event, "{line}");
        }
    });
}

#[test]
fn an_interface_for_copies_is_there_and_ethernet() {
    let Some(netns) = Netns::with_pair("an_interface_for_copies_is_there_and_ethernet") else {
        return;
    };
    netns.inside(|| {
        let error = Copies::open("a1", 1).unwrap_err();
        assert!(matches!(error, OpenError::NoSuchInterface { .. }), "{error}");
        netns.run("ip tuntap add dev t0 mode tun");
        let error = Copies::open("t0", 1).unwrap_err();
        assert!(matches!(error, OpenError::Unsuitable { .. }), "{error}");
    });
}
