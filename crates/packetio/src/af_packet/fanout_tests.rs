//! The program, run by an interpreter: both directions alike, flows apart.

use super::*;
use proptest::prelude::*;

/// Runs a program as the kernel does; a load beyond `frame` yields 0.
fn run(program: &Program, protocol: u16, kind: u8, frame: &[u8]) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
    loop {
        let it = program[at];
        at += 1;
        let number = |offset: u32, bytes: usize| {
            let offset = offset as usize;
            let bytes = frame.get(offset..offset + bytes)?;
            Some(bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
        };
        let loaded = match it.code {
            LOAD_WORD => number(x + it.k, 4),
            LOAD_HALF => number(x + it.k, 2),
            LOAD_BYTE => number(x + it.k, 1),
            LOAD_HALF_AT if it.k == FRAME_PROTOCOL => Some(u32::from(protocol)),
            LOAD_HALF_AT => Some(u32::from(kind)),
            LOAD => Some(memory[it.k as usize]),
            SET => Some(it.k),
            ADD => Some(a.wrapping_add(it.k)),
            ADD_INDEX => Some(a.wrapping_add(x)),
            MULTIPLY => Some(a.wrapping_mul(it.k)),
            AND => Some(a & it.k),
            SHIFT_LEFT => Some(a << it.k),
            SHIFT_RIGHT => Some(a >> it.k),
            XOR_INDEX => Some(a ^ x),
            FROM_INDEX => Some(x),
            _ => Some(a),
        };
        let Some(loaded) = loaded else { return 0 };
        a = loaded;
        match it.code {
            LOAD_INDEX => x = memory[it.k as usize],
            SET_INDEX => x = it.k,
            STORE => memory[it.k as usize] = a,
            STORE_INDEX => memory[it.k as usize] = x,
            TO_INDEX => x = a,
            JUMP => at += it.k as usize,
            JUMP_EQUAL => at += usize::from(if a == it.k { it.jt } else { it.jf }),
            JUMP_ANY_BIT => at += usize::from(if a & it.k != 0 { it.jt } else { it.jf }),
            RETURN => return it.k,
            RETURN_A => return a,
            _ => {}
        }
    }
}

/// One end of a flow, and how its packets are wrapped.
#[derive(Clone, Copy, Debug)]
struct End {
    address: [u8; 16],
    port: u16,
}

#[derive(Clone, Copy, Debug)]
enum Fragment {
    Whole,
    First,
    Later,
}

fn v4(from: End, to: End, fragment: Fragment, options: usize) -> Vec<u8> {
    let field: u16 = match fragment {
        Fragment::Whole => 0x4000,
        Fragment::First => 0x2000,
        Fragment::Later => 0x00b9,
    };
    let mut packet = vec![0x45 + options as u8, 0, 0, 0, 0, 0];
    packet.extend(field.to_be_bytes());
    packet.extend([64, 17, 0, 0]);
    packet.extend(&from.address[..4]);
    packet.extend(&to.address[..4]);
    packet.extend(vec![1; 4 * options]);
    ports(&mut packet, from, to);
    packet
}

fn v6(from: End, to: End, fragment: Fragment, hop_by_hop: bool) -> Vec<u8> {
    let mut headers = Vec::new();
    if hop_by_hop {
        headers.push((0, vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }
    match fragment {
        Fragment::Whole => {}
        Fragment::First => headers.push((44, vec![0, 0, 0, 1, 0, 0, 0, 9])),
        Fragment::Later => headers.push((44, vec![0, 0, 5, 0x28, 0, 0, 0, 9])),
    }
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
    packet.extend(from.address);
    packet.extend(to.address);
    let mut next = 6;
    for (kind, header) in headers {
        packet[next] = kind;
        next = packet.len();
        packet.extend(header);
        packet[next] = 17;
    }
    ports(&mut packet, from, to);
    packet
}

fn ports(packet: &mut Vec<u8>, from: End, to: End) {
    packet.extend(from.port.to_be_bytes());
    packet.extend(to.port.to_be_bytes());
    packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
}

/// The packet behind `tags` tags: what the kernel says is its protocol, and its bytes.
fn tagged(protocol: u16, packet: Vec<u8>, tags: usize) -> (u16, Vec<u8>) {
    (0..tags).fold((protocol, packet), |(protocol, packet), i| {
        let mut bytes = vec![0, i as u8 + 1];
        bytes.extend(protocol.to_be_bytes());
        bytes.extend(packet);
        (0x8100, bytes)
    })
}

fn end() -> impl Strategy<Value = End> {
    any::<([u8; 16], u16)>().prop_map(|(address, port)| End { address, port })
}

fn fragment() -> impl Strategy<Value = Fragment> {
    prop_oneof![Just(Fragment::Whole), Just(Fragment::First), Just(Fragment::Later)]
}

proptest! {
    #[test]
    fn both_directions_and_first_fragments_have_one_hash(
        (a, b) in (end(), end()),
        (is_v6, tags, back_tags, extra) in (any::<bool>(), 0_usize..3, 0_usize..3, 0_usize..3),
        fragment in fragment(),
    ) {
        let asm = program(true);
        let hash = |from, to, fragment, tags, extra: usize, kind| {
            let (protocol, packet) = match is_v6 {
                true => (0x86dd, v6(from, to, fragment, extra > 0)),
                false => (0x0800, v4(from, to, fragment, extra)),
            };
            let (protocol, mut packet) = tagged(protocol, packet, tags);
            if kind == 4 {
                packet.splice(0..0, [0; 14]);
            }
            run(&asm, protocol, kind, &packet)
        };
        let there = hash(a, b, fragment, tags, extra, 0);
        prop_assert_eq!(there, hash(b, a, fragment, back_tags, 0, 4));
        if !matches!(fragment, Fragment::Later) {
            prop_assert_eq!(there, hash(b, a, Fragment::Whole, tags, 1, 3));
        }
    }

    #[test]
    fn no_frame_stops_the_program(
        protocol: u16,
        kind in 0_u8..6,
        frame in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        for is_ethernet in [false, true] {
            run(&program(is_ethernet), protocol, kind, &frame);
        }
    }
}

#[test]
fn flows_of_two_hosts_are_spread() {
    let asm = program(true);
    let mut members = [0; 4];
    for port in 0..4000 {
        let (a, b) =
            (End { address: [10; 16], port: 32768 + port }, End { address: [20; 16], port: 443 });
        members[run(&asm, 0x0800, 0, &v4(a, b, Fragment::Whole, 0)) as usize % 4] += 1;
    }
    assert!(members.iter().all(|&count| (800..1200).contains(&count)), "{members:?}");
}

#[test]
fn jumps_fit_their_instructions() {
    let asm = program(true);
    for (from, it) in asm.iter().enumerate() {
        if matches!(it.code, JUMP_EQUAL | JUMP_ANY_BIT) {
            assert!(it.jt > 0, "instruction {from} jumps nowhere");
            assert!(from + 1 + usize::from(it.jt) < asm.len());
        }
    }
    assert!(asm.len() < 256, "a conditional jump could not reach its place");
}
