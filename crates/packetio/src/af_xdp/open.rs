//! Opens ports: assigns memory and queues to them.

use std::sync::Arc;

use super::area::{Area, Region};
use super::check::{check, check_merging, check_settings, warnings};
use super::loans::Loans;
use super::place::Place;
use super::program::{Attached, Program};
use super::queues::Effect;
use super::receiver::{self, Receiver};
use super::sender::{self, Lender, OWN_FRAMES, Sender};
use super::settings::XdpMode;
use super::shared::{Partner, Shared};
use super::socket::{self, Wanted};
use crate::backend::Opened;
use crate::error::OpenError;
use crate::interface::{Interface, system};
use crate::settings::PortSettings;
use crate::tx::Tx;

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
        let program = Program::load(&interface.name, queues, &settings.own.xdp)?;
        Ok(Checked { settings: settings.clone(), queues, shared: Arc::new(Shared::new(program)) })
    });
    checked.collect()
}

/// Opens `rings` ports on each interface. The n-th ports of all interfaces share memory, so that
/// frames are sent on without a copy.
pub(super) fn open(interfaces: &[PortSettings], rings: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
    let rings = u32::from(rings);
    let checked = check_all(interfaces, rings)?;
    let mut all: Vec<Vec<Opened>> = checked.iter().map(|_| Vec::new()).collect();
    for number in 0..rings {
        for (ports, opened) in all.iter_mut().zip(open_thread(&checked, number, rings)?) {
            ports.push(opened);
        }
    }
    Ok(all)
}

/// Opens the ports of one thread, one per interface, over one area of memory.
fn open_thread(checked: &[Checked], number: u32, rings: u32) -> Result<Vec<Opened>, OpenError> {
    let places: Vec<Place> =
        checked.iter().map(|it| Place::new(number, rings, it.queues)).collect();
    let bytes_of =
        |it: &Checked, frames: u32| frames as usize * it.settings.own.xdp.frame_bytes as usize;
    let frames_of = |it: &Checked, place: &Place| place.queues * it.settings.own.xdp.frames;
    let receives =
        checked.iter().zip(&places).map(|(it, place)| bytes_of(it, frames_of(it, place)));
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
        Port { at: at as u16, checked, place, region, own, loans }.open(&lenders)
    });
    opened.collect()
}

/// A port to be opened.
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
        let Checked { settings, queues, shared } = self.checked;
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
                frame_bytes: settings.own.xdp.frame_bytes,
                lenders: lenders.to_vec(),
                own: self.own,
                reports: self.place.reports(),
            }))),
            false => None,
        };
        let how = Some(describe(settings, *queues, effect));
        Ok(Opened { rx: Box::new(rx), tx, enough: None, how })
    }
}

/// How an interface is served, for the operator.
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
    format!("{}: XDP in {mode} mode, {copies}, {queues} queue{s}", settings.interface)
}

/// An interface for sending only.
pub(super) fn open_tx(name: &str) -> Result<Box<dyn Tx>, OpenError> {
    let interface = Interface::open(name)?;
    let settings = PortSettings::new(name);
    check_settings(&settings)?;
    let bytes = OWN_FRAMES as usize * settings.own.xdp.frame_bytes as usize;
    let own = Area::cut(&[bytes]).map_err(system(name, "no memory for frames"))?;
    let own = own
        .into_iter()
        .next()
        .ok_or(OpenError::LockedMemory { interface: name.to_owned(), bytes: bytes as u64 })?;
    let halves = socket::open(&Wanted {
        interface: &interface,
        queue: 0,
        area: &own.area,
        settings: &settings,
        // No program is attached, and drivers want one for more.
        attached: Attached::Generic,
        receives: false,
        sends: true,
        waits: true,
    })?;
    let partner = Arc::new(Partner::new(interface.link.mtu));
    partner.hand_over(halves.sending);
    Ok(Box::new(Sender::new(sender::Parts {
        number: 0,
        interface,
        partner,
        frame_bytes: settings.own.xdp.frame_bytes,
        lenders: Vec::new(),
        own,
        reports: true,
    })))
}

/// Checks what [`open`] would refuse, as far as possible without attaching the program.
pub(super) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
    let checked = check_all(std::slice::from_ref(settings), 1)?;
    let interface = Interface::open(&settings.interface)?;
    if settings.own.xdp.mode == XdpMode::Generic {
        check_merging(&interface, Attached::Generic)?;
    }
    let queues: u32 = checked.iter().map(|it| it.queues).sum();
    let bytes =
        queues as usize * settings.own.xdp.frames as usize * settings.own.xdp.frame_bytes as usize;
    let regions =
        Area::cut(&[bytes]).map_err(system(&settings.interface, "no memory for frames"))?;
    regions.iter().try_for_each(|it| socket::probe(&settings.interface, &it.area, settings))
}
