//! Writes the bits of a class into connections.
//!
//! A batch needs at most two sends: first each tuple as the flow has it, then those not found,
//! reversed. What is still not found is tried once more a moment later: conntrack enters a
//! connection when its first packet has left, and a flow that its port names has its label before.
//! Before writing, it queries the connections' bits in the same way and leaves connections that
//! have some: their writer, or fenxi before a restart, saw the connection's beginning or decides
//! otherwise on purpose. Between query and write, less than a millisecond, only a rule could set
//! bits.
//!
//! Conntrack keeps two tuples per connection, of its first packet as it came in and of an answer as
//! it will come in, and looks both up at once. So a packet seen on any interface, before or after
//! NAT, has one of these or its reverse.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::conntrack::{self, Change, Connection, Request, Tuple};
use crate::counts::Fate;
use crate::socket::{BATCH, Reply, Socket};
use crate::writer::{StartError, Tally, Update, settle};

/// Names of what is written, for messages.
#[derive(Debug, Clone, Copy)]
pub struct Wording {
    /// As in "marking connections".
    pub doing: &'static str,
    /// As in "connection marks".
    pub what: &'static str,
}

/// Opens a socket for changes of connections in the calling thread's network namespace. `change`
/// should change nothing.
///
/// # Errors
/// The capability or a part of the kernel is missing.
pub fn open(change: Change, wording: Wording) -> Result<Socket, StartError> {
    let kernel =
        |error| StartError::Kernel { what: wording.what, error, module: "nf_conntrack_netlink" };
    let mut socket = Socket::open().map_err(kernel)?;
    // Change an impossible connection: "not found" means that changes are allowed.
    let nowhere = (Ipv4Addr::UNSPECIFIED.into(), 0);
    let tuple = Tuple { zone: 0, protocol: 17, source: nowhere, destination: nowhere };
    let mut outcomes = Vec::new();
    conntrack::update(&mut socket, &[(tuple, change)], &mut outcomes);
    match outcomes[..] {
        [Reply::NotFound | Reply::Done] => Ok(socket),
        [outcome] => Err(StartError::from_outcome(outcome, wording.doing, kernel)),
        _ => Err(kernel(io::Error::other("no answer"))),
    }
}

/// A function that writes `change` of each update's word. Existing bits are replaced only if
/// `overwrites`.
pub fn writer(
    socket: Socket,
    overwrites: Arc<AtomicBool>,
    change: impl Fn(u64) -> Change + Send,
) -> impl FnMut(&mut Vec<Update>, &Tally) + Send {
    let mut rounds = Rounds {
        socket,
        change,
        asked_for: Vec::with_capacity(BATCH),
        requests: Vec::with_capacity(BATCH),
        outcomes: Vec::with_capacity(BATCH),
    };
    move |batch, tally| {
        let mut retries = Vec::new();
        if !overwrites.load(Ordering::Relaxed) {
            rounds.keep(batch, tally);
            retries.extend(batch.extract_if(.., |update| !update.is_found));
        }
        rounds.write(batch, tally);
        batch.append(&mut retries);
    }
}

/// The connection of a packet, whichever way it goes, as it is now; `None`: there is none. Opens a
/// socket as [`open`] does.
///
/// # Errors
/// The kernel does not answer.
pub fn find(tuple: Tuple) -> io::Result<Option<Connection>> {
    let mut socket = Socket::open()?;
    let nothing = Change::Mark { bits: 0, mask: 0 };
    let requests = [(tuple, nothing), (tuple.reversed(), nothing)];
    let mut outcomes = Vec::new();
    conntrack::query(&mut socket, &requests, &mut outcomes);
    for outcome in outcomes {
        match outcome {
            Reply::Found(connection) => return Ok(Some(connection)),
            Reply::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Reply::Unanswered => return Err(io::Error::other("no answer")),
            Reply::NotFound | Reply::Done => {}
        }
    }
    Ok(None)
}

/// Buffers of a batch.
struct Rounds<F> {
    socket: Socket,
    change: F,
    requests: Vec<Request>,
    outcomes: Vec<Reply<Connection>>,
    /// Numbers of the batch's connections without bits, and the bits they will get.
    asked_for: Vec<(u32, u128)>,
}

impl<F: Fn(u64) -> Change> Rounds<F> {
    /// Removes updates of connections that have bits, or that an earlier update will give some, and
    /// updates that fail. The others get the tuple under which their connection was found, or are
    /// to be tried again.
    fn keep(&mut self, batch: &mut Vec<Update>, tally: &Tally) {
        self.asked_for.clear();
        for is_last in [false, true] {
            self.requests.clear();
            let change = &self.change;
            let open = batch.iter().filter(|update| !update.is_found);
            self.requests.extend(open.map(|update| (update.tuple, change_of(change, update))));
            if self.requests.is_empty() {
                return;
            }
            conntrack::query(&mut self.socket, &self.requests, &mut self.outcomes);
            let mut answers = self.requests.iter().zip(&self.outcomes);
            let (asked_for, word_change) = (&mut self.asked_for, &self.change);
            settle(batch, tally, |update| {
                if update.is_found {
                    return None;
                }
                let Some(((_, change), outcome)) = answers.next() else {
                    return Some(Fate::Unanswered);
                };
                match outcome {
                    Reply::NotFound if !is_last || is_first_try(update) => {
                        update.tuple = update.tuple.reversed();
                        None
                    }
                    Reply::Found(connection)
                        if is_ours(connection, update, word_change)
                            || !connection.is_changed_by(change)
                                && !gets_some(asked_for, connection.id, change) =>
                    {
                        asked_for.push((connection.id, change.mask()));
                        update.is_found = true;
                        None
                    }
                    outcome => Some(fate(outcome)),
                }
            });
        }
    }

    /// Writes a batch and leaves what is to be tried again.
    fn write(&mut self, batch: &mut Vec<Update>, tally: &Tally) {
        for is_last in [false, true] {
            if batch.is_empty() {
                return;
            }
            self.requests.clear();
            let change = &self.change;
            let updates = batch.iter().map(|update| (update.tuple, change_of(change, update)));
            self.requests.extend(updates);
            conntrack::update(&mut self.socket, &self.requests, &mut self.outcomes);
            let mut outcomes = self.outcomes.iter();
            settle(batch, tally, |update| match outcomes.next() {
                Some(Reply::NotFound) if !is_last || is_first_try(update) => {
                    update.tuple = update.tuple.reversed();
                    None
                }
                Some(outcome) => Some(fate(outcome)),
                None => Some(Fate::Unanswered),
            });
        }
    }
}

/// Whether this was the first try, after which there is another.
fn is_first_try(update: &mut Update) -> bool {
    !std::mem::replace(&mut update.is_retry, true)
}

fn change_of(change: &impl Fn(u64) -> Change, update: &Update) -> Change {
    let new = change(update.word);
    if update.clears { new.cleared() } else { new }
}

/// Whether the connection has what the previous label wrote, or nothing because that is in this
/// batch.
fn is_ours(connection: &Connection, update: &Update, change: &impl Fn(u64) -> Change) -> bool {
    if update.before == 0 {
        return false;
    }
    let before = change(update.before);
    connection.is_as(&before) || !connection.is_changed_by(&before)
}

/// Whether an earlier update gives the connection bits that the change would replace. Bits outside
/// its mask do not count: several tasks write bits of their own.
fn gets_some(asked_for: &[(u32, u128)], connection: u32, change: &Change) -> bool {
    let mut all = asked_for.iter();
    all.any(|&(id, mask)| id == connection && mask & change.mask() != 0)
}

fn fate(outcome: &Reply<Connection>) -> Fate {
    match *outcome {
        Reply::Done => Fate::Written,
        Reply::Found(_) => Fate::Kept,
        Reply::NotFound => Fate::NotFound,
        Reply::Refused(errno) => Fate::Refused(errno),
        Reply::Unanswered => Fate::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_one_connection_only_collide_where_their_masks_do() {
        let change = |mask| Change::Mark { bits: mask, mask };
        let asked_for = [(7, change(0xff00).mask())];
        assert!(gets_some(&asked_for, 7, &change(0x0100)));
        assert!(!gets_some(&asked_for, 7, &change(0xff)));
        assert!(!gets_some(&asked_for, 8, &change(0x0100)));
    }
}
