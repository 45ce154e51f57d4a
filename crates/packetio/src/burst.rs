//! A burst: the frames of one receive call and the memory that holds them.
//!
//! Descriptors are stored apart from the bytes: stages walk all descriptors first and touch the
//! bytes later, or only a few of them.

use std::ops::Range;

use crate::first::FlowCounts;

/// One received frame: the place of its bytes in the burst, and what the source says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Offset of the first captured byte in the burst's data.
    pub at: usize,
    /// Bytes captured.
    pub captured: u32,
    /// Bytes on the wire, as the source reports them; usually `>= captured`.
    pub wire: u32,
    /// Microseconds since the epoch, rounded down. Saturates.
    pub time_us: i64,
    /// Nanoseconds beyond `time_us`, 0 to 999. 0 where the source's clock is coarser.
    pub time_sub_ns: u16,
    /// Link type: the low 16 bits of the `LINKTYPE_` number.
    pub link: u16,
    /// Number of the interface within the source. Saturates.
    pub interface: u16,
    /// The hash computed by the network card, if any.
    pub rss: Option<u32>,
    /// How packets were merged into this frame, if they were.
    pub gso: Gso,
}

/// How packets were merged (by GRO, LRO or TSO) into a frame: payload bytes of each part but the
/// last (`gso_size`), and whether the parts are UDP datagrams (`gso_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gso(u16);

impl Gso {
    /// One packet.
    pub const NONE: Gso = Gso(0);
    /// Several packets of unknown lengths.
    pub const UNKNOWN: Gso = Gso(Gso::SIZE);

    const SIZE: u16 = 0x7fff;
    const UDP: u16 = 0x8000;

    /// Parts with `size` payload bytes each; a size of 0 or above 15 bits becomes unknown.
    pub const fn new(size: u16, is_udp: bool) -> Gso {
        let size = if size == 0 || size > Gso::SIZE { Gso::SIZE } else { size };
        Gso(size | if is_udp { Gso::UDP } else { 0 })
    }

    /// Whether it is one packet.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// 0: one packet. Otherwise bits 0 to 14 are the size (all set: unknown), and bit 15 marks UDP.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// The answer of the kernel's network about a flow's packets up to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAnswer {
    /// [`Frame::at`] of that frame.
    pub at: usize,
    /// Packets with payload that the kernel had seen of the flow.
    pub elements: u8,
    /// Number of the class.
    pub class: u16,
    /// Its probability in Q15: 32,768 is 1.
    pub confidence: u16,
    /// How often the model had been exchanged.
    pub generation: u16,
}

// A burst's descriptors are walked several times, so their size matters.
const _: () = assert!(size_of::<Frame>() == 40);

impl Frame {
    /// The captured bytes' range in the burst's data.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.captured as usize
    }
}

/// The memory that holds a burst's frames.
#[derive(Debug)]
enum Memory<'a> {
    Slice(&'a mut [u8]),
    /// Memory of a DPDK device, which another device may transmit.
    #[cfg(feature = "dpdk")]
    Lent(dpdk::Lent<'a>),
}

impl<'a> Memory<'a> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Slice(data) => data,
            #[cfg(feature = "dpdk")]
            Memory::Lent(lent) => lent.bytes(),
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Slice(data) => data,
            #[cfg(feature = "dpdk")]
            Memory::Lent(lent) => lent.bytes_mut(),
        }
    }

    /// The frames no longer match the device's packets one to one, so it cannot pass them on.
    #[cfg(feature = "dpdk")]
    fn forget_packets(&mut self) {
        *self = match std::mem::replace(self, Memory::Slice(&mut [])) {
            Memory::Lent(lent) => Memory::Slice(lent.into_bytes()),
            slice @ Memory::Slice(_) => slice,
        };
    }
}

/// Frames received together, valid until the port's next receive call.
#[derive(Debug)]
pub struct Burst<'a> {
    memory: Memory<'a>,
    frames: &'a [Frame],
    counts: &'a [FlowCounts],
    answers: &'a [FrameAnswer],
    /// Whether each frame is preceded by a `virtio_net_hdr`, which says how to split a merged
    /// packet. Only the backend that wrote it reads it.
    has_offload: bool,
}

impl<'a> Burst<'a> {
    /// A burst of `frames`, each of which lies inside `data`.
    pub fn new(data: &'a mut [u8], frames: &'a [Frame]) -> Self {
        debug_assert!(frames.iter().all(|frame| frame.range().end <= data.len()));
        Self { memory: Memory::Slice(data), frames, counts: &[], answers: &[], has_offload: false }
    }

    /// A burst in a device's memory; frame i is the device's packet i.
    #[cfg(feature = "dpdk")]
    pub(crate) fn lent(lent: dpdk::Lent<'a>, frames: &'a [Frame]) -> Self {
        Self { memory: Memory::Lent(lent), frames, counts: &[], answers: &[], has_offload: false }
    }

    /// The device's packets, if a device owns the memory.
    #[cfg(feature = "dpdk")]
    pub(crate) fn as_lent(&self) -> Option<&dpdk::Lent<'a>> {
        match &self.memory {
            Memory::Slice(_) => None,
            Memory::Lent(lent) => Some(lent),
        }
    }

    /// Marks that a `virtio_net_hdr` precedes each frame.
    pub(crate) fn with_offload(self) -> Self {
        Self { has_offload: true, ..self }
    }

    /// Adds the kernel's counts of flows whose packets it does not hand out, and its network's
    /// answers.
    pub(crate) fn with_kernel(self, counts: &'a [FlowCounts], answers: &'a [FrameAnswer]) -> Self {
        Self { counts, answers, ..self }
    }

    /// What the kernel's network answered about flows up to some of the frames, in their order.
    pub fn answers(&self) -> &'a [FrameAnswer] {
        self.answers
    }

    /// The kernel's counts by flow, taken after the burst's frames, with which these flows may
    /// begin.
    pub fn counts(&self) -> &'a [FlowCounts] {
        self.counts
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames, in the order in which they were received.
    pub fn frames(&self) -> &[Frame] {
        self.frames
    }

    /// The captured bytes of frame `i`. Panics, like an index, if there is no such frame.
    #[inline]
    pub fn bytes(&self, i: usize) -> &[u8] {
        &self.memory.bytes()[self.frames[i].range()]
    }

    /// The `virtio_net_hdr` (`N` bytes) in front of frame `i`, if the burst has any.
    pub(crate) fn offload<const N: usize>(&self, i: usize) -> Option<&[u8; N]> {
        if !self.has_offload {
            return None;
        }
        self.memory.bytes()[..self.frames[i].at].last_chunk()
    }

    /// The captured bytes of frame `i`, mutable. Panics, like an index, if there is no such frame
    /// or the burst was sent on to a device that still reads its memory.
    #[inline]
    pub fn bytes_mut(&mut self, i: usize) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.frames[i].range()]
    }

    /// The memory of all frames (empty if a device still reads it), and the frames.
    #[inline]
    pub fn parts(&mut self) -> (&mut [u8], &'a [Frame]) {
        (self.memory.bytes_mut(), self.frames)
    }

    /// Reduces the burst to `frames`, for a wrapper that drops or changes some.
    pub(crate) fn keep(&mut self, frames: &'a [Frame]) {
        self.frames = frames;
        #[cfg(feature = "dpdk")]
        self.memory.forget_packets();
    }

    /// The memory of all frames.
    pub(crate) fn memory(&self) -> &[u8] {
        self.memory.bytes()
    }
}
