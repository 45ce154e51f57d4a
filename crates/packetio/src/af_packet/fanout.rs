//! Several rings on one interface: both directions of a flow arrive in the same ring, also if they
//! arrive on two interfaces with the same number of rings.
//!
//! The kernel's symmetric hash (`PACKET_FANOUT_HASH`) does not suit: it hashes every IP fragment
//! without ports, so a first fragment, which counts for its flow, would go to another ring than the
//! rest of the flow. Reassembly before the hash (`FANOUT_FLAG_DEFRAG`) hands on packets that were
//! never on the wire. So a classic BPF program, for which `CAP_NET_RAW` suffices, computes the
//! hash:
//!
//! * IPv4 and IPv6 addresses, and the ports of TCP and UDP where the packet has them;
//! * addresses only of later fragments and other protocols;
//! * behind up to two VLAN tags left by the kernel, PPPoE, and up to three IPv6 extension headers;
//!   tags are not hashed;
//! * anything else, also MPLS, goes to the first ring.
//!
//! So later fragments may overtake the first one, as on any path that hashes by ports; IP allows
//! it. The kernel hands a frame to member `hash % members` in joining order, so rings join in
//! order.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use crate::sys::{self, Program};

/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`; set on the group instead of its sockets.
const IGNORE_OUTGOING: u32 = 0x4000;

/// The rings of one interface.
#[derive(Debug)]
pub(super) struct Group {
    pub rings: u32,
    ignores_outgoing: bool,
    is_ethernet: bool,
    joined: Mutex<Joined>,
}

/// Rings below `count` have joined. When the first one rejoins, the others follow.
#[derive(Debug, Default)]
struct Joined {
    id: u32,
    count: u32,
}

impl Group {
    pub fn new(rings: u32, ignores_outgoing: bool, is_ethernet: bool) -> Self {
        Self { rings, ignores_outgoing, is_ethernet, joined: Mutex::default() }
    }

    /// Takes ring `i` as a member that has joined already; `false` if it is in no group or another
    /// one.
    pub fn adopt(&self, i: u32, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let [group] = sys::option(socket, libc::PACKET_FANOUT)?;
        if self.rings == 1 {
            return Ok(group == 0);
        }
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        if i == 0 {
            joined.id = group & 0xffff;
        }
        joined.count = i + 1;
        Ok(group != 0 && group & 0xffff == joined.id)
    }

    /// Whether ring `i` may join now: the first always, the others after their predecessor.
    pub fn is_turn(&self, i: u32) -> bool {
        let joined = || self.joined.lock().unwrap_or_else(PoisonError::into_inner).count;
        i == 0 || joined() == i
    }

    /// Lets ring `i` join, whose turn it is.
    pub fn join(&self, i: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.rings == 1 {
            return Ok(());
        }
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let outgoing = if self.ignores_outgoing { IGNORE_OUTGOING } else { 0 };
        let kind = libc::PACKET_FANOUT_CBPF | outgoing;
        if i == 0 {
            let unique = kind | libc::PACKET_FANOUT_FLAG_UNIQUEID;
            sys::set_option(socket, libc::PACKET_FANOUT, &[unique << 16])?;
            let [id] = sys::option(socket, libc::PACKET_FANOUT)?;
            sys::set_fanout_program(socket, &program(self.is_ethernet))?;
            *joined = Joined { id: id & 0xffff, count: 1 };
        } else {
            sys::set_option(socket, libc::PACKET_FANOUT, &[kind << 16 | joined.id])?;
            joined.count += 1;
        }
        Ok(())
    }
}

/// A program that keeps `bytes` of every frame.
pub(super) fn keep(bytes: u32) -> Program {
    vec![instruction(RETURN, bytes)]
}

// Instructions (`Documentation/networking/filter.rst`). The accumulator is A, the index X.
const LOAD_WORD: u16 = 0x40; // A = word at X + k
const LOAD_HALF: u16 = 0x48;
const LOAD_BYTE: u16 = 0x50;
const LOAD_HALF_AT: u16 = 0x28; // A = half word at k
const LOAD: u16 = 0x60; // A = M[k]
const LOAD_INDEX: u16 = 0x61; // X = M[k]
const SET: u16 = 0x00; // A = k
const SET_INDEX: u16 = 0x01; // X = k
const STORE: u16 = 0x02; // M[k] = A
const STORE_INDEX: u16 = 0x03; // M[k] = X
const ADD: u16 = 0x04;
const ADD_INDEX: u16 = 0x0c;
const MULTIPLY: u16 = 0x24;
const AND: u16 = 0x54;
const SHIFT_LEFT: u16 = 0x64;
const SHIFT_RIGHT: u16 = 0x74;
const XOR_INDEX: u16 = 0xac;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15; // if A == k
const JUMP_ANY_BIT: u16 = 0x45; // if A & k != 0
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;
const TO_INDEX: u16 = 0x07; // X = A
const FROM_INDEX: u16 = 0x87; // A = X

/// Addresses of facts about the frame rather than its bytes: `SKF_AD_OFF` and an offset.
const FRAME_PROTOCOL: u32 = 0xffff_f000;
const FRAME_KIND: u32 = 0xffff_f004;
const KIND_OUTGOING: u32 = 4;

/// Contents of the scratch memory.
const ADDRESSES: u32 = 0; // their sum
const PORTS: u32 = 1; // their XOR, 0 without ports
const BASE: u32 = 2; // offset of the IP header
const KEPT: u32 = 3; // A while A is used otherwise

const TCP: u32 = 6;
const UDP: u32 = 17;
const FRAGMENT: u32 = 44;

/// A jump target.
#[derive(Clone, Copy, PartialEq)]
enum Label {
    Incoming,
    Tag(u8),
    Untagged(u8),
    Pppoe,
    V4,
    V4Ports,
    V6,
    Extension(u8),
    NoExtension(u8),
    V6Fragment,
    Ports,
    Hash,
}

#[derive(Default)]
struct Assembly {
    program: Program,
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
}

/// Computes a frame's hash. X is the offset of the headers still to be read: for an incoming frame
/// the kernel starts behind the Ethernet header, for an outgoing one before it. A load beyond the
/// frame ends the program with 0.
fn program(is_ethernet: bool) -> Program {
    let mut asm = Assembly::default();
    asm.add(SET, 0).add(STORE, PORTS).add(SET_INDEX, 0);
    if is_ethernet {
        asm.add(LOAD_HALF_AT, FRAME_KIND).jump_unless(KIND_OUTGOING, Label::Incoming);
        asm.add(SET_INDEX, 14).place(Label::Incoming);
    }
    asm.add(LOAD_HALF_AT, FRAME_PROTOCOL);
    for i in 0..2 {
        for protocol in [0x8100, 0x88a8, 0x9100] {
            asm.jump_if(protocol, Label::Tag(i));
        }
        asm.jump(Label::Untagged(i)).place(Label::Tag(i));
        asm.add(LOAD_HALF, 2).skip(4).place(Label::Untagged(i));
    }
    asm.jump_if(0x0800, Label::V4).jump_if(0x86dd, Label::V6);
    asm.jump_if(0x8864, Label::Pppoe).add(RETURN, 0);
    asm.place(Label::Pppoe).add(LOAD_HALF, 6).skip(8);
    asm.jump_if(0x0021, Label::V4).jump_if(0x0057, Label::V6).add(RETURN, 0);
    asm.v4();
    asm.v6();
    asm.place(Label::Ports).add(LOAD_HALF, 0).add(STORE, PORTS).add(LOAD_HALF, 2);
    asm.add(LOAD_INDEX, PORTS).add(XOR_INDEX, 0).add(STORE, PORTS);
    asm.place(Label::Hash).add(LOAD, PORTS).add(MULTIPLY, 0x9e37_79b1);
    asm.add(LOAD_INDEX, ADDRESSES).add(ADD_INDEX, 0).add(MULTIPLY, 0x85eb_ca6b);
    asm.add(STORE, KEPT)
        .add(LOAD_INDEX, KEPT)
        .add(SHIFT_RIGHT, 16)
        .add(XOR_INDEX, 0)
        .add(RETURN_A, 0);
    asm.finish()
}

impl Assembly {
    fn v4(&mut self) {
        self.place(Label::V4).sum(12, 2);
        self.add(LOAD_HALF, 6);
        self.jump_on(JUMP_ANY_BIT, 0x1fff, Label::Hash); // a later fragment
        self.add(LOAD_BYTE, 9).jump_to(Label::V4Ports);
        self.jump(Label::Hash).place(Label::V4Ports);
        self.add(LOAD_BYTE, 0).add(AND, 0x0f).add(SHIFT_LEFT, 2);
        self.add(ADD_INDEX, 0).add(TO_INDEX, 0).jump(Label::Ports);
    }

    fn v6(&mut self) {
        self.place(Label::V6).sum(8, 8);
        self.add(LOAD_BYTE, 6).skip(40);
        for i in 0..3 {
            self.jump_to(Label::Ports).jump_if(FRAGMENT, Label::V6Fragment);
            for extension in [0, 43, 60] {
                self.jump_if(extension, Label::Extension(i));
            }
            self.jump(Label::NoExtension(i)).place(Label::Extension(i));
            // Skip the extension header, whose first byte names the next one.
            self.add(LOAD_BYTE, 1)
                .add(ADD, 1)
                .add(SHIFT_LEFT, 3)
                .add(ADD_INDEX, 0)
                .add(STORE, BASE);
            self.add(LOAD_BYTE, 0).add(LOAD_INDEX, BASE).place(Label::NoExtension(i));
        }
        self.jump_to(Label::Ports).jump_if(FRAGMENT, Label::V6Fragment);
        self.jump(Label::Hash);
        self.place(Label::V6Fragment).add(LOAD_HALF, 2);
        self.jump_on(JUMP_ANY_BIT, 0xfff8, Label::Hash); // a later fragment
        self.add(LOAD_BYTE, 0).skip(8).jump_to(Label::Ports);
        self.jump(Label::Hash);
    }

    /// Sums `words` words from X + `offset` on: the addresses.
    fn sum(&mut self, offset: u32, words: u32) {
        self.add(STORE_INDEX, BASE).add(LOAD_WORD, offset).add(STORE, ADDRESSES);
        for i in 1..words {
            self.add(LOAD_WORD, offset + 4 * i).add(LOAD_INDEX, ADDRESSES).add(ADD_INDEX, 0);
            self.add(STORE, ADDRESSES).add(LOAD_INDEX, BASE);
        }
    }

    /// Advances X, keeps A.
    fn skip(&mut self, bytes: u32) -> &mut Self {
        self.add(STORE, KEPT).add(FROM_INDEX, 0).add(ADD, bytes).add(TO_INDEX, 0).add(LOAD, KEPT)
    }

    fn add(&mut self, code: u16, k: u32) -> &mut Self {
        self.program.push(instruction(code, k));
        self
    }

    fn jump_on(&mut self, code: u16, k: u32, to: Label) -> &mut Self {
        self.jumps.push((self.program.len(), to));
        self.add(code, k)
    }

    fn jump_if(&mut self, k: u32, to: Label) -> &mut Self {
        self.jump_on(JUMP_EQUAL, k, to)
    }

    /// Jumps for protocols with ports.
    fn jump_to(&mut self, ports: Label) -> &mut Self {
        self.jump_if(TCP, ports).jump_if(UDP, ports)
    }

    fn jump_unless(&mut self, k: u32, to: Label) -> &mut Self {
        let over = libc::sock_filter { jt: 1, ..instruction(JUMP_EQUAL, k) };
        self.program.push(over);
        self.jump(to)
    }

    fn jump(&mut self, to: Label) -> &mut Self {
        self.jump_on(JUMP, 0, to)
    }

    fn place(&mut self, label: Label) -> &mut Self {
        self.places.push((label, self.program.len()));
        self
    }

    /// Resolves the jumps, all of which go forward.
    fn finish(mut self) -> Program {
        for (from, label) in self.jumps {
            let place = self.places.iter().find(|(known, _)| *known == label);
            let distance = place.map_or(0, |&(_, to)| to - from - 1);
            let jump = &mut self.program[from];
            match jump.code {
                JUMP => jump.k = distance as u32,
                _ => jump.jt = distance as u8,
            }
        }
        self.program
    }
}

fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

#[cfg(test)]
#[path = "fanout_tests.rs"]
mod tests;
