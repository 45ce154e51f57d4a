//! Ranges of channels, from which the integers of a network are made.

use std::path::Path;

use super::error::BundleError;

/// The ranges of the channels of one layer, by the name of the layer's output in the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRanges {
    /// Name of the output of a ReLU.
    pub output: String,
    /// A finite number above 0 for each channel, at least one.
    pub channels: Vec<f32>,
}

/// Parses the file: a line for each layer, the name of its output and then its ranges, separated by
/// commas.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<LayerRanges>, BundleError> {
    let refuse = |line: usize, problem: String| {
        let path = path.display();
        BundleError::Refused(format!(
            "{path}:{line}: {problem}; write it again with fenxi-train ranges"
        ))
    };
    let mut layers: Vec<LayerRanges> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut fields = line.split(',');
        let output = fields.next().unwrap_or_default().to_owned();
        if output.is_empty() || layers.iter().any(|layer| layer.output == output) {
            return Err(refuse(at + 1, format!("{output:?} is not the name of one more layer")));
        }
        let mut channels = Vec::new();
        for field in fields {
            match field.parse::<f32>() {
                Ok(range) if range.is_finite() && range > 0.0 => channels.push(range),
                _ => return Err(refuse(at + 1, format!("{field:?} is not a number above 0"))),
            }
        }
        if channels.is_empty() {
            return Err(refuse(at + 1, format!("{output:?} has no ranges")));
        }
        layers.push(LayerRanges { output, channels });
    }
    if layers.is_empty() {
        return Err(refuse(1, "no layers".to_owned()));
    }
    Ok(layers)
}
