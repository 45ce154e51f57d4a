//! Golden samples: inputs that come with a bundle, and the outputs that every device must give for
//! them.

use std::path::Path;

use super::error::BundleError;
use crate::device::{Shape, is_probability};

/// Golden samples: as many outputs as inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Golden {
    /// Rows of channels × K values: the series in `golden/inputs.csv`.
    pub inputs: Vec<Vec<f32>>,
    /// The context that belongs to each row of `inputs`: the last values of its line in
    /// `golden/inputs.csv`. The rows are empty for a model without context.
    pub contexts: Vec<Vec<f32>>,
    /// Rows of one probability per output column, as in `golden/outputs.csv`.
    pub outputs: Vec<Vec<f32>>,
}

impl Golden {
    /// Fills a device's input with the samples, over and over.
    pub(crate) fn fill(&self, input: &mut [f32], context: &mut [f32]) {
        for (buffer, samples) in [(input, &self.inputs), (context, &self.contexts)] {
            for (to, from) in buffer.iter_mut().zip(samples.iter().flatten().cycle()) {
                *to = *from;
            }
        }
    }

    /// Parses the two files, given as path and text. They have one sample per line, numbers
    /// separated by commas, and no header. A line of inputs has the series, then the context.
    pub(crate) fn parse(
        inputs: (&Path, &str),
        outputs: (&Path, &str),
        shape: Shape,
    ) -> Result<Self, BundleError> {
        let meaning = match shape.context {
            0 => "channels × K",
            _ => "channels × K, then the context",
        };
        let width = shape.row_len() + shape.context;
        let mut series = rows(inputs, width, meaning, f32::is_finite)?;
        let contexts = series.iter_mut().map(|row| row.split_off(shape.row_len()));
        let golden = Self {
            contexts: contexts.collect(),
            inputs: series,
            outputs: rows(outputs, shape.classes, "one per label", is_probability)?,
        };
        let (given, expected) = (golden.outputs.len(), golden.inputs.len());
        if given != expected {
            let problem = format!("{given} rows, but {} has {expected}", inputs.0.display());
            return Err(refused(outputs.0, given.max(1), &problem));
        }
        Ok(golden)
    }
}

fn rows(
    (path, text): (&Path, &str),
    width: usize,
    meaning: &str,
    holds: fn(f32) -> bool,
) -> Result<Vec<Vec<f32>>, BundleError> {
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut row = Vec::with_capacity(width);
        for field in line.split(',') {
            match field.trim().parse::<f32>() {
                Ok(value) if holds(value) => row.push(value),
                _ => {
                    let problem = format!("\"{field}\" is not a number that can stand here");
                    return Err(refused(path, at + 1, &problem));
                }
            }
        }
        if row.len() != width {
            let found = row.len();
            let problem = format!("{found} numbers, but model.toml asks for {width} ({meaning})");
            return Err(refused(path, at + 1, &problem));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(refused(path, 1, "no samples; a bundle needs at least one"));
    }
    Ok(rows)
}

fn refused(path: &Path, line: usize, problem: &str) -> BundleError {
    BundleError::Refused(format!("{}:{line}: {problem}", path.display()))
}
