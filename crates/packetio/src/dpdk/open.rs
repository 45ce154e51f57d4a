//! Starts DPDK and opens devices by name.

use std::fs;
use std::sync::Arc;

use dpdk::{Eal, Error, ErrorKind, Port, PortQueue};

use super::receiver::Receiver;
use super::sender::Sender;
use super::settings::DpdkSettings;
use crate::backend::Opened;
use crate::error::OpenError;
use crate::settings::PortSettings;
use crate::tx::Tx;

/// The argument for a start without huge pages.
const NO_HUGE: &str = "--no-huge";

/// Opens `rings` ports on each device.
pub(super) fn open(interfaces: &[PortSettings], rings: u16) -> Result<Vec<Vec<Opened>>, OpenError> {
    let Some(first) = interfaces.first() else {
        return Ok(Vec::new());
    };
    let eal = start(&first.interface, &first.own.dpdk)?;
    let opened = interfaces.iter().map(|settings| {
        let queues = open_device(&eal, settings, rings)?;
        let ports = queues.into_iter().enumerate().map(|(i, queue)| Opened {
            tx: queue.tx.map(|tx| Box::new(Sender::new(tx)) as Box<dyn Tx>),
            rx: Box::new(Receiver::new(queue.rx, i == 0, settings.own.dpdk.sleep)),
            enough: None,
            how: None,
        });
        Ok(ports.collect())
    });
    let opened = opened.collect::<Result<_, OpenError>>()?;
    dpdk::quiet();
    Ok(opened)
}

/// Opens a device for sending only, with default settings.
pub(super) fn open_tx(interface: &str) -> Result<Box<dyn Tx>, OpenError> {
    let settings = PortSettings { sends: true, ..PortSettings::new(interface) };
    let eal = start(interface, &settings.own.dpdk)?;
    let queues = open_device(&eal, &settings, 1)?;
    let tx = queues.into_iter().find_map(|queue| queue.tx);
    match tx {
        Some(tx) => Ok(Box::new(Sender::new(tx))),
        None => Err(bad(interface, "the device does not send".to_owned())),
    }
}

/// Checks for huge pages only: opening a device would take it, perhaps from a running fenxi.
pub(super) fn probe(settings: &PortSettings) -> Result<(), OpenError> {
    let is_without = settings.own.dpdk.args.iter().any(|arg| arg == NO_HUGE);
    match is_without || has_huge_pages() {
        true => Ok(()),
        false => Err(no_pages(&settings.interface)),
    }
}

/// Whether the system has huge pages, free or in use. If this is unknown, DPDK will find out.
fn has_huge_pages() -> bool {
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return true;
    };
    sizes.flatten().any(|size| {
        let count = fs::read_to_string(size.path().join("nr_hugepages"));
        count.is_ok_and(|count| count.trim() != "0")
    })
}

fn start(interface: &str, settings: &DpdkSettings) -> Result<Arc<Eal>, OpenError> {
    Eal::start(&settings.args).map_err(|error| match error.kind {
        ErrorKind::Memory if has_huge_pages() => refused(
            interface,
            &error,
            "reserve more huge pages, of which flow tables take some, too, or give DPDK less (-m)",
        ),
        ErrorKind::Memory => no_pages(interface),
        _ => failure(interface, &error),
    })
}

fn open_device(
    eal: &Arc<Eal>,
    settings: &PortSettings,
    queues: u16,
) -> Result<Vec<PortQueue>, OpenError> {
    let wanted = dpdk::PortSettings {
        device: settings.interface.clone(),
        queues,
        mbufs: settings.own.dpdk.mbufs,
        is_promiscuous: settings.is_promiscuous,
        sends: settings.sends,
    };
    Port::open(eal, &wanted).map_err(|error| match error.kind {
        ErrorKind::NoDevice => no_device(eal, &settings.interface),
        _ => failure(&settings.interface, &error),
    })
}

fn no_device(eal: &Eal, interface: &str) -> OpenError {
    let said = dpdk::first_error().map(|line| format!("; DPDK says: {line}"));
    let known = match eal.devices() {
        devices if devices.is_empty() => "none".to_owned(),
        devices => devices.join(", "),
    };
    OpenError::Unavailable {
        interface: interface.to_owned(),
        why: format!(
            "no such device of DPDK; there are: {known}; a card is bound to vfio-pci and named by \
             its PCI address, a device in software comes from --vdev in dpdk.args{}",
            said.unwrap_or_default()
        ),
    }
}

fn no_pages(interface: &str) -> OpenError {
    OpenError::Unavailable {
        interface: interface.to_owned(),
        why: "DPDK needs huge pages, and this system has none; reserve some (`sysctl \
              vm.nr_hugepages=512`), or, to try it out, set dpdk.args = [\"--no-huge\", \"-m\", \
              \"512\"]"
            .to_owned(),
    }
}

fn failure(interface: &str, error: &Error) -> OpenError {
    match error.kind {
        ErrorKind::Setting => bad(interface, error.to_string()),
        ErrorKind::Permission => OpenError::NotAllowed {
            interface: interface.to_owned(),
            why: format!(
                "{error}; DPDK needs root, or the rights to its devices and to huge pages"
            ),
        },
        ErrorKind::Memory => {
            refused(interface, error, "give DPDK more memory, or lower dpdk.mbufs")
        }
        ErrorKind::NoDevice | ErrorKind::Refused => {
            OpenError::Unavailable { interface: interface.to_owned(), why: error.to_string() }
        }
    }
}

fn refused(interface: &str, error: &Error, cure: &str) -> OpenError {
    OpenError::Unavailable { interface: interface.to_owned(), why: format!("{error}; {cure}") }
}

fn bad(interface: &str, setting: String) -> OpenError {
    OpenError::BadSetting { interface: interface.to_owned(), setting }
}
