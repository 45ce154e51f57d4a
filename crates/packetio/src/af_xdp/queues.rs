//! The queues of a port: attaches the program and opens their sockets.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;

use super::area::Area;
use super::check::{check_merging, count};
use super::place::Place;
use super::program::Attached;
use super::shared::Shared;
use super::socket::{self, Queue, Sending, Wanted};
use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::settings::PortSettings;

/// How the queues of a port are served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    pub attached: Attached,
    pub is_zero_copy: bool,
}

/// The queues of a port, open.
pub(super) struct OpenQueues {
    pub queues: Vec<Queue>,
    pub epoll: Option<OwnedFd>,
    pub promiscuous: Option<OwnedFd>,
    /// The sending half, on the first queue.
    pub sending: Option<Sending>,
    pub effect: Effect,
}

/// Attaches the program, unless another port has, and opens the socket of each queue. `waits` is as
/// in [`Wanted`].
pub(super) fn open(
    settings: &PortSettings,
    interface: &Interface,
    place: &Place,
    area: &Area,
    shared: &Shared,
    waits: bool,
) -> Result<OpenQueues, OpenError> {
    let name = &interface.name;
    let mut bound = shared.lock();
    let attached = bound.attach(interface, settings.own.xdp.mode)?;
    check_merging(interface, attached)?;
    let (mut queues, mut sending, mut is_zero_copy) = (Vec::new(), None, true);
    for queue in place.own(count(name)?) {
        let halves = socket::open(&Wanted {
            interface,
            queue,
            area,
            settings,
            attached,
            receives: true,
            sends: settings.sends && sending.is_none(),
            waits,
        })?;
        is_zero_copy &= halves.is_zero_copy;
        sending = sending.or(halves.sending);
        if let Some(opened) = halves.queue {
            bound.program.hand_over(name, queue, opened.socket.as_fd())?;
            queues.push(opened);
        }
    }
    let epoll = watch(&queues)
        .map_err(|error| system(name, "its sockets cannot be watched")(error.into()))?;
    let promiscuous = match settings.is_promiscuous {
        true => Some(interface.hold_promiscuous()?),
        false => None,
    };
    let effect = Effect { attached, is_zero_copy };
    Ok(OpenQueues { queues, epoll, promiscuous, sending, effect })
}

/// A descriptor that is readable if any of several sockets is; `None` for a single socket.
pub(super) fn watch(queues: &[Queue]) -> rustix::io::Result<Option<OwnedFd>> {
    if queues.len() < 2 {
        return Ok(None);
    }
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, queue) in (0..).zip(queues) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&watched, &queue.socket, data, epoll::EventFlags::IN)?;
    }
    Ok(Some(watched))
}
