//! `TreeEnsembleRegressor`, whose sums are steps of a table of scores.

use std::collections::HashMap;

use super::{Pass, Value, What};
use crate::error::Error;
use crate::onnx::{Node, Tensor};
use crate::plan::{Forest, TreeNode};

/// Attributes that are lists of all nodes of all trees, and of what leaves add to classes.
const KNOWN: [&str; 14] = [
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_modes",
    "nodes_values",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "target_treeids",
    "target_nodeids",
    "target_ids",
    "target_weights",
    "n_targets",
    "aggregate_function",
    "post_transform",
];
/// Nodes of all trees, at most: their indices have 24 bits.
const NODES_MAX: usize = 1 << 23;
/// Features, at most: their indices have 7 bits, and one is the kernel's own.
const FEATURES_MAX: i64 = 127;
const CLASSES_MAX: i64 = 1024;

impl<'a> Pass<'a> {
    pub(super) fn trees(&mut self, node: &Node<'a>) -> Result<Value<'a>, Error> {
        node.knows(&KNOWN)?;
        let features = self.channels.saturating_mul(self.places).saturating_add(self.context);
        let (shape, is_whole) = match self.input(node, 0)? {
            Value { shape, what: What::Numbers } => (shape, true),
            Value { shape, what: What::Series } => (shape, self.context == 0),
            _ => return Err(node.refused("its input is not the series and the context")),
        };
        if !is_whole || *shape != [-1, features] || features > FEATURES_MAX {
            return Err(node.refused("its input is not the whole series and context"));
        }
        let text = |name| node.attribute(name).map(|attribute| attribute.text);
        if !matches!(text("aggregate_function"), None | Some(b"SUM"))
            || !matches!(text("post_transform"), None | Some(b"NONE"))
        {
            return Err(node.refused("its trees are not simply summed"));
        }
        let classes = node.number("n_targets").filter(|count| (2..=CLASSES_MAX).contains(count));
        let classes = classes.ok_or_else(|| node.refused("it has no or too many targets"))?;
        if self.forest.is_some() {
            return Err(node.refused("there are trees already"));
        }
        let trees = trees(node, features as usize, classes as usize)?;
        self.forest = Some(Forest {
            channels: self.channels as usize,
            places: self.places as usize,
            context: self.context as usize,
            classes: classes as usize,
            trees,
            scores: vec![],
            inverse_temperatures: vec![],
        });
        Ok(Value { shape: vec![-1, classes], what: What::Steps })
    }

    /// The table in which sums of steps find their scores.
    pub(super) fn step_scores(
        &mut self,
        node: &Node<'a>,
        table: &Tensor,
        shape: Vec<i64>,
    ) -> Result<Value<'a>, Error> {
        let scores = table.floats().filter(|_| table.shape.len() == 1);
        let scores = scores.ok_or_else(|| node.refused("its table is no list of scores"))?;
        let Some(forest) = self.forest.as_mut().filter(|forest| forest.scores.is_empty()) else {
            return Err(node.refused("the trees have scores already"));
        };
        if forest.steps_max() >= scores.len() {
            return Err(node.refused("a sum of steps lies outside its table"));
        }
        forest.scores = scores.to_vec();
        Ok(Value { shape, what: What::StepScores { is_tempered: false } })
    }
}

/// The trees, each with its root first. What two readers might take for different trees is
/// refused: a node with two parents or none, unless it stands first.
fn trees(node: &Node<'_>, features: usize, classes: usize) -> Result<Vec<Vec<TreeNode>>, Error> {
    let list = |name| node.numbers(name).unwrap_or_default();
    let (tree_of, id_of, feature_of) =
        (list("nodes_treeids"), list("nodes_nodeids"), list("nodes_featureids"));
    let (below, above) = (list("nodes_truenodeids"), list("nodes_falsenodeids"));
    let attribute = |name| node.attribute(name).ok_or_else(|| node.refused(format!("no {name}")));
    let (modes, values) = (&attribute("nodes_modes")?.texts, &attribute("nodes_values")?.floats);
    let count = tree_of.len();
    let is_even = [id_of.len(), feature_of.len(), below.len(), above.len(), modes.len()]
        .iter()
        .all(|len| *len == count);
    if !is_even || values.len() != count || !(1..=NODES_MAX).contains(&count) {
        return Err(node.refused("its lists of nodes are of different or impossible lengths"));
    }

    let mut leaves = leaves(node, classes)?;
    let mut places: HashMap<(i64, i64), (usize, usize)> = HashMap::new();
    let mut trees: Vec<Vec<usize>> = vec![];
    for i in 0..count {
        if i == 0 || tree_of[i] != tree_of[i - 1] {
            trees.push(vec![]);
        }
        let tree = trees.len() - 1;
        let at = (tree, trees[tree].len());
        if places.insert((tree_of[i], id_of[i]), at).is_some() {
            return Err(node.refused("two nodes have one number"));
        }
        trees[tree].push(i);
    }

    let refused = || node.refused("a tree's nodes do not make a tree");
    let mut found = vec![];
    for (number, nodes) in trees.iter().enumerate() {
        let mut has_parent = vec![false; nodes.len()];
        let mut tree = vec![];
        for (at, &i) in nodes.iter().enumerate() {
            let mut child = |id: i64| match places.get(&(tree_of[i], id)) {
                // A child stands behind its parent, so there is no circle.
                Some(&(tree, child)) if tree == number && child > at && !has_parent[child] => {
                    has_parent[child] = true;
                    Ok(child)
                }
                _ => Err(refused()),
            };
            tree.push(match modes[i] {
                b"LEAF" => {
                    TreeNode::Leaf(leaves.remove(&(tree_of[i], id_of[i])).unwrap_or_default())
                }
                b"BRANCH_LEQ" => {
                    let feature = usize::try_from(feature_of[i]).ok().filter(|&f| f < features);
                    let feature = feature.ok_or_else(|| node.refused("a feature is not there"))?;
                    if values[i].is_nan() {
                        return Err(node.refused("a threshold is not a number"));
                    }
                    let (below, above) = (child(below[i])?, child(above[i])?);
                    TreeNode::Split { feature, threshold: values[i], below, above }
                }
                _ => return Err(node.refused("a node is neither BRANCH_LEQ nor LEAF")),
            });
        }
        if !has_parent[1..].iter().all(|&has| has) {
            return Err(refused());
        }
        found.push(tree);
    }
    match leaves.is_empty() {
        true => Ok(found),
        false => Err(node.refused("something is added at what is no leaf")),
    }
}

/// What each leaf adds, by tree and node: class and steps.
type Leaves = HashMap<(i64, i64), Vec<(usize, u8)>>;

fn leaves(node: &Node<'_>, classes: usize) -> Result<Leaves, Error> {
    let list = |name| node.numbers(name).unwrap_or_default();
    let (trees, nodes, targets) =
        (list("target_treeids"), list("target_nodeids"), list("target_ids"));
    let weights = node.attribute("target_weights").map_or(&[][..], |attribute| &attribute.floats);
    if [nodes.len(), targets.len(), weights.len()].iter().any(|len| *len != trees.len()) {
        return Err(node.refused("its lists of targets are of different lengths"));
    }
    let mut leaves = Leaves::new();
    for (i, &weight) in weights.iter().enumerate() {
        let class = usize::try_from(targets[i]).ok().filter(|&class| class < classes);
        let class = class.ok_or_else(|| node.refused("a target is not there"))?;
        if weight.fract() != 0.0 || !(0.0..=255.0).contains(&weight) {
            return Err(node.refused("a weight is not a number of steps from 0 to 255"));
        }
        let leaf = leaves.entry((trees[i], nodes[i])).or_default();
        if leaf.iter().any(|(known, _)| *known == class) {
            return Err(node.refused("a leaf adds to a class twice"));
        }
        leaf.push((class, weight as u8));
    }
    Ok(leaves)
}
