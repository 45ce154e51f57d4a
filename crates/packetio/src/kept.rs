//! Receive rings that outlive the process: a service manager keeps their sockets and passes them on to the next process.
//!
//! While no process runs, the kernel goes on filling a ring. So frames are late but not lost, as long as the ring has room: for
//! its bytes, and for at least as many block timeouts as it has blocks.

use std::os::fd::OwnedFd;

use crate::error::OpenError;
use crate::settings::{Direction, PortSettings};
use crate::sys;

/// Version of what a ring holds and of how it is described. Another one is needed whenever a ring of the program before cannot
/// be read as it is.
const VERSION: u32 = 1;

/// The socket of a ring of the process before.
#[derive(Debug)]
pub struct Inherited {
    /// By which it was kept.
    pub name: String,
    /// The socket.
    pub socket: OwnedFd,
}

/// Why rings that were kept cannot be used. Each message is one line and names the interface.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// There is none with these settings.
    #[error("{interface}: no ring was kept that is {wanted}")]
    Missing {
        /// The name as given.
        interface: String,
        /// Its description.
        wanted: String,
    },
    /// The socket is not what its name says.
    #[error("{interface}: ring {number} was kept, but {why}")]
    Foreign {
        /// The name as given.
        interface: String,
        /// Which one it is.
        number: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The port cannot be opened over it.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// All about a ring that two processes have to agree on.
pub(crate) struct Description<'a> {
    pub settings: &'a PortSettings,
    pub index: u32,
    pub rings: u32,
}

impl Description<'_> {
    /// That of one ring.
    pub fn of(&self, number: u32) -> String {
        let PortSettings {
            direction,
            is_promiscuous,
            snap_length,
            block_bytes,
            blocks,
            block_timeout_ms,
            completes_checksums,
            ..
        } = self.settings;
        let Description { index, rings, .. } = self;
        let direction = match direction {
            Direction::Incoming => "in",
            Direction::Both => "both",
        };
        let promiscuous = if *is_promiscuous { "promisc" } else { "own" };
        let checksums = if *completes_checksums {
            "sums"
        } else {
            "as-is"
        };
        format!(
            "fenxi-ring-{VERSION} if{index} {number}/{rings} {blocks}x{block_bytes} {block_timeout_ms}ms {direction} {promiscuous} \
             {checksums} snap{snap_length}"
        )
    }
}

/// Takes over the packet sockets that a service manager has passed to this process (`LISTEN_FDS`, see sd_listen_fds(3)), with
/// their names. For the start, before ports are opened and threads run; a second call gives none. No child inherits them or the
/// variables.
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
        .filter_map(|(name, socket)| {
            Some(Inherited {
                name: name.to_owned(),
                socket: socket?,
            })
        })
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
        let description = Description {
            settings: &settings,
            index: u32::MAX,
            rings: u32::MAX,
        };
        let name = description.of(u32::MAX - 1);
        assert!(name.len() <= 255, "{name}");
        assert!(
            name.bytes()
                .all(|byte| (b' '..127).contains(&byte) && byte != b':'),
            "{name}"
        );
    }

    #[test]
    fn rings_with_other_settings_have_other_names() {
        let settings = PortSettings::new("eth0");
        let name = |settings: &PortSettings, index, rings, number| {
            Description {
                settings,
                index,
                rings,
            }
            .of(number)
        };
        let usual = name(&settings, 3, 2, 0);
        assert_eq!(
            usual,
            "fenxi-ring-1 if3 0/2 64x262144 1ms both own as-is snap262144"
        );
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
