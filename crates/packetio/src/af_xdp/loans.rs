//! Who has each frame of a receive region: the kernel, the burst that was received last, or a port that sends it on.
//!
//! A frame that is sent without a copy is lent by its receiving port to a sending one, which gives it back when the kernel has
//! sent it. Lending changes one word; frames that come back form a list that any sending port may add to and the
//! receiving one takes as a whole, so neither waits for the other, on whatever thread it is.

use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel has the frame, or it is about to get it.
const KERNEL: u32 = u32::MAX;
/// The frame is in the burst that was received last.
const HELD: u32 = u32::MAX - 1;
/// The end of the list of frames that came back.
const END: u32 = u32::MAX - 2;
/// Lent to the sending port of number 0; those of others are below.
const LENT: u32 = u32::MAX - 3;
/// Sending ports, at most.
const SENDERS: u32 = 1 << 16;

/// The frames of a receive region.
#[derive(Debug)]
pub(super) struct Loans {
    /// Who has a frame; of one that came back, the next one of the list.
    frames: Box<[AtomicU32]>,
    /// The first frame of the list.
    returned: AtomicU32,
}

impl Loans {
    /// So many frames, all of them the kernel's.
    pub fn new(frames: u32) -> Loans {
        debug_assert!(frames < LENT - SENDERS);
        Loans {
            frames: (0..frames).map(|_| AtomicU32::new(KERNEL)).collect(),
            returned: AtomicU32::new(END),
        }
    }

    /// Frames in the region.
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// A frame was received.
    #[inline]
    pub fn hold(&self, frame: u32) {
        if let Some(word) = self.frames.get(frame as usize) {
            word.store(HELD, Ordering::Relaxed);
        }
    }

    /// Takes a frame out of the burst for the kernel; `false` if it was lent meanwhile.
    #[inline]
    pub fn recycle(&self, frame: u32) -> bool {
        self.change(frame, HELD, KERNEL)
    }

    /// Lends a frame of the burst to the sending port of this number; `false` if it is not in the burst, or was lent.
    #[inline]
    pub fn lend(&self, frame: u32, sender: u16) -> bool {
        self.change(frame, HELD, LENT - u32::from(sender))
    }

    /// One thread at a time owns a frame: the burst's until it is lent, then its borrower's. So no exchange is needed.
    #[inline]
    fn change(&self, frame: u32, from: u32, to: u32) -> bool {
        let Some(word) = self.frames.get(frame as usize) else {
            return false;
        };
        let is_so = word.load(Ordering::Relaxed) == from;
        if is_so {
            word.store(to, Ordering::Relaxed);
        }
        is_so
    }

    /// Whether the sending port of this number has the frame.
    #[inline]
    pub fn is_lent(&self, frame: u32, sender: u16) -> bool {
        let word = self.frames.get(frame as usize);
        word.is_some_and(|it| it.load(Ordering::Relaxed) == LENT - u32::from(sender))
    }

    /// A sending port gives the frames of a chain back, which is empty then.
    #[inline]
    pub fn give_back(&self, chain: &mut Chain) {
        let Some((first, last)) = chain.0.take() else {
            return;
        };
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            self.frames[last as usize].store(head, Ordering::Relaxed);
            // Release: whoever takes the list sees the links.
            match self.returned.compare_exchange_weak(
                head,
                first,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all frames that came back, for the kernel.
    #[inline]
    pub fn take_returned(&self, mut each: impl FnMut(u32)) {
        if self.returned.load(Ordering::Relaxed) == END {
            return;
        }
        let mut frame = self.returned.swap(END, Ordering::Acquire);
        while let Some(word) = self.frames.get(frame as usize) {
            each(frame);
            frame = word.swap(KERNEL, Ordering::Relaxed);
        }
    }

    /// All frames that no sending port has, for the kernel: after the socket that had them is gone.
    pub fn take_all(&self, mut each: impl FnMut(u32)) {
        self.take_returned(|_| {});
        for (frame, word) in (0..).zip(&self.frames) {
            if [KERNEL, HELD].contains(&word.load(Ordering::Relaxed)) {
                word.store(KERNEL, Ordering::Relaxed);
                each(frame);
            }
        }
    }

    /// The sending port of this number gives back all it has: after the socket that had them is gone.
    pub fn give_all_back(&self, sender: u16) {
        let mut chain = Chain::default();
        let lent = (0..self.len()).filter(|frame| self.is_lent(*frame, sender));
        lent.for_each(|frame| chain.add(self, frame));
        self.give_back(&mut chain);
    }
}

/// Frames of one region to be given back together: the first and the last one.
#[derive(Debug, Default)]
pub(super) struct Chain(Option<(u32, u32)>);

impl Chain {
    /// Adds a frame that was lent.
    #[inline]
    pub fn add(&mut self, loans: &Loans, frame: u32) {
        match &mut self.0 {
            Some((_, last)) => {
                loans.frames[*last as usize].store(frame, Ordering::Relaxed);
                *last = frame;
            }
            None => self.0 = Some((frame, frame)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(loans: &Loans) -> Vec<u32> {
        let mut frames = Vec::new();
        loans.take_returned(|frame| frames.push(frame));
        frames
    }

    #[test]
    fn a_frame_is_lent_once_and_comes_back_once() {
        let loans = Loans::new(8);
        assert!(!loans.lend(3, 0), "the kernel has it");
        for frame in 2..6 {
            loans.hold(frame);
        }
        assert!(loans.lend(3, 0) && loans.lend(4, 1) && loans.lend(5, 0));
        assert!(!loans.lend(3, 1) && !loans.recycle(3) && !loans.lend(99, 0));
        assert!(loans.recycle(2) && !loans.recycle(2));
        assert_eq!(returned(&loans), []);
        let (mut one, mut two) = (Chain::default(), Chain::default());
        one.add(&loans, 3);
        one.add(&loans, 5);
        two.add(&loans, 4);
        loans.give_back(&mut one);
        loans.give_back(&mut one);
        loans.give_back(&mut two);
        assert_eq!(returned(&loans), [4, 3, 5]);
        assert_eq!(returned(&loans), []);
        loans.hold(3);
        assert!(loans.lend(3, 7) && loans.is_lent(3, 7) && !loans.is_lent(3, 6));
    }

    #[test]
    fn after_a_socket_is_gone_each_side_takes_what_it_had() {
        let loans = Loans::new(6);
        (0..4).for_each(|frame| loans.hold(frame));
        assert!(loans.lend(0, 0) && loans.lend(1, 1));
        let mut chain = Chain::default();
        chain.add(&loans, 1);
        loans.give_back(&mut chain);
        let mut all = Vec::new();
        loans.take_all(|frame| all.push(frame));
        assert_eq!(all, [1, 2, 3, 4, 5], "the sending port still has 0");
        loans.give_all_back(1);
        assert_eq!(returned(&loans), []);
        loans.give_all_back(0);
        assert_eq!(returned(&loans), [0]);
    }

    #[test]
    fn frames_come_back_from_several_threads() {
        let loans = Loans::new(3000);
        (0..3000).for_each(|frame| loans.hold(frame));
        std::thread::scope(|scope| {
            for sender in 0..3_u16 {
                let loans = &loans;
                scope.spawn(move || {
                    for frame in (u32::from(sender)..3000).step_by(3) {
                        assert!(loans.lend(frame, sender));
                        let mut chain = Chain::default();
                        chain.add(loans, frame);
                        loans.give_back(&mut chain);
                    }
                });
            }
            let mut seen = vec![false; 3000];
            let mut count = 0;
            while count < 3000 {
                loans.take_returned(|frame| {
                    assert!(!std::mem::replace(&mut seen[frame as usize], true));
                    count += 1;
                });
                std::thread::yield_now();
            }
        });
    }
}
