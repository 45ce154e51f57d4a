//! A ring as a port: notices when its interface goes away, looks for it until it is back, and
//! checks that all that goes into the ring comes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::block::IP_MAX;
use super::reader::RingReader;
use crate::error::{InterfaceErrorKind, RxError, renamed};
use crate::interface::Offloads;
use crate::rx::{LinkEvent, Received, Rx, RxCounts, WaitHandle};

/// Bytes before the IP header of most frames.
const ETHERNET_HEADER: u32 = 14;
/// Between two attempts to open an interface that is gone.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Between two looks at whether packets come merged and whether the interface was renamed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A frame that the kernel has put into a ring has come out after this time, once the ring was
/// found empty: longer than any block timeout, which a block that is not full may take.
const OUT_AFTER: Duration = Duration::from_secs(2);

/// State that the rings of one interface share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// People know that packets come merged.
    is_merging_known: AtomicBool,
    /// People know that merged packets are lost in sending.
    pub is_loss_known: AtomicBool,
}

/// One receive ring of an interface, which survives the loss of the interface.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: RingReader,
    /// Whether the ring was found empty since the flag was last lowered.
    is_empty: bool,
    state: State,
    check: Check,
    /// Merged packets at the last look, and whether there had been more than at the one before.
    merged: (u64, bool),
    /// When it last looked for merged packets and another name.
    looked: Instant,
    /// People know that the interface has another name now.
    is_rename_known: bool,
    /// The last change of the link, until it is asked for.
    event: Option<LinkEvent>,
    /// Whether it is the ring that reports for its interface.
    reports: bool,
    shared: Arc<Shared>,
    /// How often the interface was opened again. The sending side follows it.
    reopened: Arc<AtomicU32>,
}

/// The rings of an interface, over which the kernel spreads its frames, both directions of a flow to the same one.
pub(crate) fn receivers(rings: Vec<RingReader>) -> Vec<Receiver> {
    let shared = Arc::new(Shared::default());
    let rings = rings.into_iter().enumerate();
    let receivers = rings.map(|(i, ring)| Receiver::new(ring, i == 0, shared.clone()));
    receivers.collect()
}

impl Receiver {
    fn new(ring: RingReader, reports: bool, shared: Arc<Shared>) -> Self {
        Self {
            is_empty: false,
            state: if ring.is_up() { State::Up } else { State::Down },
            check: Check::new(),
            merged: (0, false),
            looked: Instant::now(),
            is_rename_known: false,
            event: None,
            reports,
            shared,
            reopened: Arc::default(),
            ring,
        }
    }

    /// The state that all rings of the interface share.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// How often its interface was opened again.
    pub fn reopened(&self) -> Arc<AtomicU32> {
        self.reopened.clone()
    }

    /// Changes the state after an error, and keeps the event for people.
    fn note(&mut self, kind: InterfaceErrorKind) {
        let state = match kind {
            InterfaceErrorKind::Down => State::Down,
            InterfaceErrorKind::Gone => State::Gone {
                retry: Instant::now() + RETRY_EVERY,
            },
            InterfaceErrorKind::System(_) => State::Failed,
        };
        let before = std::mem::replace(&mut self.state, state);
        if !matches!(before, State::Up | State::Down) {
            return; // known
        }
        // Another name is the better explanation of an interface that is gone.
        let renamed = match self.state {
            State::Gone { .. } => self.rename_line(),
            _ => None,
        };
        let line = renamed.unwrap_or_else(|| self.ring.error(kind).to_string());
        self.event = Some(LinkEvent::Down(line));
    }

    /// Whether frames can be asked for. An interface that is gone is opened again now and then,
    /// which [`Self::note_return`] reports.
    fn is_there(&mut self) -> bool {
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
                    self.reopened.fetch_add(1, Ordering::Relaxed);
                }
                is_open
            }
        }
    }

    /// Notes that the interface is back, if it is.
    fn note_return(&mut self) {
        let was_away = matches!(self.state, State::Down | State::Gone { .. });
        if !was_away || !self.ring.is_up() {
            return;
        }
        self.state = State::Up;
        self.is_rename_known = false;
        let interface = self.ring.interface();
        self.event = Some(LinkEvent::Up(format!("{interface}: the interface is back")));
    }

    /// A warning that the interface has another name, given once.
    fn rename_line(&mut self) -> Option<String> {
        let name = self.ring.new_name().filter(|_| !self.is_rename_known)?;
        self.is_rename_known = true;
        let interface = self.ring.interface();
        Some(renamed(interface, &name))
    }

    /// A warning that packets come merged of lengths that the kernel does not tell; only one ring of the interface gives it.
    fn merging_event(&mut self) -> Option<LinkEvent> {
        let counts = self.ring.counts();
        let now = counts.unknown;
        let (before, were_more) = std::mem::replace(&mut self.merged, (now, false));
        self.merged.1 = now > before;
        // Until the MTU is asked for again, packets longer than it was look merged, too.
        let is_merging = were_more && now > before;
        if !is_merging || self.shared.is_merging_known.swap(true, Ordering::Relaxed) {
            return None;
        }
        let interface = self.ring.interface();
        Some(LinkEvent::Warning(format!(
            "{interface}: packets of up to {} bytes come, and the kernel does not say of which packets they were merged, so each \
             counts as one and labels go wrong; {}",
            counts.longest_unknown,
            remedy(interface, counts.longest_unknown)
        )))
    }
}

/// What ends frames of unknown segments, the longest of so many bytes: each kind has another cause.
fn remedy(interface: &str, longest: u32) -> String {
    if longest > IP_MAX {
        return format!(
            "turn BIG TCP off: ip link set dev {interface} gso_max_size 65536 gro_max_size 65536"
        );
    }
    let merged_by_card = Offloads::of(interface)
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

    fn leave(&mut self) -> bool {
        let is_kept = self.ring.is_kept();
        if is_kept {
            self.ring.leave();
        }
        is_kept
    }

    fn name(&self) -> &str {
        self.ring.interface()
    }

    fn is_live(&self) -> bool {
        true
    }

    fn link_event(&mut self) -> Option<LinkEvent> {
        let change = self.event.take().filter(|_| self.reports);
        if change.is_some() || self.looked.elapsed() < LOOK_EVERY {
            return change;
        }
        self.looked = Instant::now();
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
        let missing = self.check.look(due, counts.received, &mut self.is_empty);
        RxCounts {
            received: counts.received,
            bytes: counts.received_bytes,
            merged: counts.merged,
            offered,
            dropped,
            abandoned: counts.abandoned,
            waiting: counts.waiting(),
            missing,
            is_away: !matches!(self.state, State::Up),
            ..RxCounts::default()
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Gone { .. } | State::Failed)
    }

    fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    fn wait_handle(&self) -> WaitHandle<'_> {
        self.ring.wait_handle()
    }
}

/// How an interface is.
#[derive(Debug)]
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

/// Whether all that goes into a ring comes out: what was in at one time must be out when the ring
/// is found empty some time later.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// Frames that had gone in at this time.
    due: u64,
    since: Instant,
    /// The time has passed, and the ring has yet to be found empty.
    is_over: bool,
    /// Missing frames at the last check.
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

    /// So many have gone in and come out by now; how many are missing.
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
