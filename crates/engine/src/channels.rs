//! How activations stand in memory.

/// `[rows][places + 2][width]`, the first and the last place zeros, or `[rows][width]`.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    /// Channels without padding.
    pub count: usize,
    pub width: usize,
    /// 0 if there are no places.
    pub places: usize,
    /// Elements of memory that a number takes: 2 where words stand in memory of bytes.
    pub size: usize,
}

impl Channels {
    /// From a place to the next.
    pub fn step(&self) -> usize {
        self.width * self.size
    }

    /// From a row to the next.
    pub fn stride(&self) -> usize {
        if self.places > 0 { (self.places + 2) * self.step() } else { self.step() }
    }

    /// Where the first activation stands.
    pub fn start(&self) -> usize {
        if self.places > 0 { self.step() } else { 0 }
    }

    /// The number of an input of the next layer, if channels are padded. A row of its weights
    /// belongs to each input.
    pub fn padded(&self, input: usize) -> usize {
        input / self.count * self.width + input % self.count
    }
}
