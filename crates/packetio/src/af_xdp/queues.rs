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

/// The queues of a port, to be opened.
pub(super) struct Queues<'a> {
    pub settings: &'a PortSettings,
    pub interface: &'a Interface,
    pub place: &'a Place,
    pub area: &'a Area,
    /// As in [`Wanted`].
    pub waits: bool,
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

impl Queues<'_> {
    /// Attaches the program, unless another port has, and opens the socket of each queue.
    pub fn open(&self, shared: &Shared) -> Result<OpenQueues, OpenError> {
        let name = &self.interface.name;
        let mut bound = shared.lock();
        let attached = bound.attach(self.interface, self.settings.own.xdp.mode)?;
        check_merging(self.interface, attached)?;
        let (mut queues, mut sending, mut is_zero_copy) = (Vec::new(), None, true);
        for queue in self.place.own(count(name)?) {
            let halves = socket::open(&Wanted {
                interface: self.interface,
                queue,
                area: self.area,
                settings: self.settings,
                attached,
                receives: true,
                sends: self.settings.sends && sending.is_none(),
                waits: self.waits,
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
        let promiscuous = match self.settings.is_promiscuous {
            true => Some(self.interface.hold_promiscuous()?),
            false => None,
        };
        Ok(OpenQueues {
            queues,
            epoll,
            promiscuous,
            sending,
            effect: Effect { attached, is_zero_copy },
        })
    }
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
