//! How activations stand in memory.

/// `[rows][places + 2][width]`, the first and the last place zeros, or `[rows][width]`.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    /// Channels without padding.
    pub count: usize,
    pub width: usize,
    /// 0 if there are no places.
    pub places: usize,
}

impl Channels {
    /// Numbers from a row to the next.
    pub fn stride(&self) -> usize {
        if self.places > 0 { (self.places + 2) * self.width } else { self.width }
    }

    /// Where the first activation stands.
    pub fn start(&self) -> usize {
        if self.places > 0 { self.width } else { 0 }
    }

    /// Where an input of the next layer stands, if channels are padded. A row of its weights
    /// belongs to each input.
    pub fn padded(&self, input: usize) -> usize {
        input / self.count * self.width + input % self.count
    }
}
