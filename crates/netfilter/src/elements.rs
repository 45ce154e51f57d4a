//! Writes elements with timeouts into a set owned by someone else.
//!
//! A query tells which elements of a batch are new. Then one transaction adds these and restarts
//! the timeouts of the others. From Linux 6.12 on, adding an existing element does that; before,
//! the timeout would stay, so the element is deleted and added within the transaction, and rules
//! never miss it.
//!
//! A transaction is applied as a whole or not at all. If elements fail, they are counted and the
//! others are sent again.

use crate::counts::Fate;
use crate::nft_set::{self, Change, Element, Field, Key, Set, SetName};
use crate::socket::{Reply, Socket};
use crate::writer::{StartError, Tally, Update, settle};

/// Maximum sends of a transaction; elements left then have failed.
const ROUNDS_MAX: usize = 4;

/// From this kernel on, adding an existing element restarts its timeout.
const UPDATES_FROM: (u32, u32) = (6, 12);

/// What to write into a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The set.
    pub set: SetName,
    /// Fields of its key.
    pub fields: Vec<Field>,
    /// Timeout of elements, ms; 0: the set's.
    pub timeout_ms: u64,
}

/// Opens a socket in the calling thread's network namespace, and finds the set's key.
///
/// # Errors
/// The capability is missing, or the set does not fit.
pub fn open(members: &Members) -> Result<(Socket, Key), StartError> {
    let name = &members.set;
    let cure = || name.how_to_add(&Key::new(&members.fields, false).to_string());
    let (socket, set) = find("set", name, cure)?;
    let unfit = |why| StartError::Unfit(format!("the set {name} {why}"));
    Ok((socket, set.fit(&members.fields).map_err(unfit)?))
}

/// Opens a socket in the calling thread's network namespace, and gets a set or a map (`what`);
/// `cure` is the command that adds it.
pub(crate) fn find(
    what: &str,
    name: &SetName,
    cure: impl FnOnce() -> String,
) -> Result<(Socket, Set), StartError> {
    let kernel = |error| StartError::Kernel {
        what: "elements of nftables sets",
        error,
        module: "nf_tables",
    };
    let mut socket = Socket::open().map_err(kernel)?;
    match nft_set::get(&mut socket, name) {
        Reply::Found(set) => Ok((socket, set)),
        Reply::NotFound => {
            let cure = cure();
            Err(StartError::Unfit(format!("there is no {what} {name}; add it: {cure}")))
        }
        outcome => {
            Err(StartError::from_outcome(outcome, "adding elements to nftables sets", kernel))
        }
    }
}

/// Whether this kernel restarts the timeout of an existing element that is added.
pub fn kernel_updates() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= UPDATES_FROM)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// A function that adds an element per update. `updates`: see [`kernel_updates`].
pub fn writer(
    members: &Members,
    socket: Socket,
    key: Key,
    updates: bool,
) -> impl FnMut(&mut Vec<Update>, &Tally) + Send + use<> {
    let mut elements =
        Elements { socket, set: members.set.clone(), timeout_ms: members.timeout_ms, updates };
    move |batch, tally| {
        let key_of = |update: &Update| key.for_tuple(&update.tuple);
        let keys: Vec<Option<Vec<u8>>> = batch.iter().map(key_of).collect();
        let fates = elements.write(&keys);
        let mut fates = fates.into_iter();
        settle(batch, tally, |_| fates.next());
    }
}

/// A set and its socket.
struct Elements {
    socket: Socket,
    set: SetName,
    timeout_ms: u64,
    updates: bool,
}

impl Elements {
    /// Adds elements with these keys; `None`: a key of the other family.
    fn write(&mut self, keys: &[Option<Vec<u8>>]) -> Vec<Fate> {
        // Write each key once: the first of equal updates writes it, the others count as refreshed.
        let mut different: Vec<&Vec<u8>> = keys.iter().flatten().collect();
        different.sort_unstable();
        different.dedup();
        let fates = self.write_different(&different);
        let mut is_written = vec![false; different.len()];
        let fate = |key: &Option<Vec<u8>>| {
            let Some(key) = key else {
                return Fate::OtherFamily;
            };
            let Ok(place) = different.binary_search(&key) else {
                return Fate::Unanswered;
            };
            let was_written = std::mem::replace(&mut is_written[place], true);
            match (fates[place], was_written) {
                (Fate::Written, true) => Fate::Refreshed,
                (fate, _) => fate,
            }
        };
        keys.iter().map(fate).collect()
    }

    fn write_different(&mut self, keys: &[&Vec<u8>]) -> Vec<Fate> {
        let mut fates = vec![Fate::Unanswered; keys.len()];
        let mut outcomes = Vec::new();
        // Indices of keys still to be written, and whether they exist.
        let mut open: Vec<(usize, bool)> = Vec::new();
        let elements: Vec<Element> = keys.iter().map(|key| ((*key).clone(), Change::Add)).collect();
        nft_set::query(&mut self.socket, &self.set, &elements, &mut outcomes);
        for (place, outcome) in outcomes.iter().enumerate() {
            match outcome {
                // The transaction tells whether the element or the set is missing.
                Reply::NotFound => open.push((place, false)),
                Reply::Found(()) => open.push((place, true)),
                Reply::Refused(errno) => fates[place] = Fate::Refused(*errno),
                Reply::Done | Reply::Unanswered => {}
            }
        }
        for _ in 0..ROUNDS_MAX {
            if open.is_empty() {
                break;
            }
            self.transact(keys, &mut open, &mut fates);
        }
        fates
    }

    /// Runs a transaction. Leaves in `open` what must be sent again.
    fn transact(&mut self, keys: &[&Vec<u8>], open: &mut Vec<(usize, bool)>, fates: &mut [Fate]) {
        let mut elements: Vec<Element> = Vec::new();
        // By element, the index in `open`.
        let mut places: Vec<usize> = Vec::new();
        for (place, (key, is_there)) in open.iter().enumerate() {
            if *is_there && !self.updates {
                elements.push((keys[*key].clone(), Change::Delete));
                places.push(place);
            }
            elements.push((keys[*key].clone(), Change::Add));
            places.push(place);
        }
        let mut outcomes = Vec::new();
        let (socket, set) = (&mut self.socket, &self.set);
        nft_set::change(socket, set, &elements, self.timeout_ms, &mut outcomes);
        let is_done = outcomes.iter().all(|outcome| *outcome == Reply::Done);
        let mut again: Vec<Option<(usize, bool)>> = open.iter().copied().map(Some).collect();
        for ((outcome, (_, change)), place) in outcomes.iter().zip(&elements).zip(places) {
            let (key, is_there) = open[place];
            let fate = match (outcome, change) {
                (Reply::Done, Change::Add) if is_done && is_there => Fate::Refreshed,
                (Reply::Done, Change::Add) if is_done => Fate::Written,
                (Reply::Done, _) => continue,
                // The element disappeared meanwhile: it is new in the next round.
                (Reply::NotFound, Change::Delete) => {
                    again[place] = Some((key, false));
                    continue;
                }
                (Reply::NotFound, Change::Add) => Fate::NotFound,
                (Reply::Refused(errno), _) => Fate::Refused(*errno),
                (Reply::Found(()) | Reply::Unanswered, _) => Fate::Unanswered,
            };
            fates[key] = fate;
            again[place] = None;
        }
        *open = again.into_iter().flatten().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_kernel() {
        assert_eq!(version("6.12.0-rc1"), Some((6, 12)));
        assert_eq!(version("5.10.233+deb-amd64\n"), Some((5, 10)));
        assert_eq!(version("odd"), None);
        assert!(version("6.9.1") < Some(UPDATES_FROM));
    }
}
