//! A device that answers when the list of events says so, and a model whose answers say which flow
//! they are for.

use std::sync::{Arc, Mutex, PoisonError};

use accel::{Classification, Device, DeviceError, Sizes};

use crate::events::{K, Reply};

/// Classes of the model.
pub const CLASSES: usize = 250;
/// The model looks at only this many packets of a series, the prefix of the cache. So a label from
/// the cache is right, or it was meant for another flow.
pub const PREFIX: usize = 2;

/// What the server's port says, where ports name flows with their first packets.
pub const BY_PORT: u16 = 7;
/// The confidence of that, and the least of an answer that contradicts it.
pub const PRECISION: u16 = 60_000;
pub const CONTRADICTS: u16 = 30_000;

/// The model of a generation. Class and confidence depend on each of the first packets' lengths,
/// and the classes of two generations never agree; so a label of another flow, or of another model,
/// does not pass for the right one.
pub fn model(generation: u16, lengths: [i32; PREFIX]) -> Classification {
    let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
    for length in lengths {
        hash = (hash ^ length as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^= hash >> 29;
    }
    let class = (hash >> 16) % CLASSES as u64 + 83 * u64::from(generation);
    Classification {
        class: (class % CLASSES as u64) as u16,
        confidence: (hash >> 40 & 0xff) as f32 / 255.0,
    }
}

/// What the test sees and moves of a device.
#[derive(Debug, Default)]
pub struct Bay {
    /// A batch is in flight.
    pub is_busy: bool,
    /// What the device answers at the next look to the batch in flight.
    pub reply: Option<Reply>,
    /// It refuses the next batch.
    pub refuses: bool,
    /// It answers well at every look.
    pub is_willing: bool,
}

/// A bay that a device and the test share.
pub type SharedBay = Arc<Mutex<Bay>>;

/// A look at a bay, also after a panic.
pub fn look<T>(bay: &SharedBay, at: impl FnOnce(&mut Bay) -> T) -> T {
    at(&mut bay.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The device.
pub struct Told {
    bay: SharedBay,
    generation: u16,
    sizes: Sizes,
    input: Vec<f32>,
    results: Vec<Classification>,
}

impl Told {
    /// A device that holds the model of this generation.
    pub fn new(bay: SharedBay, generation: u16, sizes: Sizes) -> Told {
        Told { bay, generation, sizes, input: Vec::new(), results: Vec::new() }
    }

    fn error(&self) -> DeviceError {
        DeviceError::Run {
            device: "told".to_owned(),
            rows: self.results.len(),
            cause: "it was told to fail".to_owned(),
        }
    }
}

impl Device for Told {
    fn requested(&self) -> &str {
        "told"
    }

    fn effective(&self) -> &str {
        "told"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        look(&self.bay, |bay| !bay.is_busy)
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        // What the manager does not write must not look like a length.
        self.input.clear();
        self.input.resize(rows * K, f32::NAN);
        &mut self.input
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        assert!(self.sizes.takes(rows) && self.input.len() == rows * K);
        assert!(self.input.iter().all(|length| length.is_finite()));
        let rows = self.input.chunks_exact(K);
        let answers = rows.map(|row| {
            let lengths = std::array::from_fn(|packet| row[packet] as i32);
            model(self.generation, lengths)
        });
        self.results.clear();
        self.results.extend(answers);
        let refused = look(&self.bay, |bay| {
            assert!(!bay.is_busy, "a second batch");
            let refuses = std::mem::take(&mut bay.refuses);
            (bay.is_busy, bay.reply) = (!refuses, None);
            refuses
        });
        match refused {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        let reply = look(&self.bay, |bay| {
            let willing = bay.is_willing.then_some(Reply::Good);
            let reply = bay.reply.take().or(willing).filter(|_| bay.is_busy)?;
            bay.is_busy = false;
            Some(reply)
        })?;
        let last = self.results.len() - 1;
        match reply {
            Reply::Good => {}
            Reply::Error => return Some(Err(self.error())),
            Reply::Nan => self.results[last].confidence = f32::NAN,
            Reply::TooFew => self.results.truncate(last),
            Reply::NoClass => self.results[0].class = u16::MAX,
        }
        Some(Ok(&self.results))
    }
}
