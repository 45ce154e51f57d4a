//! What becomes of a port when its interface changes.

use super::super::reader::RingReader;
use super::super::transmit::Transmit;
use super::frames::{all, send};
use super::{assert_spread, config, one_of_several, rings_of_flows, sender};
use crate::error::{InterfaceErrorKind, OpenError, TxError};
use crate::rx::Rx;
use crate::settings::PortSettings;
use crate::tests::frames::{flows, numbered, trace};
use crate::tests::netns::Netns;
use crate::tx::Selection;

/// The next error of a port, within a bounded number of calls.
fn next_error(port: &mut RingReader) -> InterfaceErrorKind {
    for _ in 0..1000 {
        match port.receive(8) {
            Ok(_) => {}
            Err(error) => return error.kind,
        }
    }
    panic!("no error");
}

/// Sends one burst of 100 frames.
fn try_send(transmit: &mut Transmit) -> Result<(), TxError> {
    let mut frames = trace(numbered(100));
    let burst = frames.receive(100).unwrap().burst().unwrap();
    transmit.send(&burst, Selection::All)
}

#[test]
fn a_port_goes_on_when_its_interface_is_up_again() {
    let Some(netns) = Netns::with_pair("a_port_goes_on_when_its_interface_is_up_again") else {
        return;
    };
    netns.inside(|| {
        let mut ports = RingReader::open_rings(&one_of_several(), 3).unwrap();
        let mut transmit = sender("b0");
        send(&mut sender("a0"), flows(false));
        let before = rings_of_flows(&mut ports);
        assert_spread(&before, 3);

        netns.run("ip link set b0 down");
        for port in &mut ports {
            assert!(matches!(next_error(port), InterfaceErrorKind::Down));
            assert_eq!(all(port).len(), 0); // said once
        }
        let error = try_send(&mut transmit).unwrap_err();
        assert_eq!(
            error.to_string(),
            "b0: the interface is down; work on it goes on when it is up"
        );
        assert!(error.kind.is_recoverable());
        assert!(try_send(&mut transmit).is_ok());
        assert_eq!(transmit.counts.refused, 200);

        netns.set_up("ip link set b0 up");
        send(&mut sender("a0"), flows(false));
        assert_eq!(rings_of_flows(&mut ports), before); // the rings are in their order again
        assert!(try_send(&mut transmit).is_ok());
        assert_eq!((transmit.counts.sent, transmit.counts.refused), (100, 200));
    });
}

#[test]
fn an_interface_that_is_down_can_be_opened() {
    let Some(netns) = Netns::with_pair("an_interface_that_is_down_can_be_opened") else {
        return;
    };
    netns.run("ip link set b0 down");
    netns.inside(|| {
        let mut port = RingReader::open(&config()).unwrap();
        assert_eq!(all(&mut port).len(), 0);
        netns.set_up("ip link set b0 up");
        send(&mut sender("a0"), numbered(3));
        assert_eq!(all(&mut port).len(), 3);
        netns.run("ip link set b0 down");
        assert!(matches!(next_error(&mut port), InterfaceErrorKind::Down));
    });
}

#[test]
fn a_deleted_interface_can_be_reopened() {
    let Some(netns) = Netns::with_pair("a_deleted_interface_can_be_reopened") else {
        return;
    };
    netns.inside(|| {
        let mut ports = RingReader::open_rings(&one_of_several(), 2).unwrap();
        let mut transmit = sender("b0");
        send(&mut sender("a0"), flows(false));
        let before = rings_of_flows(&mut ports);

        netns.run("ip link del b0");
        for port in &mut ports {
            // It may be seen going down first.
            if matches!(next_error(port), InterfaceErrorKind::Down) {
                assert!(matches!(next_error(port), InterfaceErrorKind::Gone));
            }
            assert!(matches!(next_error(port), InterfaceErrorKind::Gone)); // said again
            let error = port.reopen().unwrap_err();
            assert!(matches!(error, OpenError::NoSuchInterface { .. }), "{error}");
        }
        let error = try_send(&mut transmit).unwrap_err();
        assert!(matches!(error.kind, InterfaceErrorKind::Gone) && error.kind.is_recoverable());
        assert!(transmit.reopen().is_err());

        netns.add_pair();
        assert!(!ports[1].reopen().unwrap()); // the first ring comes first
        assert!(ports[0].reopen().unwrap());
        assert!(ports[1].reopen().unwrap());
        send(&mut sender("a0"), flows(false));
        assert_eq!(rings_of_flows(&mut ports), before);
        let counts = ports.iter_mut().map(|port| port.counts());
        assert_eq!(counts.map(|counts| counts.received).sum::<u64>(), 3600); // they count on
        transmit.reopen().unwrap();
        assert!(try_send(&mut transmit).is_ok());
        assert_eq!((transmit.counts.sent, transmit.counts.refused), (100, 100));
    });
}

#[test]
fn the_mtu_may_change() {
    let Some(netns) = Netns::with_pair("the_mtu_may_change") else {
        return;
    };
    let jumbo = |length: usize| {
        let mut frame = numbered(1).remove(0);
        frame.resize(length, 9);
        frame
    };
    netns.inside(|| {
        let mut port = RingReader::open(&config()).unwrap();
        let mut transmit = sender("a0");
        send(&mut transmit, [jumbo(1514), jumbo(1515), jumbo(9014), jumbo(60)]);
        assert_eq!((transmit.counts.sent, transmit.counts.too_long), (2, 2));
        assert_eq!(all(&mut port), [jumbo(1514), jumbo(60)]);

        netns.run("ip link set a0 mtu 9000 && ip link set b0 mtu 9000");
        port.counts();
        send(&mut transmit, [jumbo(9014), jumbo(9015), jumbo(61)]);
        assert_eq!((transmit.counts.sent, transmit.counts.too_long), (4, 3));
        assert_eq!(all(&mut port), [jumbo(9014), jumbo(61)]);
        assert_eq!(port.counts().merged, 0);
    });
}

#[test]
fn a_cut_frame_is_not_sent() {
    let Some(netns) = Netns::with_pair("a_cut_frame_is_not_sent") else {
        return;
    };
    netns.inside(|| {
        let mut near = RingReader::open(&PortSettings { snap_length: 100, ..config() }).unwrap();
        send(&mut sender("a0"), numbered(50));
        let mut transmit = sender("b0");
        let mut frames = 0;
        while frames < 50 {
            let burst = near.receive(64).unwrap();
            frames += burst.len();
            transmit.send(&burst, Selection::All).unwrap();
        }
        let counts = transmit.counts;
        let whole = numbered(50).iter().filter(|frame| frame.len() <= 100).count() as u64;
        assert_eq!((counts.sent, counts.cut), (whole, 50 - whole));
    });
}
