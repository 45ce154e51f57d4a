//! A filter of clsact, where the kernel has no TCX (before 6.6).
//!
//! A filter outlives its process. So it holds a program that only calls the real one
//! (`bpf/clsact.c`), through a map that the kernel empties when the process ends, however it ends.
//! What may stay, after kill -9 or without `CAP_NET_ADMIN`, is a filter that lets packets pass;
//! the next start removes it.

use std::error::Error;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use aya::maps::{MapData, ProgramArray};
use aya::programs::tc::{
    NlOptions, SchedClassifierLinkId, TcAttachOptions, qdisc_add_clsact, qdisc_detach_program,
};
use aya::programs::{ProgramFd, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::ebpf::{load_program, take};
use crate::interface::Interface;

/// Built from `bpf/clsact.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/clsact.o");
const NAME: &str = "fenxi_filter";

/// At one direction of an interface.
pub struct Filter {
    ebpf: Ebpf,
    link: Option<SchedClassifierLinkId>,
    /// Says to other processes that a filter here is in use.
    in_use: Option<UnixDatagram>,
    /// What the filter calls, as long as this is open.
    _called: ProgramArray<MapData>,
}

impl Filter {
    /// A filter that calls a program, attached nowhere.
    pub fn new(program: &ProgramFd) -> Result<Filter, Box<dyn Error>> {
        let mut ebpf = EbpfLoader::new().load(OBJECT)?;
        load_program(&mut ebpf, NAME)?;
        let mut called = ProgramArray::try_from(take(&mut ebpf, "called")?)?;
        called.set(0, program, 0)?;
        Ok(Filter { ebpf, link: None, in_use: None, _called: called })
    }

    /// Attaches it to an interface, and detaches it from the previous one.
    pub fn attach(
        &mut self,
        interface: &Interface,
        direction: TcAttachType,
    ) -> Result<(), Box<dyn Error>> {
        let program = load_program(&mut self.ebpf, NAME)?;
        if let Some(link) = self.link.take() {
            // If the interface is gone, there is nothing to detach from.
            let _ = program.detach(link);
        }
        // The kernel frees the name with the process.
        self.in_use = None;
        let name = format!("fenxi-filter-{}-{direction:?}", interface.index);
        self.in_use = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?).ok();
        // It is there already, or the filter is refused, too.
        let _ = qdisc_add_clsact(&interface.name);
        if self.in_use.is_some() {
            // Of processes that were killed, usually none.
            let _ = qdisc_detach_program(&interface.name, direction, NAME);
        }
        // Without a priority it comes before other filters, which may drop or redirect.
        let options = TcAttachOptions::Netlink(NlOptions::default());
        self.link = Some(program.attach_with_options(&interface.name, direction, options)?);
        Ok(())
    }
}

#[cfg(test)]
impl Filter {
    /// Leaves it attached, as the end of a process does.
    pub fn leave(mut self) {
        let program = load_program(&mut self.ebpf, NAME).unwrap();
        std::mem::forget(program.take_link(self.link.take().unwrap()).unwrap());
    }
}
