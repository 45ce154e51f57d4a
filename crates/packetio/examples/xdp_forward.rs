//! A bare forwarder over XDP sockets: what comes in on queue 0 of one of two interfaces leaves by
//! the other. It shares no code with the ports of this crate, so that `figures/live` can hold
//! them against it.
//!
//!     xdp_forward ONE OTHER

#![allow(clippy::expect_used, reason = "a program of the bench may end with a message of its own")]

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::time::Duration;

use aya::maps::XskMap;
use aya::programs::{Xdp, XdpMode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xdpilone::xdp::XdpDesc;
use xdpilone::{DeviceQueue, IfInfo, RingRx, RingTx, Socket, SocketConfig, Umem, UmemConfig};

const PROGRAM: &[u8] = aya::include_bytes_aligned!("../bpf/xdp.o");
/// As of fenxi: frames of each interface, bytes of each, frames in a burst, entries of a send ring,
/// bytes that wait to be sent, and frames sent in one call.
const FRAMES: u32 = 4096;
const FRAME_BYTES: u32 = 2048;
const BURST: u32 = 128;
const SEND_RING: u32 = 1024;
const SEND_BUFFER: u32 = 8 * 1024 * 1024;
const SEND_AT_ONCE: u32 = 256;
/// Of `linux/if_xdp.h`.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// Empty rounds before it sleeps, as in fenxi.
const ROUNDS_BEFORE_SLEEP: u32 = 1;
const SLEEP: Duration = Duration::from_millis(5);

#[repr(align(4096))]
struct Memory([u8; (2 * FRAMES * FRAME_BYTES) as usize]);

/// One interface. The programs are dropped, and so detached, with it.
struct Port {
    device: DeviceQueue,
    rx: RingRx,
    tx: RingTx,
    _program: aya::Ebpf,
}

fn open(umem: &Umem, name: &str, is_first: bool) -> Port {
    let name_c = std::ffi::CString::new(name).expect("a name has no NUL");
    let mut info = IfInfo::invalid();
    info.from_name(&name_c).expect("the interface is there");
    info.set_queue(0);
    let socket = match is_first {
        true => Socket::with_shared(&info, umem),
        false => Socket::new(&info),
    };
    let socket = socket.expect("a socket opens");
    let device = umem.fq_cq(&socket).expect("it has fill and completion rings");
    let config = SocketConfig {
        rx_size: NonZeroU32::new(FRAMES),
        tx_size: NonZeroU32::new(SEND_RING),
        // The second socket takes over the first one's.
        bind_flags: match is_first {
            true => SocketConfig::XDP_BIND_NEED_WAKEUP,
            false => 0,
        },
    };
    let user = umem.rx_tx(&socket, &config).expect("it has rings");
    let (rx, tx) = (user.map_rx().expect("it receives"), user.map_tx().expect("it sends"));
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER),
        (libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, SEND_AT_ONCE),
    ] {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of `value`, which has that many. If it refuses,
        // sending takes more calls.
        unsafe {
            libc::setsockopt(rx.as_raw_fd(), level, option, (&raw const value).cast(), length)
        };
    }
    umem.bind(&user).expect("it is bound");
    let mut program = aya::Ebpf::load(PROGRAM).expect("the program loads");
    let map = program.map_mut("sockets").expect("it has a map");
    let mut map = XskMap::try_from(map).expect("of sockets");
    map.set(0, rx.as_raw_fd(), 0).expect("it takes the socket");
    let xdp: &mut Xdp =
        program.program_mut("all").expect("it has a program").try_into().expect("of XDP");
    xdp.load().expect("the kernel takes it");
    xdp.attach(name, XdpMode::Driver).expect("so does the driver");
    Port { device, rx, tx, _program: program }
}

/// Sends what came on one port out of the other; how many frames.
fn forward(from: &mut Port, to: &mut Port) -> u32 {
    let mut descs = [XdpDesc { addr: 0, len: 0, options: 0 }; BURST as usize];
    let mut count = 0;
    {
        let mut received = from.rx.receive(BURST);
        while let Some(desc) = received.read() {
            descs[count] = desc;
            count += 1;
        }
        received.release();
    }
    // The library reserves what it knows to be free, which may be less than there is.
    let mut sent = 0;
    while sent < count {
        let mut sending = to.tx.transmit((count - sent) as u32);
        sent += sending.insert(descs[sent..count].iter().copied()) as usize;
        sending.commit();
    }
    // Each frame goes back to where it came from as soon as it was sent.
    while to.tx.pending() > 0 {
        to.tx.wake();
        give_back(from, to);
    }
    give_back(from, to);
    count as u32
}

fn give_back(from: &mut Port, to: &mut Port) {
    loop {
        let mut frames = [0; BURST as usize];
        let mut count = 0;
        {
            let mut done = to.device.complete(BURST);
            while let Some(address) = done.read() {
                frames[count] = address / u64::from(FRAME_BYTES) * u64::from(FRAME_BYTES);
                count += 1;
            }
            done.release();
        }
        if count == 0 {
            return;
        }
        let mut given = 0;
        while given < count {
            let mut fill = from.device.fill((count - given) as u32);
            given += fill.insert(frames[given..count].iter().copied()) as usize;
            fill.commit();
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [one, other] = arguments.as_slice() else {
        eprintln!("usage: xdp_forward ONE OTHER");
        std::process::exit(64);
    };
    let memory: Box<Memory> = bytes();
    let start = NonNull::from(&mut Box::leak(memory).0[..]);
    let config = UmemConfig {
        fill_size: FRAMES,
        complete_size: SEND_RING,
        frame_size: FRAME_BYTES,
        headroom: 0,
        flags: 0,
    };
    // SAFETY: the memory is aligned to a page, lives as long as the program, and nobody else
    // touches it.
    let umem = unsafe { Umem::new(config, start) }.expect("the memory can be registered");
    let mut one = open(&umem, one, true);
    let mut other = open(&umem, other, false);
    for (at, port) in [&mut one, &mut other].into_iter().enumerate() {
        let first = at as u64 * u64::from(FRAMES);
        let mut fill = port.device.fill(FRAMES);
        fill.insert((first..first + u64::from(FRAMES)).map(|frame| frame * u64::from(FRAME_BYTES)));
        fill.commit();
    }
    let mut idle = 0;
    loop {
        let count = forward(&mut one, &mut other) + forward(&mut other, &mut one);
        idle = if count == 0 { idle + 1 } else { 0 };
        if idle > ROUNDS_BEFORE_SLEEP {
            sleep(&one, &other);
        }
    }
}

/// Zeroed, on the heap: it is too large for the stack.
fn bytes() -> Box<Memory> {
    let memory = Box::<Memory>::new_zeroed();
    // SAFETY: zeros make bytes.
    unsafe { memory.assume_init() }
}

fn sleep(one: &Port, other: &Port) {
    // SAFETY: the rings, and with them their sockets, outlive the call.
    let fds = [&one.rx, &other.rx]
        .map(|rx| unsafe { std::os::fd::BorrowedFd::borrow_raw(rx.as_raw_fd()) });
    let timeout = Timespec::try_from(SLEEP).expect("5 ms are a time");
    let _ = poll(&mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)), Some(&timeout));
}
