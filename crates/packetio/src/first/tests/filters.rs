//! Filters of clsact, as where the kernel has no TCX.

use std::net::UdpSocket;

use aya::programs::loaded_programs;

use super::packets::{udp, v4};
use super::{SOON, Wire, first, settings, until};
use crate::first::program::{Loaded, load};
use crate::interface::Interface;
use crate::settings::FirstPackets;
use crate::tests::netns::{Netns, skip};

/// A namespace whose interfaces take filters; `None`, said on the terminal, where there is none.
fn namespace(test: &str) -> Option<Netns> {
    let netns = Netns::with_pair(test)?;
    match netns.inside(|| aya::programs::tc::qdisc_add_clsact("b0")) {
        Ok(()) => Some(netns),
        Err(error) => {
            skip(test, &format!("clsact ({error})"));
            None
        }
    }
}

fn attached(first: &FirstPackets) -> Loaded {
    let (settings, interface) = (settings(first.clone()), Interface::open("b0").unwrap());
    let mut loaded = load(&settings, first, &interface, 1).unwrap();
    loaded.program.attach_filter(0, "fenxi_first", &interface).unwrap();
    loaded
}

/// Filters at the way in, as `tc` lists them.
fn filters(netns: &Netns) -> usize {
    netns.run("tc filter show dev b0 ingress").matches("fenxi_filter direct-action").count()
}

fn has_seen(loaded: &Loaded, packets: u64) -> bool {
    let counters = loaded.program.counters(0);
    counters.sent + counters.counted == packets
}

#[test]
fn a_filter_calls_the_program_as_long_as_a_port_is_open() {
    let Some(netns) = namespace("a_filter_calls_the_program_as_long_as_a_port_is_open") else {
        return;
    };
    netns.inside(|| {
        let (one, other) = (attached(&first(2)), attached(&first(2)));
        assert_eq!(filters(&netns), 2, "one leaves the filters of others");
        let wire = Wire::new("a0");
        (0..5).for_each(|_| wire.send(&udp(v4(1, 7), v4(2, 9), 10).bytes()));
        until(|| has_seen(&one, 5) && has_seen(&other, 5));
        assert_eq!(one.program.counters(0).sent, 2);
        drop(one);
        assert_eq!(filters(&netns), 1);
        wire.send(&udp(v4(1, 7), v4(2, 9), 10).bytes());
        until(|| has_seen(&other, 6));
        drop(other);
        assert_eq!(filters(&netns), 0);
    });
}

#[test]
fn of_a_process_that_was_killed_a_filter_stays_that_lets_packets_pass() {
    let test = "of_a_process_that_was_killed_a_filter_stays_that_lets_packets_pass";
    let Some(netns) = namespace(test) else {
        return;
    };
    netns.run("ip link set b0 address 02:00:00:00:00:02 && ip address add 10.0.0.2/24 dev b0");
    netns.inside(|| {
        let socket = UdpSocket::bind("10.0.0.2:9").unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let Loaded { program, rings, table } = attached(&first(2));
        let id = program.id();
        let is_loaded = || loaded_programs().flatten().any(|it| it.id() == id);
        assert!(is_loaded());
        program.leave_filters();
        drop((rings, table));
        until(|| !is_loaded());
        assert_eq!(filters(&netns), 1);
        Wire::new("a0").send(&udp(v4(1, 7), v4(2, 9), 10).bytes());
        assert_eq!(socket.recv(&mut [0; 64]).unwrap(), 10);
        let next = attached(&first(2));
        assert_eq!(filters(&netns), 1, "the next one removes it");
        drop(next);
        assert_eq!(filters(&netns), 0);
    });
}
