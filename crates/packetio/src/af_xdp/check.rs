//! Checks of an interface before it is changed, and warnings for the operator.

use std::os::fd::AsFd;

use super::place::Place;
use super::program::{Attached, HOSTS_MAX};
use crate::error::OpenError;
use crate::interface::{self, ETHERNET, Interface, Offloads};
use crate::settings::PortSettings;
use crate::sys;

/// Bytes the kernel reserves in front of each frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Bytes of an Ethernet header with two tags.
const LINK_HEADER: u32 = 22;
/// Offloads that strip a frame's tag before XDP sees it, and those that merge frames before.
const STRIPS: [&str; 1] = ["rxvlan"];
const MERGE_NATIVE: [&str; 2] = ["lro", "rx-gro-hw"];

/// Receive queues of an interface; 1 where the driver does not say.
pub(super) fn count(interface: &str) -> Result<u32, OpenError> {
    let queues = interface::Queues::query(interface)?;
    Ok(queues.count.map_or(1, |(count, _)| count.max(1)))
}

/// Checks an interface before it is changed. Returns its number of queues.
pub(super) fn check(
    interface: &Interface,
    settings: &PortSettings,
    place: &Place,
) -> Result<u32, OpenError> {
    let name = &interface.name;
    let unsuitable =
        |why: String, cure: String| OpenError::Unsuitable { interface: name.clone(), why, cure };
    if interface.link_type != ETHERNET {
        return Err(OpenError::UnsupportedLink {
            interface: name.clone(),
            hardware: interface.link.hardware,
        });
    }
    mtu_fits(name, interface.link.mtu, settings)?;
    let queues = count(name)?;
    if queues < place.rings {
        return Err(unsuitable(
            format!("it has {queues} receive queues for {} flow managers", place.rings),
            format!(
                "`ethtool -L {name} combined {0}` (or rx {0}), or use fewer flow managers",
                place.rings
            ),
        ));
    }
    let has_memory = Place::new(place.number, place.rings, queues).queues <= place.queues;
    if !has_memory {
        return Err(unsuitable(
            format!("it has {queues} receive queues now, more than before"),
            "restart, or take some away (`ethtool -L`)".to_owned(),
        ));
    }
    // Sent on without its tag, a frame would end up in another VLAN.
    let offloads = Offloads::query(name)?;
    match offloads.remedy(name, &STRIPS) {
        Some(line) if settings.sends => Err(unsuitable(
            "it strips VLAN tags (rxvlan), and XDP cannot put them back".to_owned(),
            line,
        )),
        _ => Ok(queues),
    }
}

/// Checks that frames of an MTU fit.
pub(super) fn mtu_fits(name: &str, mtu: u32, settings: &PortSettings) -> Result<(), OpenError> {
    let most = settings.own.xdp.frame_bytes - HEADROOM - LINK_HEADER;
    if mtu <= most {
        return Ok(());
    }
    let larger = 4096 - HEADROOM - LINK_HEADER;
    let cure = match mtu <= larger {
        true => "set xdp.frame_bytes = 4096".to_owned(),
        false => format!(
            "`ip link set dev {name} mtu {larger}` with xdp.frame_bytes = 4096, or set \
             io.backend = \"af_packet\""
        ),
    };
    Err(OpenError::Unsuitable {
        interface: name.to_owned(),
        why: format!(
            "its MTU is {mtu}, and a frame of {} bytes has room for {most}",
            settings.own.xdp.frame_bytes
        ),
        cure,
    })
}

/// Merged packets are longer than a frame and would be lost.
pub(super) fn check_merging(interface: &Interface, attached: Attached) -> Result<(), OpenError> {
    let name = &interface.name;
    let names: &[&str] = match attached {
        Attached::Native => &MERGE_NATIVE,
        Attached::Generic => &interface::MERGE_INCOMING,
    };
    let offloads = Offloads::query(name)?;
    let Some(cure) = offloads.remedy(name, names) else {
        return Ok(());
    };
    let on: Vec<&str> = offloads.on(names).iter().map(|it| it.name).collect();
    Err(OpenError::Unsuitable {
        interface: name.clone(),
        why: format!(
            "it merges packets ({}) before XDP sees them, and they are longer than a frame",
            on.join(", ")
        ),
        cure,
    })
}

pub(super) fn check_settings(settings: &PortSettings) -> Result<(), OpenError> {
    settings.check()?;
    let refused = |setting: String| {
        let interface = settings.interface.clone();
        Err(OpenError::BadSetting { interface, setting })
    };
    let xdp = &settings.own.xdp;
    if !xdp.frames.is_power_of_two() || !(64..=1 << 20).contains(&xdp.frames) {
        return refused(format!(
            "{} frames; a power of two from 64 to 1048576 is needed",
            xdp.frames
        ));
    }
    if ![2048, 4096].contains(&xdp.frame_bytes) {
        return refused(format!("frames of {} bytes; 2048 and 4096 are possible", xdp.frame_bytes));
    }
    if xdp.to_host.len() > HOSTS_MAX {
        return refused(format!(
            "{} addresses of this machine; {HOSTS_MAX} are possible",
            xdp.to_host.len()
        ));
    }
    Ok(())
}

/// Warnings for the operator at the start.
pub(super) fn warnings(
    interface: &Interface,
    settings: &PortSettings,
    queues: u32,
    rings: u32,
) -> Vec<String> {
    let name = &interface.name;
    let mut warnings = Vec::new();
    let offloads = Offloads::query(name).unwrap_or_default();
    if let Some(line) = offloads.remedy(name, &STRIPS) {
        warnings.push(format!(
            "{name}: the card strips VLAN tags, so frames of all VLANs look alike; {line}"
        ));
    }
    if settings.sends && sys::driver(interface.query.as_fd(), name).is_ok_and(|it| it == "veth") {
        warnings.push(format!(
            "{name}: a veth passes on checksums and VLAN tags that its peer left to a card, and \
             XDP cannot complete them; on its peer: ethtool -K PEER tx off txvlan off"
        ));
    }
    let hash = interface::Queues::query(name).ok().and_then(|it| it.hash);
    let is_symmetric = hash.as_ref().is_some_and(|it| it.is_symmetric());
    if rings > 1 && !is_symmetric {
        let cure = hash.and_then(|it| it.remedy(name));
        let cure = cure.unwrap_or_else(|| "use one flow manager".to_owned());
        warnings.push(format!(
            "{name}: its hash may spread the two directions of a flow over different queues \
             ({queues}), and so over different flow managers; {cure}"
        ));
    }
    warnings
}
