//! A random number generator that repeats: the same seed gives the same sequence (xorshift64*,
//! Marsaglia 2003 and Vigna 2016).

/// The generator; not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform from 0 to below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Uniform from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts things in random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for place in (1..things.len()).rev() {
            let other = self.below(place as u32 + 1) as usize;
            things.swap(place, other);
        }
    }

    /// The time to the next event of a Poisson process with `rate` events per unit of time.
    pub fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.share()).ln() / rate
    }
}

/// Things drawn with the chances that their weights are.
#[derive(Clone, Debug)]
pub struct Lot<T> {
    things: Vec<T>,
    /// The sum of all weights up to and with each.
    sums: Vec<f64>,
}

impl<T: Copy> Lot<T> {
    pub fn new(weighted: impl IntoIterator<Item = (T, f64)>) -> Lot<T> {
        let (mut things, mut sums, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for (thing, weight) in weighted {
            sum += weight;
            things.push(thing);
            sums.push(sum);
        }
        Lot { things, sums }
    }

    /// One of them; `None` of none.
    pub fn draw(&self, rng: &mut Rng) -> Option<T> {
        let at = rng.share() * self.sums.last()?;
        let place = self.sums.partition_point(|sum| *sum <= at);
        self.things.get(place.min(self.things.len() - 1)).copied()
    }
}
