//! How large the numbers behind each ReLU become, channel by channel: measured when a network is
//! trained, and what its integers are made by.

use crate::error::Error;
use crate::plan::Plan;

/// For each ReLU its name and the range of each channel, in the order of the layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges(Vec<(String, Vec<f32>)>);

impl Ranges {
    /// Reads a bundle's `ranges.csv`: a line for each ReLU, its name and then its channels,
    /// separated by commas.
    ///
    /// # Errors
    /// A name is missing or not new, or a range is not a normal number above 0.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut ranges: Vec<(String, Vec<f32>)> = vec![];
        for (at, line) in text.lines().enumerate() {
            let refused = |what| Error::Ranges(format!("line {}: {what}", at + 1));
            let mut fields = line.split(',');
            let name = fields.next().unwrap_or_default();
            if name.is_empty() || ranges.iter().any(|(known, _)| known == name) {
                return Err(refused(format!("{name:?} is not the name of one more layer")));
            }
            let range = |field: &str| {
                let range = field.parse().ok();
                let range = range.filter(|range: &f32| range.is_normal() && *range > 0.0);
                range.ok_or_else(|| refused(format!("{field:?} is not a number above 0")))
            };
            let channels: Vec<f32> = fields.map(range).collect::<Result<_, _>>()?;
            if channels.is_empty() {
                return Err(refused(format!("{name:?} has no ranges")));
            }
            ranges.push((name.to_owned(), channels));
        }
        match ranges.is_empty() {
            true => Err(Error::Ranges("no layers".into())),
            false => Ok(Self(ranges)),
        }
    }

    /// The ranges of each hidden layer of a plan.
    pub(crate) fn of(&self, plan: &Plan) -> Result<Vec<&[f32]>, Error> {
        let hidden = plan.hidden();
        if self.0.len() != hidden.len() {
            let (found, wanted) = (self.0.len(), hidden.len());
            return Err(Error::Ranges(format!(
                "ranges of {found} layers, but the network has {wanted}"
            )));
        }
        for ((name, channels), layer) in self.0.iter().zip(hidden) {
            if *name != layer.name || channels.len() != layer.outputs {
                return Err(Error::Ranges(format!(
                    "ranges: {name} with {} channels stands where {} with {} should",
                    channels.len(),
                    layer.name,
                    layer.outputs
                )));
            }
        }
        Ok(self.0.iter().map(|(_, channels)| &channels[..]).collect())
    }
}

impl From<Vec<(String, Vec<f32>)>> for Ranges {
    fn from(ranges: Vec<(String, Vec<f32>)>) -> Self {
        Self(ranges)
    }
}
