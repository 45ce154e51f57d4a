//! Samples of what models were asked, for those who tune them: the series, the answer, and what
//! came behind it.
//!
//! A flow that gives samples is kept no differently than others while it goes on. When it ends, its
//! series are still in the store, its answers in the label words, and what came is known by the
//! truths; only what these do not say is kept here. So sampling costs packets nothing, and no flow
//! is left out for want of room.

use std::io;

use cring::{Label, Series, Source};

use super::Labels;
use crate::config::SeriesShare;
use crate::entry::Counts;
use crate::flows::Flows;
use crate::hash::split_mix;
use crate::ids::DepthId;
use crate::memory::{Array, Zeroed};
use crate::record::{Sample, SampleAnswer};
use crate::series::{Asked, SeriesStore};

/// What is kept of a flow.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Bytes of its reports so far.
    reported: u64,
    /// Live, what the first depth answered, if it did and a deeper depth's label has taken its
    /// place.
    first: [u16; 3],
    /// Whether it has: [`STAYED`], [`ANSWERED`] or [`UNANSWERED`].
    replaced: u16,
}

const STAYED: u16 = 0;
const ANSWERED: u16 = 1;
/// The first depth had no answer: its series was shed, or its batch failed.
const UNANSWERED: u16 = 2;

/// Bytes that a flow takes.
pub(crate) const SAMPLE_BYTES: usize = size_of::<Kept>();
const _: () = assert!(SAMPLE_BYTES == 16);

#[expect(unsafe_code, reason = "a promise about a type of integers")]
mod zeroed {
    // SAFETY: integers only.
    unsafe impl super::Zeroed for super::Kept {}
}

/// Which flows give samples, and what is kept of all for that.
pub(crate) struct Samples {
    share: SeriesShare,
    kept: Array<Kept>,
}

impl Samples {
    /// `None` where no flow gives samples.
    pub fn new(share: SeriesShare, entries: usize) -> io::Result<Option<Samples>> {
        let samples = || Ok(Samples { share, kept: Array::new(entries)? });
        (!share.is_none()).then(samples).transpose()
    }

    pub fn begin(&mut self, index: u32) {
        self.kept[index as usize] = Kept { reported: 0, first: [0; 3], replaced: STAYED };
    }

    /// The flow was reported with these counts.
    pub fn report(&mut self, index: u32, counts: &Counts) {
        let kept = &mut self.kept[index as usize];
        kept.reported = kept.reported.saturating_add(counts.bytes_total());
    }

    /// A deeper depth's label has taken the place of this one, which was the first depth's.
    pub fn replaced(&mut self, index: u32, before: Label) {
        let kept = &mut self.kept[index as usize];
        (kept.first, kept.replaced) = match answer(before) {
            Some(it) => ([it.class, it.confidence, it.model], ANSWERED),
            None => ([0; 3], UNANSWERED),
        };
    }
}

impl Labels {
    /// Whether a flow gives samples: the same in each replay, and nobody can choose it.
    #[inline]
    pub fn is_sampled(&self, flows: &Flows, index: u32) -> bool {
        self.samples.as_ref().is_some_and(|samples| {
            let hash = flows.hash(&flows.entries.hot(index).key(), None);
            let mut state = hash ^ flows.entries.cold(index).first_us as u64;
            samples.share.takes((split_mix(&mut state) >> 48) as u16)
        })
    }

    /// The sample of a flow that ends and a depth; `None` if its model was not asked there.
    pub fn sample(
        &self,
        flows: &Flows,
        store: &SeriesStore,
        (depth, index): (DepthId, u32),
        is_cut: bool,
    ) -> Option<Box<Sample>> {
        let kept = &self.samples.as_ref()?.kept[index as usize];
        let asked_us = self.truths.asked_us(depth, index)?;
        let came = self.truths.came(&flows.entries, depth, index)?;
        let task = self.tasks.of_depth(depth);
        let cold = flows.entries.cold(index);
        let hot = flows.entries.hot(index);
        let ((_, from), (_, to)) = hot.key().ends(hot.is_low_forward());
        let bytes = kept.reported.saturating_add(flows.entries.bytes_total(index));
        let mut sample = Box::new(Sample {
            flow_id: cold.flow_id,
            task,
            depth: self.tasks.k(depth) as u8,
            ports: [from, to],
            began_us: cold.first_us,
            asked_after_us: asked_us.saturating_sub(cold.first_us).max(0) as u64,
            bytes_so_far: bytes.saturating_sub(came.bytes),
            series: Series::default(),
            answer: match kept.replaced {
                ANSWERED if depth == DepthId::FIRST => {
                    let [class, confidence, model] = kept.first;
                    Some(SampleAnswer { class, confidence, model })
                }
                UNANSWERED if depth == DepthId::FIRST => None,
                _ => answer(flows.entries.word(depth, index).read().1),
            },
            came,
            is_cut,
        });
        let is_named_by_port = self.was_named_by_port(flows, task, index);
        let asked = Asked::of(store, flows, index, depth, is_named_by_port);
        asked.read(store, &self.tasks, &mut sample.series);
        Some(sample)
    }
}

/// What a label says, if it is an answer.
fn answer(label: Label) -> Option<SampleAnswer> {
    match label {
        Label::Class { class, confidence, source: Source::Model | Source::Cache, model } => {
            Some(SampleAnswer { class, confidence, model })
        }
        _ => None,
    }
}
