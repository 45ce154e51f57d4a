//! How ports are opened: whose memory lies where, and which queue belongs to which port.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::area::{Area, Region};
use super::check::{check, check_merging, check_settings, count, warnings};
use super::loans::Loans;
use super::program::{Attached, Program};
use super::receiver::{self, Receiver, watch};
use super::sender::{self, Lender, OWN_FRAMES, Sender};
use super::shared::{Partner, Shared};
use super::socket::{self, Queue, Sending, Wanted};
use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::open::Opened;
use crate::settings::{PortSettings, XdpMode};
use crate::sys;
use crate::tx::Tx;

/// Which queues of an interface are a port's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the port among those of its interface.
    pub number: u32,
    /// Ports of the interface.
    pub rings: u32,
    /// Queues that the port has memory for.
    pub queues: u32,
}

impl Place {
    /// Of one of `rings` ports of an interface with so many queues: every `rings`-th is its own.
    pub fn new(number: u32, rings: u32, queues: u32) -> Place {
        let own = (queues + rings - 1 - number) / rings;
        Place {
            number,
            rings,
            queues: own,
        }
    }

    /// Its queues, out of those that there are.
    fn own(&self, queues: u32) -> impl Iterator<Item = u32> + use<> {
        (self.number..queues).step_by(self.rings as usize)
    }

    /// Whether it is the port that reports for its interface.
    pub fn reports(&self) -> bool {
        self.number == 0
    }
}

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
    /// As for a socket.
    pub waits: bool,
}

/// The queues of a port, open.
pub(super) struct OpenQueues {
    pub queues: Vec<Queue>,
    pub epoll: Option<OwnedFd>,
    pub promiscuous: Option<OwnedFd>,
    /// The sending half, of the first queue.
    pub sending: Option<Sending>,
    pub effect: Effect,
}

impl Queues<'_> {
    /// Attaches the program, unless another port has done so, and opens the socket of each queue.
    pub fn open(&self, shared: &Shared) -> Result<OpenQueues, OpenError> {
        let name = &self.interface.name;
        let mut bound = shared.lock();
        let attached = bound.attach(self.interface, self.settings.xdp.mode)?;
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
                bound
                    .program
                    .hand_over(name, queue, opened.socket.as_fd())?;
                queues.push(opened);
            }
        }
        let epoll = watch(&queues)
            .map_err(|error| system(name, "its sockets cannot be watched")(error.into()))?;
        let promiscuous = match self.settings.is_promiscuous {
            true => Some(promiscuous(self.interface)?),
            false => None,
        };
        Ok(OpenQueues {
            queues,
            epoll,
            promiscuous,
            sending,
            effect: Effect {
                attached,
                is_zero_copy,
            },
        })
    }
}

/// A packet socket that receives nothing and keeps the interface promiscuous, however the process ends.
fn promiscuous(interface: &Interface) -> Result<OwnedFd, OpenError> {
    let refused = system(&interface.name, "the promiscuous mode is refused");
    let socket = sys::packet_socket().map_err(&refused)?;
    sys::be_promiscuous(socket.as_fd(), interface.index).map_err(&refused)?;
    Ok(socket)
}

/// An interface that was checked, with its program.
struct Checked {
    settings: PortSettings,
    queues: u32,
    shared: Arc<Shared>,
}

fn check_all(interfaces: &[PortSettings], rings: u32) -> Result<Vec<Checked>, OpenError> {
    let checked = interfaces.iter().map(|settings| {
        check_settings(settings)?;
        let interface = Interface::open(&settings.interface)?;
        let any = Place::new(0, rings, u32::MAX - rings);
        let queues = check(&interface, settings, &any)?;
        let program = Program::load(&interface.name, queues, &settings.xdp)?;
        Ok(Checked {
            settings: settings.clone(),
            queues,
            shared: Arc::new(Shared::new(program)),
        })
    });
    checked.collect()
}

/// Opens `rings` ports on each interface. The n-th ports of all of them share memory, so that what one receives
/// another one sends without a copy.
pub(super) fn open(interfaces: &[PortSettings], rings: u32) -> Result<Vec<Vec<Opened>>, OpenError> {
    let checked = check_all(interfaces, rings)?;
    let mut all: Vec<Vec<Opened>> = checked.iter().map(|_| Vec::new()).collect();
    for number in 0..rings {
        for (ports, opened) in all.iter_mut().zip(open_thread(&checked, number, rings)?) {
            ports.push(opened);
        }
    }
    Ok(all)
}

/// The ports of one thread: one of each interface, over one area of memory.
fn open_thread(checked: &[Checked], number: u32, rings: u32) -> Result<Vec<Opened>, OpenError> {
    let places: Vec<Place> = checked
        .iter()
        .map(|it| Place::new(number, rings, it.queues))
        .collect();
    let bytes_of =
        |it: &Checked, frames: u32| frames as usize * it.settings.xdp.frame_bytes as usize;
    let frames_of = |it: &Checked, place: &Place| place.queues * it.settings.xdp.frames;
    let receives = checked
        .iter()
        .zip(&places)
        .map(|(it, place)| bytes_of(it, frames_of(it, place)));
    let sends = checked.iter().map(|it| bytes_of(it, OWN_FRAMES));
    let sizes: Vec<usize> = receives.chain(sends).collect();
    let Some(first) = checked.first() else {
        return Ok(Vec::new());
    };
    let refused = system(&first.settings.interface, "no memory for frames");
    let mut regions = Area::cut(&sizes).map_err(refused)?;
    let own = regions.split_off(checked.len());
    let loans: Vec<Arc<Loans>> = checked
        .iter()
        .zip(&places)
        .map(|(it, place)| Arc::new(Loans::new(frames_of(it, place))))
        .collect();
    let lenders = regions.iter().zip(&sizes).zip(&loans);
    let lenders: Vec<Lender> = lenders
        .map(|((region, bytes), loans)| Lender::new(region, *bytes, loans.clone()))
        .collect();
    let parts = checked.iter().zip(places).zip(regions).zip(own).zip(loans);
    let opened = parts.enumerate().map(|(at, parts)| {
        let ((((checked, place), region), own), loans) = parts;
        Port {
            at: at as u16,
            checked,
            place,
            region,
            own,
            loans,
        }
        .open(&lenders)
    });
    opened.collect()
}

/// A port of one thread, to be opened.
struct Port<'a> {
    /// Number of its interface.
    at: u16,
    checked: &'a Checked,
    place: Place,
    region: Region,
    own: Region,
    loans: Arc<Loans>,
}

impl Port<'_> {
    fn open(self, lenders: &[Lender]) -> Result<Opened, OpenError> {
        let Checked {
            settings,
            queues,
            shared,
        } = self.checked;
        let interface = Interface::open(&settings.interface)?;
        let partner = Arc::new(Partner::new(interface.link.mtu));
        let (rx, effect) = Receiver::open(receiver::Parts {
            settings: settings.clone(),
            warnings: warnings(&interface, settings, *queues, self.place.rings),
            interface,
            place: self.place,
            shared: shared.clone(),
            partner: partner.clone(),
            region: self.region,
            loans: self.loans,
        })?;
        let tx: Option<Box<dyn Tx>> = match settings.sends {
            true => Some(Box::new(Sender::new(sender::Parts {
                number: self.at,
                interface: Interface::open(&settings.interface)?,
                partner,
                frame_bytes: settings.xdp.frame_bytes,
                lenders: lenders.to_vec(),
                own: self.own,
                reports: self.place.reports(),
            }))),
            false => None,
        };
        let how = Some(describe(settings, *queues, effect));
        let rx = Box::new(rx);
        Ok(Opened {
            rx,
            tx,
            enough: None,
            how,
        })
    }
}

/// How an interface is served, for people.
fn describe(settings: &PortSettings, queues: u32, effect: Effect) -> String {
    let mode = match effect.attached {
        Attached::Native => "native",
        Attached::Generic => "generic",
    };
    let copies = match effect.is_zero_copy {
        true => "zero copy",
        false => "the kernel copies",
    };
    let s = if queues == 1 { "" } else { "s" };
    format!(
        "{}: XDP in {mode} mode, {copies}, {queues} queue{s}",
        settings.interface
    )
}

/// An interface to send on alone.
pub(super) fn open_tx(name: &str) -> Result<Sender, OpenError> {
    let interface = Interface::open(name)?;
    let settings = PortSettings::new(name);
    check_settings(&settings)?;
    let bytes = OWN_FRAMES as usize * settings.xdp.frame_bytes as usize;
    let own = Area::cut(&[bytes]).map_err(system(name, "no memory for frames"))?;
    let own = own.into_iter().next().ok_or(OpenError::LockedMemory {
        interface: name.to_owned(),
        bytes: bytes as u64,
    })?;
    let halves = socket::open(&Wanted {
        interface: &interface,
        queue: 0,
        area: own.area(),
        settings: &settings,
        // No program is attached, which drivers want for more.
        attached: Attached::Generic,
        receives: false,
        sends: true,
        waits: true,
    })?;
    let partner = Arc::new(Partner::new(interface.link.mtu));
    partner.hand_over(halves.sending);
    Ok(Sender::new(sender::Parts {
        number: 0,
        interface,
        partner,
        frame_bytes: settings.xdp.frame_bytes,
        lenders: Vec::new(),
        own,
        reports: true,
    }))
}

/// Checks what [`open`] would refuse, as far as that can be seen without attaching the program.
pub(super) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
    let checked = check_all(std::slice::from_ref(settings), 1)?;
    let interface = Interface::open(&settings.interface)?;
    if settings.xdp.mode == XdpMode::Generic {
        check_merging(&interface, Attached::Generic)?;
    }
    let queues: u32 = checked.iter().map(|it| it.queues).sum();
    let bytes = queues as usize * settings.xdp.frames as usize * settings.xdp.frame_bytes as usize;
    let regions =
        Area::cut(&[bytes]).map_err(system(&settings.interface, "no memory for frames"))?;
    regions
        .iter()
        .try_for_each(|it| socket::probe(&settings.interface, it.area(), settings))
}
