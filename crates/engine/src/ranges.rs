//! How large the numbers behind each ReLU become, channel by channel: measured when a network is
//! trained, and what its integers are made by.

use crate::error::Error;
use crate::plan::Plan;

/// For each ReLU its name and the range of each channel, in the order of the layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges(Vec<(String, Vec<f32>)>);

impl Ranges {
    /// Reads a bundle's `ranges.csv`: a line for each ReLU, its name and then its channels.
    ///
    /// # Errors
    /// A range is not a positive number.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut ranges = vec![];
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut fields = line.split(',');
            let name = fields.next().unwrap_or_default();
            let range = |field: &str| {
                let range = field.trim().parse().ok();
                range.filter(|range: &f32| range.is_normal() && *range > 0.0).ok_or_else(|| {
                    Error::Ranges(format!("'{field}' of {name} is not a positive number"))
                })
            };
            ranges.push((name.to_owned(), fields.map(range).collect::<Result<_, _>>()?));
        }
        Ok(Self(ranges))
    }

    /// The ranges of each hidden layer of a plan.
    pub(crate) fn of(&self, plan: &Plan) -> Result<Vec<&[f32]>, Error> {
        let hidden = plan.hidden();
        if self.0.len() != hidden.len() {
            let (found, wanted) = (self.0.len(), hidden.len());
            return Err(Error::Ranges(format!("of {found} layers, but the network has {wanted}")));
        }
        for ((name, channels), layer) in self.0.iter().zip(hidden) {
            if *name != layer.name || channels.len() != layer.outputs {
                return Err(Error::Ranges(format!(
                    "{name} with {} channels stands where {} with {} should",
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
