//! Marks of connections on a router: three network namespaces, nftables and conntrack.

#[path = "../../../../../tests/common/lab.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod lab;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use aya::maps::Array;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Btf, Ebpf, EbpfLoader};

use super::*;
use crate::first::tests::rights::have;
use crate::tests::netns::skip;
use lab::Lab;

/// Built from `bpf/mark_test.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/mark_test.o");

const BITS: u32 = 0x0500_0000;
const MASK: u32 = 0xff00_0000;
const PORT: u16 = 7777;
const MESSAGES: usize = 5;
const HERE: [(&str, TcAttachType); 4] = [
    ("in", TcAttachType::Ingress),
    ("in", TcAttachType::Egress),
    ("out", TcAttachType::Ingress),
    ("out", TcAttachType::Egress),
];

/// A client, a router, and a server that echoes.
struct Network(Lab);

impl Network {
    fn new(test: &str) -> Option<Network> {
        if let Err(why) = marks_connections() {
            skip(test, &why.to_string());
            return None;
        }
        Lab::routed(test, false, &[]).map(Network)
    }

    /// Gives the router rules that count forwarded packets by their connection's mark, one more
    /// chain, and no connections.
    fn rules(&self, chain: Option<&str>) {
        let chain = chain.map_or(String::new(), |rules| format!("chain more {{\n{rules}\n}}"));
        let rules = format!(
            "flush ruleset
             table inet test {{
                 counter marked {{ }}
                 counter others {{ }}
                 chain forward {{
                     type filter hook forward priority filter; policy accept;
                     meta l4proto {{ tcp, udp }} jump count
                 }}
                 chain count {{
                     ct mark & {MASK} == {BITS} counter name marked return
                     counter name others
                 }}
                 {chain}
             }}"
        );
        self.0.nft("router", &rules);
        self.0.run("router", "conntrack -F");
    }

    /// Forwarded packets whose connection had the mark, and others.
    fn forwarded(&self) -> [u64; 2] {
        ["marked", "others"].map(|name| {
            let shown = self.0.run("router", &format!("nft list counter inet test {name}"));
            let mut words = shown.split_whitespace().skip_while(|word| *word != "packets");
            words.nth(1).unwrap().parse().unwrap()
        })
    }

    /// The mark of the only connection that is tracked.
    fn mark(&self) -> u32 {
        let shown = self.0.run("router", "conntrack -L");
        let marks = shown.split_whitespace().filter_map(|word| word.strip_prefix("mark="));
        let marks: Vec<u32> = marks.map(|mark| mark.parse().unwrap()).collect();
        let [mark] = marks[..] else { panic!("{shown}") };
        mark
    }

    /// Messages of a new flow to the server and back, one after the other.
    fn talk(&self, is_v6: bool, is_tcp: bool) {
        let to = SocketAddr::new(Lab::server(is_v6).parse().unwrap(), PORT);
        let from = SocketAddr::new(if is_v6 { "::" } else { "0.0.0.0" }.parse().unwrap(), 0);
        let within = Some(Duration::from_secs(5));
        if is_tcp {
            let server = self.0.on("server", || TcpListener::bind(to).unwrap());
            let echo = || {
                let (mut stream, _) = server.accept().unwrap();
                let mut message = [0; 4];
                while stream.read_exact(&mut message).is_ok() {
                    stream.write_all(&message).unwrap();
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(echo);
                let mut stream = self.0.on("client", || TcpStream::connect(to).unwrap());
                stream.set_read_timeout(within).unwrap();
                for _ in 0..MESSAGES {
                    stream.write_all(b"ping").unwrap();
                    stream.read_exact(&mut [0; 4]).unwrap();
                }
            });
        } else {
            let server = self.0.on("server", || UdpSocket::bind(to).unwrap());
            let host = self.0.on("client", || UdpSocket::bind(from).unwrap());
            for socket in [&server, &host] {
                socket.set_read_timeout(within).unwrap();
            }
            for _ in 0..MESSAGES {
                host.send_to(b"ping", to).unwrap();
                let (_, back) = server.recv_from(&mut [0; 4]).unwrap();
                server.send_to(b"ping", back).unwrap();
                host.recv_from(&mut [0; 4]).unwrap();
            }
        }
    }
}

/// How the program marks.
struct Marks {
    bits: u32,
    mask: u32,
    before: u32,
    overwrites: bool,
    /// Marks packets, and not their connections.
    of_packets: bool,
}

const MARKS: Marks =
    Marks { bits: BITS, mask: MASK, before: 0, overwrites: false, of_packets: false };

/// The object with its maps; with its calls as they are in the file, unless it `is_linked`.
fn load(marks: &Marks, is_linked: bool) -> Ebpf {
    let types = Btf::from_sys_fs().unwrap();
    let linked = if is_linked { link(OBJECT, Some(&types)).unwrap() } else { OBJECT.to_vec() };
    EbpfLoader::new()
        .btf(Some(&types))
        .override_global("marks_connections", &u32::from(is_linked), true)
        .override_global("bits", &marks.bits, true)
        .override_global("mask", &marks.mask, true)
        .override_global("before", &marks.before, true)
        .override_global("overwrites", &u32::from(marks.overwrites), true)
        .override_global("marks_packets", &u32::from(marks.of_packets), true)
        .load(if is_linked { &linked } else { OBJECT })
        .unwrap()
}

fn loaded<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
    program.load().map(|()| program)
}

/// The program at one place of the router. It leaves when dropped.
fn attach(network: &Network, marks: &Marks, (interface, direction): (&str, TcAttachType)) -> Ebpf {
    let name = if direction == TcAttachType::Ingress { "mark_in" } else { "mark_out" };
    network.0.on("router", || {
        let mut ebpf = load(marks, true);
        let program = loaded(&mut ebpf, name).unwrap();
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        program.attach_with_options(interface, direction, first).unwrap();
        ebpf
    })
}

/// Packets that found their connection marked or marked it, that left it another mark, and that
/// found none.
fn outcomes(ebpf: &Ebpf) -> [u64; 3] {
    let outcomes: Array<_, u64> = ebpf.map("outcomes").unwrap().try_into().unwrap();
    [0, 1, 2].map(|at| outcomes.get(&at, 0).unwrap())
}

#[test]
fn the_packet_that_is_marked_is_forwarded_with_its_mark() {
    let Some(network) = Network::new("the_packet_that_is_marked_is_forwarded_with_its_mark") else {
        return;
    };
    const NAT: &str = "type nat hook postrouting priority srcnat; oifname out masquerade random";
    for here in HERE {
        let program = attach(&network, &MARKS, here);
        let mut before = [0; 3];
        for nat in [None, Some(NAT)] {
            for (is_v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
                network.rules(nat);
                network.talk(is_v6, is_tcp);
                let case = format!("{here:?} {nat:?} {is_v6} {is_tcp}");
                let [marked, others] = network.forwarded();
                assert!(marked >= 2 * MESSAGES as u64 - 2, "{case}: {marked}");
                // Before the answer comes there is no connection at the inner interface, and at
                // the outer one none before the first packet leaves.
                assert_eq!(others, if here.0 == "in" { 2 } else { 1 }, "{case}");
                assert_eq!(network.mark(), BITS, "{case}");

                let after = outcomes(&program);
                let [marked, kept, none] = [0, 1, 2].map(|at| after[at] - before[at]);
                before = after;
                assert!(marked >= MESSAGES as u64 - 1, "{case}: {marked}");
                assert_eq!(kept, 0, "{case}");
                assert_eq!(none, u64::from(here == HERE[0]), "{case}");
            }
        }
    }
}

#[test]
fn marks_of_others_stay() {
    let Some(network) = Network::new("marks_of_others_stay") else {
        return;
    };
    // The mark that a rule sets, the bits of the label before, whether labels overwrite marks, the
    // mark in the end, and whether the first one was kept.
    let cases = [
        (0x0000_00ff, 0, false, BITS | 0xff, false),
        (0x0600_00ff, 0, false, 0x0600_00ff, true),
        (0x0600_00ff, 0, true, BITS | 0xff, false),
        (0x0600_00ff, 0x0600_0000, false, BITS | 0xff, false),
        (0x0600_00ff, 0x0700_0000, false, 0x0600_00ff, true),
        (BITS | 0xff, 0, false, BITS | 0xff, false),
    ];
    for (set, before, overwrites, expected, is_kept) in cases {
        let program = attach(&network, &Marks { before, overwrites, ..MARKS }, HERE[0]);
        network.rules(Some(&format!(
            "type filter hook prerouting priority mangle; ct state new ct mark set {set}"
        )));
        network.talk(false, false);
        assert_eq!(network.mark(), expected, "{set:#x}");
        let [marked, kept, none] = outcomes(&program);
        let (found, nothing) = (MESSAGES as u64 - 1, 0);
        let counts = if is_kept { [nothing, found] } else { [found, nothing] };
        assert_eq!(([marked, kept], none), (counts, 1), "{set:#x}");
    }
}

#[test]
fn a_rule_copies_the_mark_of_a_packet() {
    const RULES: &str = include_str!("../../../../../examples/kernel-mark/kernel-mark.nft");
    let Some(network) = Network::new("a_rule_copies_the_mark_of_a_packet") else {
        return;
    };
    let _program = attach(&network, &Marks { of_packets: true, ..MARKS }, HERE[0]);
    for (foreign, is_kept) in [(0x0000_00ff, false), (0x0600_00ff, true)] {
        network.rules(Some(&format!(
            "type filter hook prerouting priority mangle - 20; ct state new ct mark set {foreign}"
        )));
        network.0.nft("router", RULES);
        network.talk(false, false);
        // From the first packet on.
        let all = 2 * MESSAGES as u64;
        assert_eq!(network.forwarded(), if is_kept { [0, all] } else { [all, 0] });
        assert_eq!(network.mark(), if is_kept { foreign } else { BITS | foreign });
    }
}

#[test]
fn connections_of_another_zone_are_not_found() {
    let Some(network) = Network::new("connections_of_another_zone_are_not_found") else {
        return;
    };
    let program = attach(&network, &MARKS, HERE[0]);
    network.rules(Some("type filter hook prerouting priority raw; ct zone set 5"));
    network.talk(false, false);
    assert_eq!(outcomes(&program), [0, 0, MESSAGES as u64]);
    assert_eq!(network.mark(), 0);
}

#[test]
fn a_program_whose_calls_are_not_linked_is_loaded_too() {
    let Some(lab) = Lab::new("a_program_whose_calls_are_not_linked_is_loaded_too", &["box"], &[])
    else {
        return;
    };
    lab.on("box", || {
        let mut ebpf = load(&MARKS, false);
        loaded(&mut ebpf, "mark_in").unwrap();
    });
}

#[test]
fn connections_need_a_capability() {
    if !capabilities(None).unwrap().permitted.contains(CapabilitySet::PERFMON) {
        skip("connections_need_a_capability", "root");
        return;
    }
    let all = CapabilitySet::all() - CapabilitySet::SYS_ADMIN;
    let said = |effective| {
        let asked = std::thread::spawn(move || {
            have(effective);
            marks_connections().map_err(|error| error.to_string())
        });
        asked.join().unwrap()
    };
    let why = said(all - CapabilitySet::PERFMON).unwrap_err();
    assert!(why.contains("CAP_PERFMON"), "{why}");
    assert!(!said(all).is_err_and(|why| why.contains("CAP_PERFMON")));
}

#[test]
fn a_call_is_linked_by_its_number_among_the_kernels_types() {
    if let Err(why) = marks_connections() {
        skip("a_call_is_linked_by_its_number_among_the_kernels_types", &why.to_string());
        return;
    }
    let types = Btf::from_sys_fs().unwrap();
    let object = [call(HELPER, 1), call(HELPER, FUNCTIONS[0].0), call(HELPER, FUNCTIONS[1].0)];
    let linked = link(object.as_flattened(), Some(&types)).unwrap();
    let id = |at: usize| types.id_by_type_name_kind(FUNCTIONS[at].1, BtfKind::Func).unwrap();
    assert_eq!(linked, [call(HELPER, 1), call(KFUNC, id(0)), call(KFUNC, id(1))].as_flattened());
    assert!(link(OBJECT, None).unwrap_err().to_string().contains("CONFIG_DEBUG_INFO_BTF"));
}
