//! Receive rings that outlive the process: a service manager keeps their sockets for the next one.
//!
//! While no process runs, the kernel keeps filling a ring. Frames are late but not lost as long as
//! the ring has room for their bytes and at least as many blocks as block timeouts have passed.
//!
//! The next process finds its place in the blocks' descriptors: the kernel numbers the blocks, and
//! the reader notes, in a word that the kernel does not read, how many frames of a block it has
//! processed. It does so between two bursts, so a process that is killed repeats one burst.

use std::os::fd::OwnedFd;

use crate::error::OpenError;
use crate::settings::{Direction, PortSettings};
use crate::sys;

/// Version of a ring's contents and description. Raise it whenever a new program cannot read an old
/// program's ring.
const VERSION: u32 = 1;

/// A ring socket of the previous process.
#[derive(Debug)]
pub struct Inherited {
    /// The name under which it was kept.
    pub name: String,
    /// The socket.
    pub socket: OwnedFd,
}

/// Why kept rings cannot be used. Each message is one line and names the interface.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what variants and fields are")]
pub enum AdoptError {
    #[error("{interface}: no ring was kept that is {wanted}")]
    Missing { interface: String, wanted: String },
    #[error("{interface}: ring {number} was kept, but {why}")]
    Foreign { interface: String, number: usize, why: &'static str },
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The name of ring `number` of `rings` on an interface: all that two processes must agree on.
pub(crate) fn name(settings: &PortSettings, index: u32, rings: u32, number: u32) -> String {
    let PortSettings { block_bytes, blocks, block_timeout_ms, snap_length, .. } = settings;
    let direction = match settings.direction {
        Direction::Incoming => "in",
        Direction::Both => "both",
    };
    let promiscuous = if settings.is_promiscuous { "promisc" } else { "own" };
    let checksums = if settings.completes_checksums { "sums" } else { "as-is" };
    format!(
        "fenxi-ring-{VERSION} if{index} {number}/{rings} {blocks}x{block_bytes} \
         {block_timeout_ms}ms {direction} {promiscuous} {checksums} snap{snap_length}"
    )
}

/// Takes over the packet sockets passed by a service manager (`LISTEN_FDS`, see sd_listen_fds(3)).
/// Call it at the start, before ports are opened and threads run; a second call returns none. Child
/// processes inherit neither the sockets nor the variables.
pub fn inherited() -> Vec<Inherited> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let is_ours = number("LISTEN_PID") == Some(std::process::id());
    let count = number("LISTEN_FDS").filter(|_| is_ours).unwrap_or(0);
    sys::unset(&["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]);
    let mut names = names.split(':');
    let sockets = sys::passed_packet_sockets(count).into_iter();
    let named = sockets.map(|socket| (names.next().unwrap_or_default(), socket));
    named
        .filter_map(|(name, socket)| Some(Inherited { name: name.to_owned(), socket: socket? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_a_service_manager_takes() {
        let settings = PortSettings {
            block_bytes: u32::MAX,
            blocks: u32::MAX,
            block_timeout_ms: u32::MAX,
            snap_length: u32::MAX,
            ..PortSettings::new("e:th\u{e4}0")
        };
        let name = name(&settings, u32::MAX, u32::MAX, u32::MAX - 1);
        assert!(name.len() <= 255, "{name}");
        assert!(name.bytes().all(|byte| (b' '..127).contains(&byte) && byte != b':'), "{name}");
    }

    #[test]
    fn rings_with_other_settings_have_other_names() {
        let settings = PortSettings::new("eth0");
        let usual = name(&settings, 3, 2, 0);
        assert_eq!(usual, "fenxi-ring-1 if3 0/2 64x262144 1ms both own as-is snap262144");
        let changed = |change: fn(&mut PortSettings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            name(&settings, 3, 2, 0)
        };
        let others = [
            name(&settings, 4, 2, 0),
            name(&settings, 3, 3, 0),
            name(&settings, 3, 2, 1),
            changed(|it| it.blocks += 1),
            changed(|it| it.block_bytes += 4096),
            changed(|it| it.block_timeout_ms += 1),
            changed(|it| it.direction = Direction::Incoming),
            changed(|it| it.is_promiscuous = true),
            changed(|it| it.completes_checksums = true),
            changed(|it| it.snap_length -= 1),
        ];
        assert!(!others.contains(&usual), "{others:?}");
    }
}
