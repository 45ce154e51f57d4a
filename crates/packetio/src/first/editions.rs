//! What the kernel labels flows by, edition by edition: a network, and how its answers decide.
//!
//! Both are in one map, which the programs of all interfaces share. An update of their `nets` makes
//! the next edition the current one; the last few stay for the flows that began with them. All maps
//! are made at the start, so that a swap needs no rights: the map of the oldest edition takes the
//! next one. The kernel waits until no program reads a map any more that an update replaces.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;

use super::labels;
use super::layout::Reported;
use super::net::{Cause, KernelNetError, NetMap, Nets, fill, net_map, nets, refused};
use crate::burst::FrameAnswer;
use crate::settings::KernelLabels;

/// As in `bpf/net.h`.
const CURRENT: u32 = 0;
const EDITIONS: usize = 4;
/// The first one's number; 0 is none.
const FIRST: u8 = 1;

/// The editions of a run.
pub struct KernelEditions {
    /// What the first one is.
    labels: KernelLabels,
    state: Mutex<State>,
    /// By edition: how often the model had been exchanged.
    generations: [AtomicU8; 256],
}

#[derive(Default)]
struct State {
    /// The maps of each interface's program.
    nets: Vec<Nets>,
    /// The current one's number.
    edition: u8,
    /// By place, and a spare one; empty before the first program is loaded.
    maps: Vec<NetMap>,
}

impl KernelEditions {
    /// These labels are the first edition, of the model that the run starts with.
    pub fn new(labels: KernelLabels) -> KernelEditions {
        KernelEditions {
            labels,
            state: Mutex::default(),
            generations: [const { AtomicU8::new(0) }; 256],
        }
    }

    /// The first edition.
    pub fn first(&self) -> &KernelLabels {
        &self.labels
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a program the first edition before it is loaded.
    pub(super) fn begin(&self, ebpf: &mut Ebpf) -> Result<(), Cause> {
        let mut state = self.state();
        if state.maps.is_empty() {
            let blocks = labels::edition(&self.labels, FIRST)?;
            let maps = (0..=EDITIONS).map(|_| net_map(blocks.len()));
            state.maps = maps.collect::<Result<_, _>>()?;
            fill(&mut state.maps[slot(FIRST)], &blocks)?;
            state.edition = FIRST;
        }
        let mut nets = nets(ebpf)?;
        for place in [CURRENT, place(FIRST)] {
            nets.set(place, &state.maps[slot(FIRST)], 0)?;
        }
        Ok(())
    }

    /// A program that began with the first edition takes part from now on.
    pub(super) fn join(&self, nets: Nets) {
        self.state().nets.push(nets);
    }

    /// Checks whether these labels can be the next edition.
    ///
    /// # Errors
    /// The programs are loaded for others, or the network is larger than their maps; named.
    pub fn check(&self, next: &KernelLabels) -> Result<(), KernelNetError> {
        let first = &self.labels;
        let ks = |labels: &KernelLabels| labels.depths.iter().map(|it| it.k).collect::<Vec<_>>();
        let fixed = [
            (ks(first) == ks(next), "the depths"),
            (first.elements == next.elements, "how many packets it collects"),
            (
                first.reports_at_once == next.reports_at_once,
                "when it reports them, and policy.rules or another task came or went",
            ),
            (first.ports == next.ports, "the labels of ports"),
            (first.is_ports_first == next.is_ports_first, "when ports name flows"),
            (first.marks.is_some() == next.marks.is_some(), "whether there are marks"),
            (first.dscp.is_empty() == next.dscp.is_empty(), "whether there are DSCPs"),
        ];
        if let Some((_, what)) = fixed.iter().find(|(is_same, _)| !is_same) {
            return Err(KernelNetError(format!("the program keeps {what}")));
        }
        let blocks = labels::edition(next, FIRST).map_err(|why| refused(&*why))?.len();
        let room = self.state().maps.first().map_or(blocks, |map| map.len() as usize);
        match blocks <= room {
            true => Ok(()),
            false => Err(KernelNetError(format!(
                "the network takes {blocks} blocks of 64 KiB, and the program has {room}"
            ))),
        }
    }

    /// Makes these labels the current edition, of a model that had been exchanged so often.
    ///
    /// # Errors
    /// The kernel refuses an update, which it never does to checked labels.
    pub fn commit(&self, next: &KernelLabels, generation: u16) -> Result<(), KernelNetError> {
        let mut state = self.state();
        state
            .commit(next, |edition| {
                // Below 256, as the number of editions.
                self.generations[usize::from(edition)].store(generation as u8, Ordering::Release);
            })
            .map_err(|why| refused(&*why))
    }

    /// The answer that came with element `number` of a flow, whose frame is at `at`.
    pub(super) fn answer(
        &self,
        reported: &Reported,
        number: usize,
        at: usize,
    ) -> Option<FrameAnswer> {
        let mut depths = self.labels.depths.iter().zip(&reported.answers);
        let (depth, answer) = depths.find(|(depth, _)| usize::from(depth.k) == number + 1)?;
        let edition = answer >> 24;
        (edition != 0).then(|| FrameAnswer {
            at,
            elements: depth.k,
            class: (answer & 0xff) as u16,
            confidence: (answer >> 8) as u16,
            generation: self.generations[edition as usize].load(Ordering::Acquire).into(),
        })
    }
}

impl State {
    fn commit(&mut self, next: &KernelLabels, note: impl FnOnce(u8)) -> Result<(), Cause> {
        let edition = self.edition.checked_add(1).unwrap_or(FIRST);
        let (slot, spare) = (slot(edition), EDITIONS);
        let Some(map) = self.maps.get_mut(spare) else { return Ok(()) };
        fill(map, &labels::edition(next, edition)?)?;
        note(edition);
        self.edition = edition;
        self.maps.swap(slot, spare);
        // Flows look for their edition behind the current one.
        for place in [place(edition), CURRENT] {
            for nets in &mut self.nets {
                nets.set(place, &self.maps[slot], 0)?;
            }
        }
        Ok(())
    }
}

fn slot(edition: u8) -> usize {
    usize::from(edition) % EDITIONS
}

fn place(edition: u8) -> u32 {
    1 + slot(edition) as u32
}

impl fmt::Debug for KernelEditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelEditions").field("first", &self.labels).finish_non_exhaustive()
    }
}
