//! A device that does as it is told.

use super::world::{K, Row};
use accel::{Classification, Device, DeviceError, Sizes};
use std::sync::{Arc, Mutex};

/// What devices are probed with. Such batches are not in the log.
pub const PROBE: Row = [777.0; K];

/// One batch as a device got it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub device: usize,
    pub rows: Vec<Row>,
}

impl Batch {
    /// The rows without the padding at the end.
    pub fn series(&self) -> &[Row] {
        let series = self.rows.iter().take_while(|row| **row != [0.0; K]).count();
        let (series, padding) = self.rows.split_at(series);
        assert!(padding.iter().all(|row| *row == [0.0; K]));
        series
    }
}

/// What a device does with one batch.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// Gives the results at the n-th poll, counted from 0.
    Works(usize),
    /// Gives the results after `polls` polls, and `per_row` more for each row.
    Takes {
        polls: f64,
        per_row: f64,
    },
    /// Fails at the n-th poll.
    FailsAtPoll(usize),
    FailsAtSubmit,
    /// The last of the results has no confidence that is a number.
    GivesNan,
    /// There is one result too few.
    GivesTooFew,
    /// The first of the results is of a class that there cannot be.
    GivesNoClass,
}

/// The "model": a class that depends on every number of the row.
pub fn class_of(row: &[f32]) -> u16 {
    class_by(0, row)
}

/// The model of that generation, which agrees with none of the 64 before it.
pub fn class_by(generation: u16, row: &[f32]) -> u16 {
    let sum = row.iter().fold(17.0, |sum: f64, x| (sum * 31.0 + f64::from(*x) + 1e5) % 4001.0);
    sum as u16 + generation % 64
}

pub struct FakeDevice {
    number: usize,
    sizes: Sizes,
    /// One after the other, and again from the start.
    deeds: Vec<Deed>,
    submitted: usize,
    input: Vec<f32>,
    /// Polls still to come and whether it will fail, while a batch is in flight.
    in_flight: Option<(usize, bool)>,
    results: Vec<Classification>,
    log: Arc<Mutex<Vec<Batch>>>,
    generation: u16,
}

impl FakeDevice {
    pub fn new(number: usize, sizes: Sizes, deeds: Vec<Deed>, log: Arc<Mutex<Vec<Batch>>>) -> Self {
        Self {
            number,
            sizes,
            deeds,
            submitted: 0,
            input: Vec::new(),
            in_flight: None,
            results: Vec::new(),
            log,
            generation: 0,
        }
    }

    /// One like it with another model.
    pub fn of_generation(self, generation: u16) -> Self {
        Self { generation, ..self }
    }

    fn error(&self) -> DeviceError {
        DeviceError::Run {
            device: "fake".into(),
            rows: self.results.len(),
            cause: "it was told to".into(),
        }
    }
}

impl Device for FakeDevice {
    fn requested(&self) -> &str {
        "fake"
    }

    fn effective(&self) -> &str {
        "FakeExecutionProvider"
    }

    fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    fn input(&mut self, rows: usize) -> &mut [f32] {
        assert!(self.is_idle());
        // Whatever the task does not write must show.
        self.input.clear();
        self.input.resize(rows * K, f32::NAN);
        &mut self.input
    }

    fn submit(&mut self, rows: usize) -> Result<(), DeviceError> {
        assert!(self.is_idle() && self.sizes.takes(rows) && self.input.len() == rows * K);
        assert!(self.input.iter().all(|x| x.is_finite()));
        let rows: Vec<Row> =
            self.input.chunks_exact(K).map(|row| row.try_into().unwrap()).collect();
        let class = |row: &Row| class_by(self.generation, row);
        let results = rows.iter().map(|row| Classification { class: class(row), confidence: 0.5 });
        self.results = results.collect();
        if rows[0] != PROBE {
            self.log.lock().unwrap().push(Batch { device: self.number, rows });
        }
        let deed = self.deeds[self.submitted % self.deeds.len()];
        self.submitted += 1;
        let last = self.results.len() - 1;
        self.in_flight = Some(match deed {
            Deed::FailsAtSubmit => return Err(self.error()),
            Deed::Works(polls) => (polls, false),
            Deed::Takes { polls, per_row } => {
                ((polls + per_row * self.results.len() as f64).ceil() as usize - 1, false)
            }
            Deed::FailsAtPoll(polls) => (polls, true),
            Deed::GivesNan => {
                self.results[last].confidence = f32::NAN;
                (0, false)
            }
            Deed::GivesTooFew => {
                self.results.truncate(last);
                (0, false)
            }
            Deed::GivesNoClass => {
                self.results[0].class = u16::MAX;
                (0, false)
            }
        });
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<&[Classification], DeviceError>> {
        match self.in_flight? {
            (0, fails) => {
                self.in_flight = None;
                Some(if fails { Err(self.error()) } else { Ok(&self.results) })
            }
            (polls, fails) => {
                self.in_flight = Some((polls - 1, fails));
                None
            }
        }
    }
}
