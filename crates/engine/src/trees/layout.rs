//! How trees stand in memory: nodes of eight bytes, the two children of a node side by side, and
//! a node, its children and its grandchildren in one cache line where they fit.

use std::collections::{HashMap, VecDeque};

use super::key;
use crate::error::Error;
use crate::plan::TreeNode;

/// A node, from the lowest bit:
///
/// | bits | of a split | of a leaf |
/// |---|---|---|
/// | 32 | key of the threshold | its vector of steps |
/// | 24 | the first child: at most the threshold | itself |
/// | 7 | feature | one behind the last, whose key is 0 |
/// | 1 | 0 | 1 |
#[derive(Clone, Copy)]
pub(crate) struct Node(pub u64);

const INDEX_BITS: u32 = 24;
const FEATURE_BITS: u32 = 7;
const LEAF: u64 = 1 << 63;
/// Nodes of a cache line.
const LINE: usize = 8;

impl Node {
    fn bits(low: u32, next: u32, feature: usize) -> u64 {
        u64::from(low) | u64::from(next) << 32 | (feature as u64) << (32 + INDEX_BITS)
    }

    #[inline(always)]
    pub fn low(self) -> u32 {
        self.0 as u32
    }

    /// The threshold, whose key is `low`.
    pub fn threshold(self) -> f32 {
        let key = self.low();
        f32::from_bits(if key >> 31 == 1 { key ^ 1 << 31 } else { !key })
    }

    #[inline(always)]
    pub fn feature(self) -> usize {
        (self.0 >> (32 + INDEX_BITS)) as usize & ((1 << FEATURE_BITS) - 1)
    }

    #[inline(always)]
    pub fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The node after this one, for a feature with this key.
    #[inline(always)]
    pub fn next(self, key: u32) -> u32 {
        ((self.0 >> 32) as u32 & ((1 << INDEX_BITS) - 1)) + u32::from(key > self.low())
    }
}

pub(crate) struct Layout {
    pub nodes: Vec<u64>,
    pub roots: Vec<u32>,
    /// Each vector of steps once.
    pub leaves: Vec<u8>,
}

/// A node of a tree, and where it is to stand.
type Placed = (usize, usize);

struct Builder<'a> {
    trees: &'a [Vec<TreeNode>],
    width: usize,
    nodes: Vec<u64>,
    leaves: Vec<usize>,
    vectors: HashMap<Vec<u8>, u32>,
}

impl Layout {
    pub fn new(trees: &[Vec<TreeNode>], features: usize, width: usize) -> Result<Self, Error> {
        let (leaves, vectors) = (vec![], HashMap::new());
        let mut builder = Builder { trees, width, nodes: vec![], leaves, vectors };
        let roots: Vec<u32> = (0..trees.len()).map(|tree| builder.tree(tree)).collect();
        let Builder { mut nodes, leaves, vectors, .. } = builder;
        if nodes.len() > 1 << INDEX_BITS || features >= 1 << FEATURE_BITS {
            return Err(Error::Bounds("the trees have too many nodes or features".into()));
        }
        for at in leaves {
            nodes[at] |= LEAF | Node::bits(0, at as u32, features);
        }
        let mut leaves = vec![0; vectors.len() * width];
        for (vector, at) in vectors {
            leaves[at as usize * width..][..width].copy_from_slice(&vector);
        }
        Ok(Self { nodes, roots, leaves })
    }
}

impl Builder<'_> {
    /// Places a tree, and returns where its root stands.
    fn tree(&mut self, tree: usize) -> u32 {
        self.align();
        let root = self.pair();
        let mut waiting = VecDeque::from([(0, root)]);
        while let Some((node, at)) = waiting.pop_front() {
            if self.nodes.len() % LINE + self.family(tree, node) > LINE {
                self.align();
            }
            for (child, at) in self.put(tree, node, at).into_iter().flatten() {
                waiting.extend(self.put(tree, child, at).into_iter().flatten());
            }
        }
        root as u32
    }

    /// Writes a node. Returns its children, for which it makes room.
    fn put(&mut self, tree: usize, node: usize, at: usize) -> Option<[Placed; 2]> {
        match &self.trees[tree][node] {
            TreeNode::Leaf(steps) => {
                let mut vector = vec![0; self.width];
                steps.iter().for_each(|&(class, steps)| vector[class] = steps);
                let next = self.vectors.len() as u32;
                self.nodes[at] = (*self.vectors.entry(vector).or_insert(next)).into();
                self.leaves.push(at);
                None
            }
            &TreeNode::Split { feature, threshold, below, above } => {
                let children = self.pair();
                self.nodes[at] = Node::bits(key(threshold), children as u32, feature);
                Some([(below, children), (above, children + 1)])
            }
        }
    }

    /// How many nodes are a node's children and grandchildren.
    fn family(&self, tree: usize, node: usize) -> usize {
        let children = |node: usize| match self.trees[tree][node] {
            TreeNode::Split { below, above, .. } => Some([below, above]),
            TreeNode::Leaf(_) => None,
        };
        let splits = |pair: [usize; 2]| pair.into_iter().filter_map(children).count();
        children(node).map_or(0, |pair| 2 + 2 * splits(pair))
    }

    /// Fills up the cache line.
    fn align(&mut self) {
        self.nodes.resize(self.nodes.len().next_multiple_of(LINE), 0);
    }

    /// Room for two nodes.
    fn pair(&mut self) -> usize {
        self.nodes.extend([0, 0]);
        self.nodes.len() - 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes as they are met, in words.
    #[test]
    fn a_leaf_leads_to_itself() {
        let split =
            |feature, threshold, below, above| TreeNode::Split { feature, threshold, below, above };
        let leaf = |class, steps| TreeNode::Leaf(vec![(class, steps)]);
        let trees = [
            vec![split(1, 2.0, 1, 2), leaf(0, 3), split(0, -1.0, 3, 4), leaf(1, 4), leaf(0, 3)],
            vec![leaf(1, 4)],
        ];
        let Layout { nodes, roots, leaves } = Layout::new(&trees, 2, 2).unwrap();
        assert_eq!(leaves.len(), 2 * 2);
        let walk = |features: [f32; 2]| {
            let keys = [key(features[0]), key(features[1]), 0];
            let leaf = |&root: &u32| {
                let (mut at, mut node) = (root, Node(nodes[root as usize]));
                while !node.is_leaf() {
                    at = node.next(keys[node.feature()]);
                    node = Node(nodes[at as usize]);
                }
                assert_eq!(node.next(keys[node.feature()]), at);
                leaves[node.low() as usize * 2..][..2].to_vec()
            };
            roots.iter().map(leaf).collect::<Vec<_>>()
        };
        assert_eq!(walk([0.0, 2.0]), [[3, 0], [0, 4]]);
        assert_eq!(walk([-1.0, 2.5]), [[0, 4], [0, 4]]);
        assert_eq!(walk([-0.5, f32::NAN]), [[3, 0], [0, 4]]);
        assert_eq!(walk([f32::NEG_INFINITY, f32::INFINITY]), [[0, 4], [0, 4]]);
    }

    #[test]
    fn keys_are_in_the_order_of_floats() {
        let floats = [f32::NEG_INFINITY, -1e30, -1.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(floats.map(key).is_sorted_by(|a, b| a < b));
        assert_eq!(key(-0.0), key(0.0));
        assert_eq!(key(-f32::NAN), u32::MAX);
    }
}
