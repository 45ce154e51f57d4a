//! Weights and actions of egresses, written by one other program: the way back.
//!
//! [`Actions`] creates the memory, gives it to one program with [`hand_out`](crate::hand_out), and
//! reads it without trusting any of it. To change the owner, create it anew: what the last owner
//! still writes goes nowhere. The owner needs no other file, since the memory lists its egresses.
//!
//! # Layout
//!
//! Words as in [`layout`](crate::layout). Times are of `CLOCK_MONOTONIC`, ns.
//!
//! | byte | word | name | value |
//! |---|---|---|---|
//! | 0 | 0 | magic | `FENXIACT` |
//! | 8 | 1 | version | 1 |
//! | 16 | 2 | words | of the whole file |
//! | 24 | 3 | egresses | slots |
//! | 32 | 4 | epoch | ns, when the memory was created |
//! | 40 | 5 | actions | the word where the actions begin; 0: this memory has none |
//! | 48 | 6 | kinds | of actions that count: bit 0 a mark, bit 1 a DSCP, bit 2 a task |
//! | 64 | 8 | published | count of publications; the owner changes it |
//! | 128 | 16 | heartbeat | anything; the owner changes it more often than every 0.8 s |
//! | 192 | 24 | buffers | 3, each of 8 + 2 × egresses words |
//! | behind | | directory | 4 words per slot: incarnation, then the egress as in a service's row |
//! | behind | | actions | 3 buffers, each of one word per slot |
//!
//! A buffer has the deadline in word 0 and from word 8 on two words per slot: the incarnation of
//! the egress that is meant (0: none) and the weight, the bits of an f64. It is published and
//! copied as a service's frame is, and the actions' buffer of the same number with it
//! ([`Action::to_word`]).
//!
//! Programs that know no actions write none: their words stay 0.

mod action;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, SealFlags, fchmod};

use crate::egress::{Egress, Slot};
use crate::error::Error;
use crate::layout::EGRESSES_MAX;
use crate::memory::{Memory, create, map_read_only, map_writable, seals};
use crate::publication::{BUFFERS, Publication, copy};
use crate::sync::Ordering;

pub use action::Action;

const MAGIC: u64 = u64::from_le_bytes(*b"FENXIACT");
const VERSION: u64 = 1;
const ACTIONS: usize = 5;
const KINDS: usize = 6;
const PUBLISHED: usize = 8;
const HEARTBEAT: usize = 16;
const BUFFER: usize = 24;
/// Words of a buffer before the first slot's.
const BUFFER_HEADER: usize = 8;
/// Words of the directory per slot.
const ENTRY: usize = 4;

/// An owner whose heartbeat stays for longer is dead, ns. With a look every 100 ms, static weights
/// apply again within 1 s.
pub const SILENCE_MAX_NS: u64 = 800_000_000;

/// Why the owner's weights do not apply, so that static ones do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing was published, or nothing for an egress that is there.
    Unwritten,
    /// The heartbeat stands still.
    Dead,
    /// The deadline has passed.
    Late,
    /// A weight is not a number.
    NotANumber,
    /// A weight, or the sum of all, is infinite.
    Infinite,
    /// A weight is below zero.
    Negative,
    /// All weights are zero.
    AllZero,
    /// An action is none, or is not allowed.
    Action,
    /// The owner was faster in every try.
    Busy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unwritten => "no weights were published for these egresses",
            Self::Dead => "the heartbeat stands still",
            Self::Late => "the deadline has passed",
            Self::NotANumber => "a weight is not a number",
            Self::Infinite => "a weight or their sum is infinite",
            Self::Negative => "a weight is negative",
            Self::AllZero => "all weights are zero",
            Self::Action => "an action is none, or not allowed",
            Self::Busy => "weights are published faster than they can be copied",
        })
    }
}

fn buffer_words(egresses: usize) -> usize {
    BUFFER_HEADER + 2 * egresses
}

fn directory(egresses: usize) -> usize {
    BUFFER + BUFFERS * buffer_words(egresses)
}

/// Where the actions are.
fn actions(egresses: usize) -> usize {
    directory(egresses) + ENTRY * egresses
}

fn words(egresses: usize) -> usize {
    (actions(egresses) + BUFFERS * egresses).next_multiple_of(512)
}

fn publication(memory: &Memory, egresses: usize) -> Publication<'_> {
    let buffers = &memory[BUFFER..directory(egresses)];
    Publication { count: &memory[PUBLISHED], buffers }
}

fn publication_of_actions(memory: &Memory, egresses: usize) -> Publication<'_> {
    let at = actions(egresses);
    Publication { count: &memory[PUBLISHED], buffers: &memory[at..at + BUFFERS * egresses] }
}

/// The side that reads weights.
pub struct Actions {
    memory: Memory,
    file: Option<OwnedFd>,
    egresses: usize,
    /// The heartbeat last seen, and when it was new, ns.
    heartbeat: u64,
    beat_ns: u64,
    /// The words of the actions that came with the weights last read.
    given: Box<[u64]>,
}

impl Actions {
    /// Memory for the weights of these egresses, of which each gets the slot of its place, with
    /// incarnation 1, and for actions of these [kinds](Action::kinds).
    pub fn create(egresses: &[Egress], kinds: u8, epoch_ns: u64) -> Result<Self, Error> {
        check(egresses.len())?;
        let file = create("fenxi-actions", words(egresses.len()))?;
        // Who is handed the file writes through it; nobody opens it anew.
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        seals(&file, SealFlags::empty())?;
        begin(&map_writable(&file)?, egresses, kinds, epoch_ns);
        let memory = map_read_only(&file)?;
        Ok(Self::new(memory, Some(file), egresses.len(), epoch_ns))
    }

    /// Memory of this process, with its writer, for tests.
    pub fn in_memory(egresses: &[Egress], epoch_ns: u64) -> Result<(Self, ActionsWriter), Error> {
        check(egresses.len())?;
        let memory = Memory::heap(words(egresses.len()));
        begin(&memory, egresses, u8::MAX, epoch_ns);
        let writer = ActionsWriter::new(memory.clone())?;
        Ok((Self::new(memory, None, egresses.len(), epoch_ns), writer))
    }

    fn new(memory: Memory, file: Option<OwnedFd>, egresses: usize, epoch_ns: u64) -> Self {
        let given = vec![0; egresses].into();
        Self { memory, file, egresses, heartbeat: 0, beat_ns: epoch_ns, given }
    }

    /// The file, for [`hand_out`](crate::hand_out); `None` for memory of this process.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Puts the weights of `egresses` into `weights`, `None` for an egress that the owner does not
    /// know yet. `now_ns` is of `CLOCK_MONOTONIC`. Call it at least every 100 ms: an owner lives if
    /// its heartbeat changed between calls less than [`SILENCE_MAX_NS`] apart, whatever it says.
    ///
    /// # Errors
    /// Static weights apply. `weights` is then of no use.
    pub fn weights(
        &mut self,
        now_ns: u64,
        egresses: &[Slot],
        weights: &mut [Option<f64>],
    ) -> Result<(), Refusal> {
        let heartbeat = self.memory[HEARTBEAT].load(Ordering::Relaxed);
        if heartbeat != self.heartbeat {
            (self.heartbeat, self.beat_ns) = (heartbeat, now_ns);
        }
        if now_ns.saturating_sub(self.beat_ns) > SILENCE_MAX_NS {
            return Err(Refusal::Dead);
        }
        if heartbeat == 0 {
            return Err(Refusal::Unwritten);
        }
        let publication = publication(&self.memory, self.egresses);
        let with = publication_of_actions(&self.memory, self.egresses);
        let deadline_ns = publication.read_with(&with, |words, given| {
            copy(given, &mut self.given);
            for (slot, weight) in egresses.iter().zip(&mut *weights) {
                *weight = None;
                let index = slot.index as usize;
                if index < self.egresses {
                    let place = BUFFER_HEADER + 2 * index;
                    let incarnation = words[place].load(Ordering::Relaxed);
                    let bits = words[place + 1].load(Ordering::Relaxed);
                    let is_meant = incarnation == u64::from(slot.incarnation);
                    *weight = is_meant.then(|| f64::from_bits(bits));
                }
            }
            words[0].load(Ordering::Relaxed)
        });
        let deadline_ns = deadline_ns.ok_or(Refusal::Busy)?;
        if deadline_ns == 0 {
            return Err(Refusal::Unwritten);
        }
        if deadline_ns <= now_ns {
            return Err(Refusal::Late);
        }
        check_weights(weights.iter().take(egresses.len()).copied().flatten())
    }

    /// Puts the action of each egress, by its slot, into `actions`: those that were published with
    /// the [`weights`](Self::weights) last read. The caller checks what they ask for.
    ///
    /// # Errors
    /// What is there is no action. `actions` is then of no use.
    pub fn actions(&self, actions: &mut [Action]) -> Result<(), Refusal> {
        let are_actions = self.given.iter().zip(actions).all(|(word, action)| {
            let read = Action::from_word(*word);
            *action = read.unwrap_or_default();
            read.is_some()
        });
        are_actions.then_some(()).ok_or(Refusal::Action)
    }
}

fn check(egresses: usize) -> Result<(), Error> {
    let is_valid = (1..=EGRESSES_MAX).contains(&egresses);
    is_valid.then_some(()).ok_or(Error::Schema("egresses must be 1 to 4096"))
}

fn begin(memory: &Memory, egresses: &[Egress], kinds: u8, epoch_ns: u64) {
    let count = egresses.len();
    let at = actions(count) as u64;
    let header =
        [MAGIC, VERSION, words(count) as u64, count as u64, epoch_ns, at, u64::from(kinds)];
    let entries = egresses.iter().flat_map(|egress| {
        let [kind, low, high] = egress.to_words();
        [1, kind, low, high]
    });
    let places = memory[directory(count)..].iter();
    for (word, value) in memory.iter().zip(header).chain(places.zip(entries)) {
        word.store(value, Ordering::Relaxed);
    }
}

fn check_weights(weights: impl Iterator<Item = f64>) -> Result<(), Refusal> {
    let mut sum = None;
    for weight in weights {
        if weight.is_nan() {
            return Err(Refusal::NotANumber);
        }
        if weight < 0.0 {
            return Err(Refusal::Negative);
        }
        sum = Some(sum.unwrap_or(0.0) + weight);
    }
    match sum {
        None => Err(Refusal::Unwritten),
        Some(sum) if sum == f64::INFINITY => Err(Refusal::Infinite),
        Some(0.0) => Err(Refusal::AllZero),
        Some(_) => Ok(()),
    }
}

/// The side that writes weights, in the program that owns them.
pub struct ActionsWriter {
    memory: Memory,
    egresses: usize,
    /// The next buffers.
    image: Vec<u64>,
    actions: Vec<u64>,
}

impl ActionsWriter {
    /// Maps memory that [`receive`](crate::receive) gave.
    pub fn from_fd(file: impl AsFd) -> Result<Self, Error> {
        Self::new(map_writable(file)?)
    }

    fn new(memory: Memory) -> Result<Self, Error> {
        let word = |word: usize| memory[word].load(Ordering::Relaxed);
        if memory.len() <= BUFFER || word(0) != MAGIC {
            return Err(Error::Foreign);
        }
        if word(1) != VERSION {
            return Err(Error::Version(word(1)));
        }
        let egresses = word(3).min(EGRESSES_MAX as u64 + 1) as usize;
        check(egresses)?;
        if words(egresses) > memory.len() {
            return Err(Error::Malformed("more egresses than fit"));
        }
        let (image, actions) = (vec![0; buffer_words(egresses)], vec![0; egresses]);
        Ok(Self { egresses, image, actions, memory })
    }

    /// When the memory was created.
    pub fn epoch_ns(&self) -> u64 {
        self.memory[4].load(Ordering::Relaxed)
    }

    /// The egresses that get weights.
    pub fn egresses(&self) -> impl Iterator<Item = (Slot, Egress)> {
        let entries = self.memory[directory(self.egresses)..].chunks_exact(ENTRY);
        (0..).zip(entries).take(self.egresses).map(|(index, entry)| {
            let word = |at: usize| entry[at].load(Ordering::Relaxed);
            let slot = Slot { index, incarnation: word(0) as u32 };
            (slot, Egress::from_words([word(1), word(2), word(3)]))
        })
    }

    /// Sets a weight, which the next [`publish`](Self::publish) makes known. Slots that the service
    /// does not have are ignored.
    pub fn set(&mut self, slot: Slot, weight: f64) {
        let index = slot.index as usize;
        if index < self.egresses {
            let place = BUFFER_HEADER + 2 * index;
            self.image[place] = slot.incarnation.into();
            self.image[place + 1] = weight.to_bits();
        }
    }

    /// Kinds of actions that count, as [`Action::kinds`] has them.
    pub fn kinds(&self) -> u8 {
        self.memory[KINDS].load(Ordering::Relaxed) as u8
    }

    /// Sets an action, which the next [`publish`](Self::publish) makes known.
    pub fn act(&mut self, slot: Slot, action: Action) {
        if let Some(word) = self.actions.get_mut(slot.index as usize) {
            *word = action.to_word();
        }
    }

    /// Makes all weights and actions known at once, valid until the deadline, and beats.
    pub fn publish(&mut self, deadline_ns: u64) {
        self.image[0] = deadline_ns;
        if self.memory[ACTIONS].load(Ordering::Relaxed) == actions(self.egresses) as u64 {
            publication_of_actions(&self.memory, self.egresses).stage(&self.actions);
        }
        publication(&self.memory, self.egresses).publish(&self.image);
        self.beat();
    }

    /// Says that the owner lives. Due several times per [`SILENCE_MAX_NS`].
    pub fn beat(&mut self) {
        let next = self.memory[HEARTBEAT].load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.memory[HEARTBEAT].store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests;
