//! The label word: an atomic per flow-table entry that takes a label to the packets of its flow.
//!
//! An entry has many owners over time, and a label takes milliseconds: meanwhile the flow may end,
//! and another flow may own the entry. So each owner has a *generation*; generation and label share
//! one word, and a label is written by a compare-exchange that only succeeds for the generation
//! that asked and still waits. Any other label is a [`PostMortem`], which the caller counts and
//! drops.
//!
//! ```text
//!        begin(g)          pend(g)             decide(g, label)
//!    ──► (g, none) ──────► (g, pending) ─────► (g, class) or (g, unlabelled)
//!            │                  │                    │
//!            └──────────────────┴────────────────────┴──── retire() ──► (g + 1, none)
//! ```
//!
//! Only the owner moves a word, except by `decide`, which starts from pending only. So the owner
//! needs no compare-exchange: in any other state nobody else moves the word, and from pending the
//! owner only moves it to another generation, where a label just before makes no difference.
//!
//! The word contains all its data, so its own correctness needs only atomicity. Stores are Release
//! and loads Acquire nevertheless: that is free on x86 and gives promise 6 of the crate's page.

use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// Class numbers are below this: 12 bits of the word.
pub const CLASSES_MAX: usize = 1 << CLASS_BITS;

/// Model generations are counted modulo this: 8 bits of the word.
pub const MODELS_MAX: usize = 1 << MODEL_BITS;

/// Owner generations are counted modulo this. A label is mistaken only if it is under way for
/// exactly this number of owners. A flood reuses an entry at most once per burst, so that takes at
/// least 16 s, far longer than the deadline of a series.
pub const GENERATIONS_MAX: u32 = 1 << GENERATION_BITS;

// From the top: generation 24, model 8, state 2, source 2, class 12, confidence 16.
const CONFIDENCE_BITS: u32 = 16;
const CLASS_BITS: u32 = 12;
const MODEL_BITS: u32 = 8;
const GENERATION_BITS: u32 = 24;
const CLASS_SHIFT: u32 = CONFIDENCE_BITS;
const SOURCE_SHIFT: u32 = CLASS_SHIFT + CLASS_BITS;
const STATE_SHIFT: u32 = SOURCE_SHIFT + 2;
const MODEL_SHIFT: u32 = STATE_SHIFT + 2;
const GENERATION_SHIFT: u32 = MODEL_SHIFT + MODEL_BITS;
const _: () = assert!(GENERATION_SHIFT + GENERATION_BITS == 64);

// A zeroed word is generation 0 without a label.
const STATE_NONE: u64 = 0;
const STATE_PENDING: u64 = 1;
const STATE_CLASS: u64 = 2;
const STATE_UNLABELLED: u64 = 3;

const SOURCE_MODEL: u64 = 0;
const SOURCE_CACHE: u64 = 1;
const SOURCE_PORT: u64 = 2;
const SOURCE_RULE: u64 = 3;

/// Origin of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The model ran on this flow's series.
    Model,
    /// An earlier series had the same prefix.
    Cache,
    /// The port of the flow's server; the model may contradict it, see [`resolve`](crate::resolve).
    Port,
    /// A rule.
    Rule,
}

/// The state of a flow's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// No series yet: nothing was asked.
    None,
    /// The series is being classified.
    Pending,
    /// The flow's class.
    Class {
        /// Number of the class in the model's list, below [`CLASSES_MAX`].
        class: u16,
        /// The model's confidence, 0 to 65,535 for 0 to 1.
        confidence: u16,
        /// Its origin.
        source: Source,
        /// Generation of the model, below [`MODELS_MAX`]: how often it had been exchanged.
        model: u16,
    },
    /// The series was shed or its inference failed: no label will come.
    Unlabelled,
}

/// A share from 0 to 1 as label words hold it.
#[inline]
pub fn in_words(share: f32) -> u16 {
    // To the nearest; a cast from float cuts off and saturates.
    (share * f32::from(u16::MAX) + 0.5) as u16
}

/// Why a label was not written; to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostMortem {
    /// The flow has ended.
    OtherGeneration,
    /// The flow waits for no label: none was asked, or one came first.
    NotPending,
}

/// An entry's generation and label in one atomic of 8 bytes. Zeroed memory is generation 0 without
/// a label.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct LabelWord(AtomicU64);

impl LabelWord {
    const_unless_loom! {
        /// Generation 0 without a label.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Owner only: assigns the entry to a new flow without a series, of this generation (below
    /// [`GENERATIONS_MAX`]): the one returned by [`retire`](Self::retire), or any at first use.
    #[inline]
    pub fn begin(&self, generation: u32) {
        self.0.store(encode(generation, Label::None), Ordering::Release);
    }

    /// Owner only: marks the series as pending. Call it before
    /// [`Producer::publish`](crate::Producer::publish), or the label may come too early and be
    /// refused.
    #[inline]
    pub fn pend(&self, generation: u32) {
        debug_assert_eq!(
            self.read(),
            (generation, Label::None),
            "a flow asks once, and after begin"
        );
        self.0.store(encode(generation, Label::Pending), Ordering::Release);
    }

    /// Owner only: replaces an answer by `label`. The word must not be pending, so that nobody else
    /// moves it.
    #[inline]
    pub fn replace(&self, generation: u32, label: Label) {
        debug_assert!(
            matches!(
                self.read(),
                (found, Label::Class { .. } | Label::Unlabelled) if found == generation
            ),
            "only an answer is replaced"
        );
        self.0.store(encode(generation, label), Ordering::Release);
    }

    /// Owner only: the flow has ended. Clears the label, invalidates references, and returns the
    /// next owner's generation (one more, wrapping).
    #[inline]
    pub fn retire(&self) -> u32 {
        let (generation, label) = decode(self.0.load(Ordering::Relaxed));
        let next = (generation + 1) % GENERATIONS_MAX;
        let word = encode(next, Label::None);
        if label == Label::None {
            // Nobody was asked: most flows are short. A swap waits for all that was written before.
            self.0.store(word, Ordering::Release);
        } else {
            // A label between load and swap belonged to the ended flow and is dropped. A store
            // would do, but loom 0.7 lets a compare-exchange read past an unordered store, which
            // the language forbids; with a swap it does not.
            self.0.swap(word, Ordering::AcqRel);
        }
        next
    }

    /// Analytics side: writes the label if the flow of this generation still waits for one.
    ///
    /// # Errors
    /// [`PostMortem`] if it does not; the word is unchanged.
    ///
    /// # Panics
    /// `label` is [`Label::None`] or [`Label::Pending`], its class is not below [`CLASSES_MAX`], or
    /// its model not below [`MODELS_MAX`].
    #[inline]
    pub fn decide(&self, generation: u32, label: Label) -> Result<(), PostMortem> {
        assert!(
            matches!(label, Label::Class { .. } | Label::Unlabelled),
            "{label:?} decides nothing"
        );
        let pending = encode(generation, Label::Pending);
        let decided = encode(generation, label);
        match self.0.compare_exchange(pending, decided, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(found) if decode(found).0 == generation => Err(PostMortem::NotPending),
            Err(_) => Err(PostMortem::OtherGeneration),
        }
    }

    /// The entry's generation and label.
    #[inline]
    pub fn read(&self) -> (u32, Label) {
        decode(self.0.load(Ordering::Acquire))
    }

    /// The label of the flow of this generation; `None` if another flow owns the entry.
    #[inline]
    pub fn label(&self, generation: u32) -> Option<Label> {
        let (found, label) = self.read();
        (found == generation).then_some(label)
    }
}

impl Default for LabelWord {
    fn default() -> Self {
        Self::new()
    }
}

/// Finds the words of a [`FlowRef`](crate::FlowRef): the flow table's entries.
pub trait Labels: Send + Sync {
    /// The label word of number `task` in the entry at `index`. All words of an entry have the same
    /// generation.
    ///
    /// # Panics
    /// May panic when the table has no such entry, or its flows no such task.
    fn word(&self, task: u8, index: u32) -> &LabelWord;
}

/// Words of one task without a table, for tests and experiments.
impl Labels for Vec<LabelWord> {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        debug_assert_eq!(task, 0, "these words are of one task");
        &self[index as usize]
    }
}

#[inline]
fn encode(generation: u32, label: Label) -> u64 {
    debug_assert!(generation < GENERATIONS_MAX, "generation {generation} does not fit");
    let low = match label {
        Label::None => STATE_NONE << STATE_SHIFT,
        Label::Pending => STATE_PENDING << STATE_SHIFT,
        Label::Unlabelled => STATE_UNLABELLED << STATE_SHIFT,
        Label::Class { class, confidence, source, model } => {
            assert!(
                usize::from(class) < CLASSES_MAX,
                "class {class} does not fit {CLASS_BITS} bits"
            );
            assert!(
                usize::from(model) < MODELS_MAX,
                "model {model} does not fit {MODEL_BITS} bits"
            );
            let source = match source {
                Source::Model => SOURCE_MODEL,
                Source::Cache => SOURCE_CACHE,
                Source::Port => SOURCE_PORT,
                Source::Rule => SOURCE_RULE,
            };
            STATE_CLASS << STATE_SHIFT
                | u64::from(model) << MODEL_SHIFT
                | source << SOURCE_SHIFT
                | u64::from(class) << CLASS_SHIFT
                | u64::from(confidence)
        }
    };
    u64::from(generation) << GENERATION_SHIFT | low
}

#[inline]
fn decode(word: u64) -> (u32, Label) {
    let label = match word >> STATE_SHIFT & 3 {
        STATE_NONE => Label::None,
        STATE_PENDING => Label::Pending,
        STATE_UNLABELLED => Label::Unlabelled,
        _ => Label::Class {
            class: (word >> CLASS_SHIFT) as u16 & (CLASSES_MAX - 1) as u16,
            confidence: word as u16,
            source: match word >> SOURCE_SHIFT & 3 {
                SOURCE_MODEL => Source::Model,
                SOURCE_CACHE => Source::Cache,
                SOURCE_PORT => Source::Port,
                _ => Source::Rule,
            },
            model: (word >> MODEL_SHIFT) as u16 & (MODELS_MAX - 1) as u16,
        },
    };
    ((word >> GENERATION_SHIFT) as u32, label)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLASS: Label =
        Label::Class { class: 4095, confidence: 65_535, source: Source::Cache, model: 255 };

    fn pending(generation: u32) -> LabelWord {
        let word = LabelWord::new();
        word.begin(generation);
        word.pend(generation);
        word
    }

    #[test]
    fn a_word_walks_through_its_states() {
        let word = LabelWord::new();
        assert_eq!(word.read(), (0, Label::None));
        word.begin(7);
        assert_eq!(word.read(), (7, Label::None));
        word.pend(7);
        assert_eq!(word.read(), (7, Label::Pending));
        assert_eq!(word.decide(7, CLASS), Ok(()));
        assert_eq!(word.label(7), Some(CLASS));
        assert_eq!(word.retire(), 8);
        assert_eq!(word.read(), (8, Label::None));
        assert_eq!(word.label(7), None);
    }

    #[test]
    fn an_answer_is_replaced_by_its_owner() {
        let word = pending(7);
        assert_eq!(word.decide(7, Label::Unlabelled), Ok(()));
        word.replace(7, CLASS);
        assert_eq!(word.read(), (7, CLASS));
        assert_eq!(word.decide(7, Label::Unlabelled), Err(PostMortem::NotPending));
    }

    #[test]
    fn a_label_is_refused_where_none_is_awaited() {
        let word = LabelWord::new();
        word.begin(7);
        assert_eq!(word.decide(7, CLASS), Err(PostMortem::NotPending));
        word.pend(7);
        assert_eq!(word.decide(7, Label::Unlabelled), Ok(()));
        assert_eq!(word.decide(7, CLASS), Err(PostMortem::NotPending));
        assert_eq!(word.read(), (7, Label::Unlabelled));
    }

    #[test]
    fn a_label_for_the_last_owner_is_refused_by_the_next() {
        let word = pending(GENERATIONS_MAX - 1);
        let next = word.retire();
        assert_eq!(next, 0, "generations wrap");
        assert_eq!(word.decide(GENERATIONS_MAX - 1, CLASS), Err(PostMortem::OtherGeneration));
        word.begin(next);
        word.pend(next);
        assert_eq!(word.decide(GENERATIONS_MAX - 1, CLASS), Err(PostMortem::OtherGeneration));
        assert_eq!(word.read(), (0, Label::Pending));
    }

    #[test]
    #[should_panic(expected = "class 4096 does not fit")]
    fn a_class_must_fit_the_word() {
        let _ = pending(1).decide(
            1,
            Label::Class { class: 4096, confidence: 0, source: Source::Model, model: 0 },
        );
    }

    #[test]
    #[should_panic(expected = "Pending decides nothing")]
    fn pending_is_no_decision() {
        let _ = pending(1).decide(1, Label::Pending);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_decided_is_read(
            generation in 0..GENERATIONS_MAX,
            class in 0..4096u16,
            confidence: u16,
            source in 0..4usize,
            model in 0..256u16,
        ) {
            let source = [Source::Model, Source::Cache, Source::Port, Source::Rule][source];
            let label = Label::Class { class, confidence, source, model };
            let word = pending(generation);
            prop_assert_eq!(word.decide(generation, label), Ok(()));
            prop_assert_eq!(word.read(), (generation, label));
        }
    }
}
