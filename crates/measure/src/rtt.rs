//! Round trips, summed up.

/// Round trips of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rtt {
    /// How many were measured.
    pub samples: u32,
    /// The shortest, µs.
    pub min_us: u32,
    /// The longest, µs.
    pub max_us: u32,
    /// Eight times the smoothed one, µs.
    smoothed_8: u32,
}

impl Rtt {
    /// Adds one; a time that runs backwards is none.
    pub fn add(&mut self, took_us: i64) {
        if took_us < 0 {
            return;
        }
        let took = took_us.min(i64::from(u32::MAX >> 3)) as u32;
        if self.samples == 0 {
            (self.min_us, self.max_us, self.smoothed_8) = (took, took, took * 8);
        }
        self.samples = self.samples.saturating_add(1);
        self.min_us = self.min_us.min(took);
        self.max_us = self.max_us.max(took);
        // RFC 6298 §2.3, alpha = 1/8.
        self.smoothed_8 = self.smoothed_8 - self.smoothed_8 / 8 + took;
    }

    /// The smoothed one (RFC 6298 §2), µs.
    pub fn smoothed_us(&self) -> u32 {
        self.smoothed_8 / 8
    }
}
