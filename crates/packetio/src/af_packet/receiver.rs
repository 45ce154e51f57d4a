//! A ring as a port: detects the loss of its interface, reopens it once it is back, and checks that
//! all frames that go into the ring come out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::block::IP_MAX;
use super::reader::RingReader;
use crate::error::{InterfaceErrorKind, RxError, renamed};
use crate::interface::Offloads;
use crate::rx::{LinkEvent, Notice, Received, Rx, RxCounts, WaitHandle};

/// Bytes before the IP header of most frames.
const ETHERNET_HEADER: u32 = 14;
/// Interval between attempts to open an interface that is gone.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Interval between checks for merged packets and a new name.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// After this time, a frame that the kernel put into a ring has come out once the ring was found
/// empty. Longer than any block timeout.
const OUT_AFTER: Duration = Duration::from_secs(2);

/// State that the rings of one interface share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Merging was reported.
    is_merging_known: AtomicBool,
    /// Loss of merged packets in sending was reported.
    pub is_loss_known: AtomicBool,
}

/// One receive ring of an interface, which survives the loss of the interface.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: RingReader,
    /// Whether the ring was found empty since this flag was last cleared.
    is_empty: bool,
    state: PortState,
    check: Check,
    /// Unknown merged packets at the last check, and whether they had grown since the one before.
    merged: (u64, bool),
    /// Time of the last check.
    checked: Instant,
    /// The interface's new name was reported.
    is_rename_known: bool,
    /// The last link event, until it is taken.
    event: Option<LinkEvent>,
    /// Whether this ring reports for the interface.
    reports: bool,
    pub shared: Arc<Shared>,
    /// How often the interface was reopened. The sending side follows it.
    pub reopened: Arc<AtomicU32>,
}

/// Wraps the rings of an interface.
pub(crate) fn receivers(rings: Vec<RingReader>) -> Vec<Receiver> {
    let shared = Arc::new(Shared::default());
    let receivers = rings.into_iter().enumerate().map(|(i, ring)| Receiver {
        is_empty: false,
        state: if ring.is_up() { PortState::Up } else { PortState::Down },
        check: Check::new(),
        merged: (0, false),
        checked: Instant::now(),
        is_rename_known: false,
        event: None,
        reports: i == 0,
        shared: shared.clone(),
        reopened: Arc::default(),
        ring,
    });
    receivers.collect()
}

impl Receiver {
    /// Changes the state after an error and stores the event.
    fn note(&mut self, kind: InterfaceErrorKind) {
        let state = match kind {
            InterfaceErrorKind::Down => PortState::Down,
            InterfaceErrorKind::Gone => PortState::Gone { retry: Instant::now() + RETRY_EVERY },
            InterfaceErrorKind::System(_) => PortState::Failed,
        };
        let before = std::mem::replace(&mut self.state, state);
        if !matches!(before, PortState::Up | PortState::Down) {
            return; // already reported
        }
        // A new name explains better why the interface is gone.
        let renamed = match self.state {
            PortState::Gone { .. } => self.rename_line(),
            _ => None,
        };
        let line = renamed.unwrap_or_else(|| self.ring.interface.error(kind).line);
        self.event = Some(LinkEvent::Down(line));
    }

    /// Whether frames can be received. Periodically reopens an interface that is gone;
    /// [`Self::note_return`] reports it.
    fn is_there(&mut self) -> bool {
        match &mut self.state {
            PortState::Up | PortState::Down => true,
            PortState::Failed => false,
            PortState::Gone { retry } if Instant::now() < *retry => false,
            PortState::Gone { retry } => {
                *retry = Instant::now() + RETRY_EVERY;
                // `false`: another ring comes first.
                let is_open = matches!(self.ring.reopen(), Ok(true));
                if is_open {
                    self.state = PortState::Down;
                    self.reopened.fetch_add(1, Ordering::Relaxed);
                }
                is_open
            }
        }
    }

    /// Reports that the interface is back, if it is.
    fn note_return(&mut self) {
        let was_away = matches!(self.state, PortState::Down | PortState::Gone { .. });
        if !was_away || !self.ring.is_up() {
            return;
        }
        self.state = PortState::Up;
        self.is_rename_known = false;
        let interface = &self.ring.interface.name;
        self.event = Some(LinkEvent::Up(format!("{interface}: the interface is back")));
    }

    /// The message that the interface was renamed, once.
    fn rename_line(&mut self) -> Option<String> {
        let name = self.ring.interface.new_name().filter(|_| !self.is_rename_known)?;
        self.is_rename_known = true;
        let interface = &self.ring.interface.name;
        Some(renamed(interface, &name))
    }

    /// A warning that the kernel does not describe merged packets; once per interface.
    fn merging_event(&mut self) -> Option<LinkEvent> {
        let counts = self.ring.counts();
        let now = counts.unknown;
        let (before, were_more) = std::mem::replace(&mut self.merged, (now, false));
        self.merged.1 = now > before;
        // Until the MTU is refreshed, packets longer than the old one look merged.
        let is_merging = were_more && now > before;
        if !is_merging || self.shared.is_merging_known.swap(true, Ordering::Relaxed) {
            return None;
        }
        let interface = &self.ring.interface.name;
        Some(LinkEvent::Warning(format!(
            "{interface}: packets of up to {} bytes come, and the kernel does not say of which \
             packets they were merged, so each counts as one and labels go wrong; {}",
            counts.longest_unknown,
            remedy(interface, counts.longest_unknown)
        )))
    }
}

/// How to end merged frames that the kernel does not describe, by the bytes of the longest.
fn remedy(interface: &str, longest: u32) -> String {
    if longest > IP_MAX {
        return format!(
            "turn BIG TCP off: ip link set dev {interface} gso_max_size 65536 gro_max_size 65536"
        );
    }
    let merged_by_card = Offloads::query(interface)
        .ok()
        .and_then(|offloads| offloads.remedy(interface, &["lro", "rx-gro-hw"]));
    match merged_by_card {
        Some(line) => format!("keep the card from merging: {line}"),
        None => format!(
            "give the interface the MTU of its neighbours: ip link set dev {interface} mtu {}",
            longest.saturating_sub(ETHERNET_HEADER)
        ),
    }
}

impl Rx for Receiver {
    fn receive(&mut self, max: usize) -> Result<Received<'_>, RxError> {
        if !self.is_there() {
            return Ok(Received::Nothing);
        }
        match self.ring.fetch(max) {
            Ok(()) if self.ring.has_frames() => return Ok(Received::Burst(self.ring.burst())),
            Ok(()) => self.is_empty = true,
            Err(kind) => self.note(kind),
        }
        self.note_return();
        Ok(Received::Nothing)
    }

    fn notify(&mut self, notice: Notice<'_>) -> bool {
        let leaves = matches!(notice, Notice::Leave) && self.ring.is_kept();
        if leaves {
            self.ring.leave();
        }
        leaves
    }

    fn name(&self) -> &str {
        &self.ring.interface.name
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        let change = self.event.take().filter(|_| self.reports);
        if change.is_some() || self.checked.elapsed() < CHECK_EVERY {
            return change;
        }
        self.checked = Instant::now();
        let merging = self.merging_event();
        if merging.is_some() || !self.reports {
            return merging;
        }
        self.rename_line().map(LinkEvent::Warning)
    }

    fn counts(&mut self) -> RxCounts {
        let counts = self.ring.counts();
        let offered = counts.seen - counts.outgoing;
        let dropped = counts.dropped + counts.abandoned;
        let due = offered - dropped;
        let missing = self.check.update(due, counts.received, &mut self.is_empty);
        RxCounts {
            received: counts.received,
            bytes: counts.received_bytes,
            merged: counts.merged,
            offered,
            dropped,
            abandoned: counts.abandoned,
            waiting: counts.waiting(),
            missing,
            is_away: !matches!(self.state, PortState::Up),
            ..RxCounts::default()
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, PortState::Gone { .. } | PortState::Failed)
    }

    fn is_failed(&self) -> bool {
        matches!(self.state, PortState::Failed)
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        self.ring.wait_handle()
    }
}

/// State of the interface.
#[derive(Debug)]
enum PortState {
    Up,
    Down,
    /// Gone; next attempt at `retry`.
    Gone {
        retry: Instant,
    },
    /// Failed for good.
    Failed,
}

/// Checks that all frames that go into a ring come out: what was in at one time must be out once
/// the ring is found empty some time later.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// Frames that had gone in by `since`.
    due: u64,
    since: Instant,
    /// [`OUT_AFTER`] has passed; the ring has yet to be found empty.
    is_over: bool,
    /// Missing frames at the last check.
    missing: u64,
}

impl Check {
    fn new() -> Check {
        Check { due: 0, since: Instant::now(), is_over: false, missing: 0 }
    }

    /// Takes the frames that have gone in and come out by now; returns how many are missing.
    fn update(&mut self, due: u64, done: u64, is_empty: &mut bool) -> i64 {
        if self.is_over && *is_empty {
            let missing = self.due.saturating_sub(done);
            *self = Check { due, missing, ..Check::new() };
        } else if !self.is_over && self.since.elapsed() >= OUT_AFTER {
            (self.is_over, *is_empty) = (true, false);
        }
        match done.checked_sub(due) {
            None | Some(0) => self.missing as i64,
            Some(excess) => -(excess as i64),
        }
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
        assert_eq!(check.update(10, 7, &mut is_empty), 0, "they may be on their way");
        later(&mut check);
        assert_eq!(check.update(10, 7, &mut is_empty), 0);
        assert!(!is_empty, "it was so before the time had passed");
        assert_eq!(check.update(12, 9, &mut is_empty), 0, "not empty yet");
        is_empty = true;
        assert_eq!(check.update(12, 10, &mut is_empty), 0, "the ten are out");
        later(&mut check);
        assert_eq!(check.update(12, 10, &mut is_empty), 0);
        is_empty = true;
        assert_eq!(check.update(20, 11, &mut is_empty), 1, "of twelve eleven");
        assert_eq!(check.update(20, 12, &mut is_empty), 1, "until it was looked again");
        assert_eq!(check.update(20, 23, &mut is_empty), -3);
    }
}
