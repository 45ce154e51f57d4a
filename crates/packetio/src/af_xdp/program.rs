//! The XDP program of an interface: loaded, attached, and told the socket of each queue.
//!
//! It is attached by a link (`bpf_link`) held by a descriptor, so the kernel detaches it however
//! the process ends.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use aya::maps::{HashMap, MapData, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode as Attach};
use aya::{Ebpf, EbpfLoader};

use super::settings::{XdpMode, XdpSettings};
use crate::ebpf::{errno, load_error, system_error};
use crate::error::OpenError;
use crate::interface::{Interface, system};

/// Built from `bpf/xdp.c` by `make bpf`.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/xdp.o");
/// Names in the object.
const ALL: &str = "all";
const ALL_BUT_OWN: &str = "all_but_own";
const SOCKETS: &str = "sockets";
const HOSTS: &str = "hosts";
/// Size of the map of hosts.
pub(super) const HOSTS_MAX: usize = 64;

/// Where the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    Native,
    Generic,
}

/// The program of one interface. It outlives the interface and is attached again if that returns.
pub(super) struct Program {
    loaded: Ebpf,
    name: &'static str,
    sockets: XskMap<MapData>,
    link: Option<FdLink>,
}

impl Program {
    /// Loads it for an interface with `queues` queues; attaches nothing.
    pub fn load(interface: &str, queues: u32, settings: &XdpSettings) -> Result<Self, OpenError> {
        Self::load_object(OBJECT, interface, queues, settings)
    }

    fn load_object(
        object: &[u8],
        interface: &str,
        queues: u32,
        settings: &XdpSettings,
    ) -> Result<Self, OpenError> {
        let bad = |what: &(dyn Error + 'static)| refused(interface, what);
        let name = match settings.to_host.is_empty() {
            true => ALL,
            false => ALL_BUT_OWN,
        };
        // BTF of the kernel is not needed and may be missing.
        let mut loaded = EbpfLoader::new()
            .btf(None)
            .map_max_entries(SOCKETS, queues.max(1))
            .load(object)
            .map_err(|error| bad(&error))?;
        let sockets = loaded.take_map(SOCKETS).ok_or(missing(interface))?;
        let sockets = XskMap::try_from(sockets).map_err(|error| bad(&error))?;
        let hosts = loaded.map_mut(HOSTS).ok_or(missing(interface))?;
        let mut hosts: HashMap<_, [u8; 16], u8> =
            HashMap::try_from(hosts).map_err(|error| bad(&error))?;
        for address in &settings.to_host {
            hosts.insert(key(*address), 1, 0).map_err(|error| bad(&error))?;
        }
        let mut program = Self { loaded, name, sockets, link: None };
        program.xdp(interface)?.load().map_err(|error| bad(&error))?;
        Ok(program)
    }

    /// Attaches it to an interface. Losing an interface detaches it.
    pub fn attach(&mut self, interface: &Interface, mode: XdpMode) -> Result<Attached, OpenError> {
        self.detach();
        let (first, attached) = match mode {
            XdpMode::Auto | XdpMode::Native => (Attach::Driver, Attached::Native),
            XdpMode::Generic => (Attach::Skb, Attached::Generic),
        };
        let tried = self.try_attach(interface.index, first);
        let (link, attached) = match (tried, mode) {
            (Err(error), XdpMode::Auto) if errno(&error) == Some(libc::EOPNOTSUPP) => {
                (self.try_attach(interface.index, Attach::Skb), Attached::Generic)
            }
            (tried, _) => (tried, attached),
        };
        self.link = Some(link.map_err(|error| cannot_attach(interface, &error))?);
        Ok(attached)
    }

    /// Detaches it.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Directs the frames of a queue to a socket.
    pub fn hand_over(
        &mut self,
        interface: &str,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), OpenError> {
        let refused = system(interface, "the socket cannot be given to the XDP program");
        let set = self.sockets.set(queue, socket, 0);
        set.map_err(|error| refused(system_error(&error)))
    }

    fn try_attach(&mut self, index: u32, mode: Attach) -> Result<FdLink, ProgramError> {
        let xdp: &mut Xdp =
            self.loaded.program_mut(self.name).ok_or(ProgramError::NotLoaded)?.try_into()?;
        let id = xdp.attach_to_if_index(index, mode)?;
        // Kernels before 5.9 attach without a link, which would outlive the process; refuse them.
        FdLink::try_from(xdp.take_link(id)?).map_err(|_| {
            ProgramError::IOError(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no links of XDP programs; it has to be 5.9 or later",
            ))
        })
    }

    fn xdp(&mut self, interface: &str) -> Result<&mut Xdp, OpenError> {
        let program = self.loaded.program_mut(self.name);
        let program = program.ok_or(missing(interface))?;
        program.try_into().map_err(|error: ProgramError| refused(interface, &error))
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let link = self.link.as_ref().map(|_| "attached");
        f.debug_struct("Program").field("link", &link).finish()
    }
}

/// An address as the program's map has it.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The error of loading the maps or the program.
fn refused(interface: &str, error: &(dyn Error + 'static)) -> OpenError {
    let interface = interface.to_owned();
    match (errno(error), load_error(error).and_then(|(_, log)| log)) {
        (Some(libc::EPERM | libc::EACCES), None) => OpenError::MissingCapability {
            interface,
            what: "XDP programs",
            capability: "CAP_BPF and CAP_NET_ADMIN",
        },
        (_, log) => OpenError::ProgramRefused {
            interface,
            log: log.unwrap_or_else(|| system_error(error).to_string()),
        },
    }
}

fn missing(interface: &str) -> OpenError {
    let (interface, log) = (interface.to_owned(), "its object is not complete".to_owned());
    OpenError::ProgramRefused { interface, log }
}

/// The error of attaching the program.
fn cannot_attach(interface: &Interface, error: &ProgramError) -> OpenError {
    let name = interface.name.clone();
    let unsuitable =
        |why: String, cure: String| OpenError::Unsuitable { interface: name.clone(), why, cure };
    match errno(error) {
        Some(libc::EBUSY | libc::EEXIST) => OpenError::InUse {
            what: "another XDP program is attached".to_owned(),
            cure: format!(
                "`ip link show dev {name}` shows it; end the program that has it, or \
                 `ip link set dev {name} xdp off`"
            ),
            interface: name,
        },
        Some(libc::EOPNOTSUPP) => unsuitable(
            "its driver has no XDP".to_owned(),
            "set xdp.mode = \"generic\", or io.backend = \"af_packet\"".to_owned(),
        ),
        Some(libc::ERANGE) => unsuitable(
            format!(
                "its driver has no XDP with the MTU that it or its peer has ({})",
                interface.link.mtu
            ),
            format!(
                "`ip link set dev {name} mtu 1500`, on a veth on both ends, or set \
                 xdp.mode = \"generic\""
            ),
        ),
        Some(libc::ENOSPC) => unsuitable(
            "its peer sends on more queues than it receives on, with which its driver has no XDP"
                .to_owned(),
            "give it as many (`ethtool -L`), or set xdp.mode = \"generic\"".to_owned(),
        ),
        Some(libc::EPERM | libc::EACCES) => OpenError::MissingCapability {
            interface: name,
            what: "XDP programs",
            capability: "CAP_BPF and CAP_NET_ADMIN",
        },
        _ => system(&name, "the XDP program cannot be attached")(system_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_looked_up_as_ipv6() {
        let v4 = key("10.0.0.1".parse().unwrap());
        assert_eq!(v4[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(key("fd00::7".parse().unwrap())[15], 7);
    }

    #[test]
    fn a_program_that_the_kernel_refuses_is_refused_with_its_reason() {
        // The call of `bpf_redirect_map`, to a function that there is not.
        let call = [0x85, 0, 0, 0, 51, 0, 0, 0];
        let mut object = OBJECT.to_vec();
        let starts = 0..object.len() - call.len();
        let calls: Vec<usize> = starts.filter(|at| object[*at..].starts_with(&call)).collect();
        assert!(!calls.is_empty());
        for at in calls {
            object[at + 5] = 0x7f;
        }
        let error = Program::load_object(&object, "b0", 1, &XdpSettings::default()).unwrap_err();
        match &error {
            OpenError::ProgramRefused { log, .. } => {
                assert!(log.contains("invalid func"), "{log}");
                assert!(!error.to_string().contains('\n'), "{error}");
            }
            // No test without rights.
            OpenError::MissingCapability { .. } => {}
            other => panic!("{other}"),
        }
    }

    /// The object tells the kernel all that it has to know without BTF, which old or small kernels
    /// lack.
    #[test]
    fn the_object_can_be_read_without_btf() {
        let mut object = OBJECT.to_vec();
        let starts = 0..object.len() - 4;
        let places: Vec<usize> = starts.filter(|at| object[*at..].starts_with(b".BTF")).collect();
        assert!(!places.is_empty());
        for at in places {
            object[at..at + 4].copy_from_slice(b".XXX");
        }
        let names = |object: &aya::Ebpf| {
            let mut names: Vec<String> = object.maps().map(|(name, _)| name.to_owned()).collect();
            names.sort();
            names
        };
        match EbpfLoader::new().btf(None).load(&object) {
            Ok(loaded) => assert_eq!(names(&loaded), [HOSTS, SOCKETS]),
            // The object was read; maps need rights.
            Err(error) => assert_eq!(errno(&error), Some(libc::EPERM), "{error}"),
        }
    }
}
