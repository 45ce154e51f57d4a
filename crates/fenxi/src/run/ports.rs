//! The interfaces of a live run: opened as the configuration asks, or refused by name.
//!
//! Each interface has one receive ring for each flow manager, over which the kernel spreads its frames; the n-th rings of
//! all interfaces belong to the n-th flow manager, so both directions of a flow meet there.

use std::time::{Duration, Instant};

use packetio::af_packet::{
    AfPacketError, Direction, InterfaceErrorKind, PortConfig, TransmitConfig,
};
use packetio::{AfPacket, PortError, Transmit};

use crate::config::checked::{Io, IoMode};
use crate::config::nearest;
use crate::control::sums::PortSums;
use crate::exit::Failure;

/// Between two tries to open an interface that is gone.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// What the kernel has put into a ring has come out so long after that, once the ring was found empty: longer than any
/// `io.block_timeout_ms`, which a block that is not full may take.
const OUT_AFTER: Duration = Duration::from_secs(2);

/// A flow manager's rings and, where it forwards, its ways out, by interface.
pub struct LanePorts {
    /// In the order of the configuration.
    pub receivers: Vec<Receiver>,
    /// The same where the mode is inline, else none.
    pub senders: Vec<Transmit>,
}

/// What people should know of an interface.
pub enum News {
    /// It does not work as it should, and why.
    Trouble(String),
    /// It works again.
    Back(String),
}

/// A ring, and how its interface is.
pub struct Receiver {
    /// The ring.
    pub ring: AfPacket,
    /// Raised when it was found empty.
    pub is_empty: bool,
    state: State,
    check: Check,
    /// Merged packets when they were last asked for, and whether there had been more than before.
    merged: (u64, bool),
    /// People know that it has another name now.
    is_known_renamed: bool,
}

/// Whether all that goes into a ring comes out: what was in at one time must be out when the ring is found empty some time
/// later.
#[derive(Clone, Copy)]
struct Check {
    /// Packets that had gone in, at this time.
    due: u64,
    since: Instant,
    /// The time has passed, and the ring has yet to be found empty.
    is_over: bool,
    /// What was missing the last time.
    missing: u64,
}

impl Check {
    fn new() -> Check {
        Check {
            due: 0,
            since: Instant::now(),
            is_over: false,
            missing: 0,
        }
    }

    /// So many are in and out by now; what is missing.
    fn look(&mut self, due: u64, done: u64, is_empty: &mut bool) -> i64 {
        if self.is_over && *is_empty {
            let missing = self.due.saturating_sub(done);
            *self = Check {
                due,
                missing,
                ..Check::new()
            };
        } else if !self.is_over && self.since.elapsed() >= OUT_AFTER {
            (self.is_over, *is_empty) = (true, false);
        }
        match done.checked_sub(due) {
            None | Some(0) => self.missing as i64,
            Some(excess) => -(excess as i64),
        }
    }
}

/// How an interface is.
enum State {
    Up,
    Down,
    /// Gone; when to try again.
    Gone {
        retry: Instant,
    },
    /// It fails for good.
    Failed,
}

impl Receiver {
    /// Takes note of an error; what to tell people.
    pub fn failed(&mut self, error: PortError) -> Option<News> {
        let PortError::Interface(error) = error else {
            return None;
        };
        let before = std::mem::replace(
            &mut self.state,
            match error.kind {
                InterfaceErrorKind::Down => State::Down,
                InterfaceErrorKind::Gone => State::Gone {
                    retry: Instant::now() + RETRY_EVERY,
                },
                InterfaceErrorKind::System(_) => State::Failed,
            },
        );
        let is_news = matches!(before, State::Up | State::Down);
        is_news.then(|| {
            match self.state {
                State::Gone { .. } => self.renamed_news(),
                _ => None,
            }
            .unwrap_or_else(|| News::Trouble(error.to_string()))
        })
    }

    /// That the interface has another name, told once. It is not followed: the configuration names an interface, and the next
    /// start will look for that name.
    pub fn renamed_news(&mut self) -> Option<News> {
        let name = self.ring.new_name().filter(|_| !self.is_known_renamed)?;
        self.is_known_renamed = true;
        let interface = self.ring.interface();
        Some(News::Trouble(format!(
            "{interface}: the interface is now called {name}; give it its name back, or put the new one into io.interfaces \
             and restart"
        )))
    }

    /// Whether frames can be asked for. One that is gone is opened anew now and then, which [`Receiver::news`] tells.
    pub fn is_there(&mut self) -> bool {
        match &mut self.state {
            State::Up | State::Down => true,
            State::Failed => false,
            State::Gone { retry } if Instant::now() < *retry => false,
            State::Gone { retry } => {
                *retry = Instant::now() + RETRY_EVERY;
                // `false`: it is another ring's turn first.
                let is_open = matches!(self.ring.reopen(), Ok(true));
                if is_open {
                    self.state = State::Down;
                }
                is_open
            }
        }
    }

    /// That an interface is back, said once; called when it was asked for frames in vain or not.
    pub fn news(&mut self) -> Option<News> {
        let was_away = matches!(self.state, State::Down | State::Gone { .. });
        if !was_away || !self.ring.is_up() {
            return None;
        }
        self.state = State::Up;
        self.is_known_renamed = false;
        let interface = self.ring.interface();
        Some(News::Back(format!("{interface}: the interface is back")))
    }

    /// What to tell people of packets that come merged.
    pub fn merged_news(&mut self) -> Option<String> {
        let now = self.ring.counts().merged;
        let (before, were_more) = std::mem::replace(&mut self.merged, (now, false));
        self.merged.1 = now > before;
        // Until the MTU is asked for again, packets that are longer than it was look merged, too.
        (were_more && now > before).then(|| {
            let interface = self.ring.interface();
            format!(
                "{interface}: packets come merged by GRO, LRO or TSO, so that lengths, and with them labels, are not those \
                 of the wire; turn it off: ethtool -K {interface} gro off lro off tso off gso off"
            )
        })
    }

    /// Asks the kernel how the ring stands.
    pub fn look(&mut self, sums: &mut PortSums) {
        let counts = self.ring.counts();
        sums.merged = counts.merged;
        sums.is_away = !matches!(self.state, State::Up);
        sums.offered = counts.seen - counts.outgoing;
        sums.dropped = counts.dropped + counts.abandoned;
        sums.abandoned = counts.abandoned;
        sums.waiting = counts.waiting();
        let due = sums.offered - sums.dropped;
        sums.missing = self.check.look(due, sums.received, &mut self.is_empty);
    }

    /// It will not come back, or nobody knows whether it will.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Gone { .. } | State::Failed)
    }

    /// It will not come back.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }
}

/// Opens all interfaces for so many flow managers.
///
/// # Errors
/// 69 where an interface is not to be had, 77 where a capability is missing, 78 where there is no interface to open or a
/// setting does not suit one.
pub fn open(io: &Io, lanes: usize) -> Result<Vec<LanePorts>, Failure> {
    check_named(io)?;
    let mut opened: Vec<LanePorts> = (0..lanes)
        .map(|_| LanePorts {
            receivers: Vec::new(),
            senders: Vec::new(),
        })
        .collect();
    for interface in &io.interfaces {
        let rings = AfPacket::open_rings(&receiving(io, interface), lanes as u16);
        for (lane, ring) in opened.iter_mut().zip(rings.map_err(failure)?) {
            let state = if ring.is_up() { State::Up } else { State::Down };
            lane.receivers.push(Receiver {
                ring,
                is_empty: false,
                state,
                check: Check::new(),
                merged: (0, false),
                is_known_renamed: false,
            });
            if io.mode == IoMode::Inline {
                let sender = Transmit::open(&sending(interface));
                lane.senders.push(sender.map_err(failure)?);
            }
        }
    }
    Ok(opened)
}

/// Checks what [`open`] would refuse, without being tied to an interface.
///
/// # Errors
/// As [`open`].
pub fn look(io: &Io) -> Result<(), Failure> {
    check_named(io)?;
    for interface in &io.interfaces {
        AfPacket::look(&receiving(io, interface)).map_err(failure)?;
        if io.mode == IoMode::Inline {
            // It receives nothing, and is closed at once.
            Transmit::open(&sending(interface)).map_err(failure)?;
        }
    }
    Ok(())
}

fn check_named(io: &Io) -> Result<(), Failure> {
    match io.interfaces.is_empty() {
        true => Err(Failure::config(
            "io.interfaces = []: name the interfaces to run on, as in --set 'io.interfaces=[\"eth0\"]'",
        )),
        false => Ok(()),
    }
}

fn sending(interface: &str) -> TransmitConfig {
    TransmitConfig {
        interface: interface.to_owned(),
        bypasses_qdisc: false,
        sends_merged: true,
    }
}

fn receiving(io: &Io, interface: &str) -> PortConfig {
    let is_inline = io.mode == IoMode::Inline;
    let defaults = PortConfig::new(interface);
    PortConfig {
        direction: match is_inline {
            true => Direction::Incoming,
            false => Direction::Both,
        },
        is_promiscuous: io.promiscuous || is_inline,
        snap_length: match is_inline {
            true => defaults.snap_length,
            false => io.snap_length,
        },
        block_bytes: io.block_bytes,
        blocks: io.blocks,
        block_timeout_ms: io.block_timeout_ms,
        // The thread rests for all its rings at once.
        wait: Duration::ZERO,
        completes_checksums: is_inline,
        ..defaults
    }
}

fn failure(error: AfPacketError) -> Failure {
    match &error {
        AfPacketError::NoSuchInterface { interface, known } => {
            let near = nearest(interface, known.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean {near}?"));
            Failure::unavailable(format!("{error}{}", near.unwrap_or_default()))
        }
        AfPacketError::MissingCapability { .. } => Failure::not_allowed(error.to_string()),
        AfPacketError::BadSetting { .. } => Failure::config(error.to_string()),
        _ => Failure::unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_out_of_a_ring_is_missing_once_it_was_found_empty() {
        let mut check = Check::new();
        let later = |check: &mut Check| {
            check.since = Instant::now().checked_sub(2 * OUT_AFTER).unwrap();
        };
        let mut is_empty = true;
        assert_eq!(
            check.look(10, 7, &mut is_empty),
            0,
            "they may be on their way"
        );
        later(&mut check);
        assert_eq!(check.look(10, 7, &mut is_empty), 0);
        assert!(!is_empty, "it was so before the time had passed");
        assert_eq!(check.look(12, 9, &mut is_empty), 0, "not empty yet");
        is_empty = true;
        assert_eq!(check.look(12, 10, &mut is_empty), 0, "the ten are out");
        later(&mut check);
        assert_eq!(check.look(12, 10, &mut is_empty), 0);
        is_empty = true;
        assert_eq!(check.look(20, 11, &mut is_empty), 1, "of twelve eleven");
        assert_eq!(
            check.look(20, 12, &mut is_empty),
            1,
            "until it was looked again"
        );
        assert_eq!(check.look(20, 23, &mut is_empty), -3);
    }
}
