//! Who owns each frame of a receive region: the kernel, the last burst, or a port that sends it on.
//!
//! A frame sent without a copy is lent by its receiving port to a sending one, which returns it
//! once the kernel has sent it. Lending changes one word. Returned frames form a list that any
//! sending port may add to and the receiving one takes as a whole, so neither waits for the other,
//! on any thread.

use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel owns the frame, or is about to.
const KERNEL: u32 = u32::MAX;
/// The frame is in the last burst.
const HELD: u32 = u32::MAX - 1;
/// End of the list of returned frames.
const END: u32 = u32::MAX - 2;
/// Lent to sending port 0; lower values are for the other ports.
const LENT: u32 = u32::MAX - 3;
/// Maximum sending ports.
const SENDERS: u32 = 1 << 16;

/// The frames of a receive region.
#[derive(Debug)]
pub(super) struct Loans {
    /// A frame's owner or, for a returned frame, the next one of the list.
    frames: Box<[AtomicU32]>,
    /// First returned frame.
    returned: AtomicU32,
}

impl Loans {
    /// `frames` frames, all owned by the kernel.
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

    /// Marks a frame as received.
    #[inline]
    pub fn hold(&self, frame: u32) {
        if let Some(word) = self.frames.get(frame as usize) {
            word.store(HELD, Ordering::Relaxed);
        }
    }

    /// Takes a frame from the burst for the kernel; `false` if it was lent.
    #[inline]
    pub fn recycle(&self, frame: u32) -> bool {
        self.change(frame, HELD, KERNEL)
    }

    /// Lends a frame of the burst to sending port `sender`; `false` if it is not in the burst, or
    /// lent.
    #[inline]
    pub fn lend(&self, frame: u32, sender: u16) -> bool {
        self.change(frame, HELD, LENT - u32::from(sender))
    }

    /// A frame has one owner at a time, the burst's thread or its borrower's, so no exchange is
    /// needed.
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

    /// Whether sending port `sender` has the frame.
    #[inline]
    pub fn is_lent(&self, frame: u32, sender: u16) -> bool {
        let word = self.frames.get(frame as usize);
        word.is_some_and(|it| it.load(Ordering::Relaxed) == LENT - u32::from(sender))
    }

    /// Returns the frames of a chain and empties it.
    #[inline]
    pub fn give_back(&self, chain: &mut Chain) {
        let Some((first, last)) = chain.0.take() else {
            return;
        };
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            self.frames[last as usize].store(head, Ordering::Relaxed);
            // Release: the taker of the list sees the links.
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

    /// Takes all returned frames for the kernel.
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

    /// Takes all frames not lent for the kernel; call it after the socket that had them is gone.
    pub fn take_all(&self, mut each: impl FnMut(u32)) {
        self.take_returned(|_| {});
        for (frame, word) in (0..).zip(&self.frames) {
            if [KERNEL, HELD].contains(&word.load(Ordering::Relaxed)) {
                word.store(KERNEL, Ordering::Relaxed);
                each(frame);
            }
        }
    }

    /// Returns all frames lent to `sender`; call it after the socket that had them is gone.
    pub fn give_all_back(&self, sender: u16) {
        let mut chain = Chain::default();
        let lent = (0..self.len()).filter(|frame| self.is_lent(*frame, sender));
        lent.for_each(|frame| chain.add(self, frame));
        self.give_back(&mut chain);
    }
}

/// Frames of one region to be returned together: the first and the last one.
#[derive(Debug, Default)]
pub(super) struct Chain(Option<(u32, u32)>);

impl Chain {
    /// Adds a lent frame.
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
