//! What a graph says, in the terms of the engine: codes of elements, context, layers, temperatures;
//! or trees.

use crate::tabulated::Tabulated;

/// What the engine knows.
#[derive(Debug)]
pub(crate) enum Kind {
    Network(Plan),
    Forest(Forest),
}

/// A network. Rows of weights are inputs, columns are outputs; the numbers of a convolution's
/// output stand place by place.
///
/// ```text
/// element x[p]  ──codes──►  ┐                    ┐
/// context       ──parts──►  ├─ layer 0, ReLU ─ … ├─ layer n ─ + scores ─ · temperature ─ softmax
/// ```
#[derive(Debug)]
pub(crate) struct Plan {
    /// Elements of a series.
    pub places: usize,
    /// Numbers of the context; 0 without one.
    pub context: usize,
    /// The code of an element: a table over its integer.
    pub codes: Tabulated,
    /// The row of layer 0 at which the codes begin (of a convolution: 0).
    pub codes_at: usize,
    /// Further inputs of layer 0, each with its first row.
    pub parts: Vec<(Tabulated, usize)>,
    /// At least two. All but the last are followed by ReLU. Convolutions come first.
    pub layers: Vec<Layer>,
    /// Scores of a number of the context, added to the last layer's.
    pub scores: Option<Tabulated>,
    /// What the scores are multiplied by, for each number of elements that are not 0, from 0 to
    /// `places`.
    pub inverse_temperatures: Vec<f32>,
    /// What the bytes of a quantised network's last layer stand for.
    pub values: Option<Box<[f32; 256]>>,
}

/// Decision trees. Their features are the series' numbers, channel by channel, then the context's.
/// Each tree adds steps to classes; a class's score is what its sum of steps finds in a table, then
/// come temperature and softmax as in a network.
#[derive(Debug)]
pub(crate) struct Forest {
    pub channels: usize,
    pub places: usize,
    pub context: usize,
    pub classes: usize,
    /// Each with its root first, and children behind their parents.
    pub trees: Vec<Vec<TreeNode>>,
    /// The score of each sum of steps; it reaches to the largest sum that the trees can make.
    pub scores: Vec<f32>,
    /// As a network's; channel 0 gives the depth.
    pub inverse_temperatures: Vec<f32>,
}

#[derive(Debug)]
pub(crate) enum TreeNode {
    /// Goes on at `below` if the feature is at most the threshold, and at `above` if it is more or
    /// NaN.
    Split { feature: usize, threshold: f32, below: usize, above: usize },
    /// What it adds: classes and steps.
    Leaf(Vec<(usize, u8)>),
}

#[derive(Debug)]
pub(crate) struct Layer {
    /// The output of its ReLU; of the last layer its own.
    pub name: String,
    /// 3 for a convolution along the series, whose row `t·inputs + i` multiplies input `i` of the
    /// place before (t = 0), the place itself (1) or the place after (2); 1 for a dense layer.
    pub taps: usize,
    pub outputs: usize,
    /// `[taps·inputs][outputs]`
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
    /// In a layer of a quantised network, whose inputs and outputs are bytes and whose weights are
    /// integers; `bias` is then 0.
    pub bytes: Option<Bytes>,
}

/// What becomes of a quantised layer's sums:
/// `table[clamp(round((Σ_i a[i]·weights[i] + bias)·multiplier) + zero, 0, 255)]`, rounded half to
/// even, the product in floats of 32 bits.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub bias: Vec<i32>,
    /// What a unit of the sums is.
    pub sum_scale: f32,
    pub multiplier: f32,
    pub zero: i32,
    pub table: Option<Box<[u8; 256]>>,
}

impl Plan {
    pub fn classes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs)
    }

    /// The layers before the last: those with a ReLU.
    pub fn hidden(&self) -> &[Layer] {
        self.layers.split_last().map_or(&[], |(_, hidden)| hidden)
    }
}

impl Forest {
    /// The largest sum of steps of any class.
    pub fn steps_max(&self) -> usize {
        let mut sums = vec![0; self.classes];
        for tree in &self.trees {
            let mut most = vec![0; self.classes];
            for node in tree {
                if let TreeNode::Leaf(steps) = node {
                    for &(class, steps) in steps {
                        most[class] = usize::from(steps).max(most[class]);
                    }
                }
            }
            sums.iter_mut().zip(most).for_each(|(sum, most)| *sum += most);
        }
        sums.into_iter().max().unwrap_or_default()
    }
}

impl Layer {
    pub fn row(&self, row: usize) -> &[f32] {
        &self.weights[row * self.outputs..][..self.outputs]
    }
}
