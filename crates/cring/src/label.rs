//! The label word: one atomic per flow-table entry, by which a label reaches the packets of the flow that asked for it.
//!
//! An entry has many owners over time, and a label takes milliseconds: the flow may be gone when its label comes, and
//! the entry may already be another flow's. So each owner has a *generation*, the number and the label share one word, and
//! a label is written by a compare-exchange that only fits the generation that asked and is still waiting. Anything else
//! is a [`PostMortem`]: counted by the caller and dropped.
//!
//! ```text
//!        begin(g)          pend(g)             decide(g, label)
//!    ──► (g, none) ──────► (g, pending) ─────► (g, class) or (g, unlabelled)
//!            │                  │                    │
//!            └──────────────────┴────────────────────┴──── retire() ──► (g + 1, none)
//! ```
//!
//! Only the owner moves a word except along `decide`, and `decide` starts from pending only. So the owner needs no
//! compare-exchange: out of any other state nobody else moves the word, and out of pending the owner moves it only to
//! another generation, where whether the label came just before makes no difference.
//!
//! The word carries its data in itself, so its own correctness asks for no ordering beyond the atomic's. The stores are
//! Release and the loads Acquire all the same: it is free on x86, and gives the caller promise 6 of the crate's page.

use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// Class numbers are below this: the word keeps 12 bits for them.
pub const CLASSES_MAX: usize = 1 << CLASS_BITS;

/// Generations of models are counted modulo this: the word keeps 8 bits for them.
pub const MODELS_MAX: usize = 1 << MODEL_BITS;

/// Generations of an entry's owners are counted modulo this. A label is mistaken only when it is on its way for so many
/// owners exactly. A flood reuses an entry in each burst at most, and so for 16 s at least, by far longer than the deadline
/// at which a series is given up.
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

// A fresh, zeroed word is generation 0 with no label.
const STATE_NONE: u64 = 0;
const STATE_PENDING: u64 = 1;
const STATE_CLASS: u64 = 2;
const STATE_UNLABELLED: u64 = 3;

const SOURCE_MODEL: u64 = 0;
const SOURCE_CACHE: u64 = 1;
const SOURCE_PORT: u64 = 2;
const SOURCE_RULE: u64 = 3;

/// Who decided a class.
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

/// What is known of a flow's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// The flow has no series yet, so nothing was asked.
    None,
    /// The series is on its way.
    Pending,
    /// The flow's class.
    Class {
        /// Number of the class in the model's list, below [`CLASSES_MAX`].
        class: u16,
        /// The model's confidence, 0 to 65,535 for 0 to 1.
        confidence: u16,
        /// Who decided.
        source: Source,
        /// Generation of the model that said so, below [`MODELS_MAX`]: how often the model had been exchanged.
        model: u16,
    },
    /// The series was shed or its inference failed: a label will never come.
    Unlabelled,
}

/// Why a label found no taker. An ordinary fate, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostMortem {
    /// The flow has ended, its entry is free or another flow's.
    OtherGeneration,
    /// The flow lives but waits for no label: none was asked, or one was there first.
    NotPending,
}

/// One entry's generation and label, together in one atomic of 8 bytes. Zeroed memory is generation 0 with no label.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct LabelWord(AtomicU64);

impl LabelWord {
    const_unless_loom! {
        /// A word of generation 0 without a label.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Owner only: the entry now belongs to a new flow, of this generation (below [`GENERATIONS_MAX`]), which has no series
    /// yet. It must be the one that [`retire`](Self::retire) left, or any at the word's first use.
    #[inline]
    pub fn begin(&self, generation: u32) {
        self.0
            .store(encode(generation, Label::None), Ordering::Release);
    }

    /// Owner only: the flow's series is about to be published. Call it before [`Producer::publish`](crate::Producer::publish),
    /// or the label may come before the question and be refused.
    #[inline]
    pub fn pend(&self, generation: u32) {
        debug_assert_eq!(
            self.read(),
            (generation, Label::None),
            "a flow asks once, and after begin"
        );
        self.0
            .store(encode(generation, Label::Pending), Ordering::Release);
    }

    /// Owner only: the flow's label is this one, and no longer the answer that the word holds. Only where the word waits for
    /// no label: nobody else moves it then.
    #[inline]
    pub fn replace(&self, generation: u32, label: Label) {
        debug_assert!(
            matches!(self.read(), (found, Label::Class { .. } | Label::Unlabelled) if found == generation),
            "only an answer is replaced"
        );
        self.0.store(encode(generation, label), Ordering::Release);
    }

    /// Owner only: the flow has ended. The label is gone, references to it are void, and the next owner's generation
    /// (one more, wrapping) is returned.
    #[inline]
    pub fn retire(&self) -> u32 {
        let (generation, _) = decode(self.0.load(Ordering::Relaxed));
        let next = (generation + 1) % GENERATIONS_MAX;
        // A label may come between the load and the swap: it belonged to the flow that ends here and goes with it.
        // A store would do, but loom 0.7 lets a compare-exchange read past a store that it is not ordered with, which the
        // language forbids; it knows better of a swap. One per flow, its cost does not show.
        self.0.swap(encode(next, Label::None), Ordering::AcqRel);
        next
    }

    /// Analytics side: writes the label if the flow of this generation still waits for one.
    ///
    /// # Errors
    /// [`PostMortem`] when it does not; the word is as it was.
    ///
    /// # Panics
    /// When `label` decides nothing ([`Label::None`], [`Label::Pending`]), or its class is [`CLASSES_MAX`] or more, or its
    /// model [`MODELS_MAX`] or more.
    #[inline]
    pub fn decide(&self, generation: u32, label: Label) -> Result<(), PostMortem> {
        assert!(
            matches!(label, Label::Class { .. } | Label::Unlabelled),
            "{label:?} decides nothing"
        );
        let pending = encode(generation, Label::Pending);
        let decided = encode(generation, label);
        match self
            .0
            .compare_exchange(pending, decided, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(found) if decode(found).0 == generation => Err(PostMortem::NotPending),
            Err(_) => Err(PostMortem::OtherGeneration),
        }
    }

    /// The entry's generation and label, as one.
    #[inline]
    #[must_use]
    pub fn read(&self) -> (u32, Label) {
        decode(self.0.load(Ordering::Acquire))
    }

    /// The label of the flow of this generation; `None` when the entry is another's by now.
    #[inline]
    #[must_use]
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

/// Where the analytics side finds the words of a [`FlowRef`](crate::FlowRef): the flow table's entries.
pub trait Labels: Send + Sync {
    /// The word of a task (0 for the first one) in the entry at `index`. All words of an entry have the same generation.
    ///
    /// # Panics
    /// May panic when the table has no such entry, or its flows no such task.
    fn word(&self, task: u8, index: u32) -> &LabelWord;
}

/// Words of one task without a table around them: for tests and for experiments on the series' walk alone.
impl Labels for Vec<LabelWord> {
    fn word(&self, task: u8, index: u32) -> &LabelWord {
        debug_assert_eq!(task, 0, "these words are of one task");
        &self[index as usize]
    }
}

#[inline]
fn encode(generation: u32, label: Label) -> u64 {
    debug_assert!(
        generation < GENERATIONS_MAX,
        "generation {generation} does not fit"
    );
    let low = match label {
        Label::None => STATE_NONE << STATE_SHIFT,
        Label::Pending => STATE_PENDING << STATE_SHIFT,
        Label::Unlabelled => STATE_UNLABELLED << STATE_SHIFT,
        Label::Class {
            class,
            confidence,
            source,
            model,
        } => {
            assert!(
                usize::from(class) < CLASSES_MAX,
                "class {class} does not fit the label word's {CLASS_BITS} bits"
            );
            assert!(
                usize::from(model) < MODELS_MAX,
                "model {model} does not fit the label word's {MODEL_BITS} bits"
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

    const CLASS: Label = Label::Class {
        class: 4095,
        confidence: 65_535,
        source: Source::Cache,
        model: 255,
    };

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
        assert_eq!(
            word.decide(7, Label::Unlabelled),
            Err(PostMortem::NotPending)
        );
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
        assert_eq!(
            word.decide(GENERATIONS_MAX - 1, CLASS),
            Err(PostMortem::OtherGeneration)
        );
        word.begin(next);
        word.pend(next);
        assert_eq!(
            word.decide(GENERATIONS_MAX - 1, CLASS),
            Err(PostMortem::OtherGeneration)
        );
        assert_eq!(word.read(), (0, Label::Pending));
    }

    #[test]
    #[should_panic(expected = "class 4096 does not fit")]
    fn a_class_must_fit_the_word() {
        let _ = pending(1).decide(
            1,
            Label::Class {
                class: 4096,
                confidence: 0,
                source: Source::Model,
                model: 0,
            },
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
        fn what_is_decided_is_read(generation in 0..GENERATIONS_MAX, class in 0..4096u16, confidence: u16, source in 0..4usize, model in 0..256u16) {
            let source = [Source::Model, Source::Cache, Source::Port, Source::Rule][source];
            let label = Label::Class { class, confidence, source, model };
            let word = pending(generation);
            prop_assert_eq!(word.decide(generation, label), Ok(()));
            prop_assert_eq!(word.read(), (generation, label));
        }
    }
}
