//! Decision trees for the kernel: `struct forest` in net.h.

use super::{BLOCK, Blocks, CHUNK, CLASSES, Numbers, PLACES, at_most, refused};
use crate::error::Error;
use crate::plan::{Forest, TreeNode};
use crate::trees::exponentials;
use crate::trees::layout::{Layout, Node};

const TREES: usize = 64;
const LEVELS: usize = 64;
/// Nodes of all trees: 8 MiB.
const NODES: usize = 1 << 20;
/// Nodes of a block.
const BLOCK_NODES: usize = BLOCK / size_of::<u64>();

pub(super) fn forest(forest: &Forest) -> Result<Vec<u8>, Error> {
    let &Forest { channels, places, context, classes, ref trees, .. } = forest;
    at_most(places, PLACES, "elements")?;
    at_most(classes, CLASSES, "classes")?;
    at_most(trees.len(), TREES, "trees")?;
    at_most(trees.iter().map(|tree| levels(tree)).max().unwrap_or(0), LEVELS, "levels of a tree")?;
    if channels > 2 || (context != 0 && context != 2) {
        return refused("features other than lengths, times, protocol and server's port");
    }
    let series = channels * places;
    let Layout { nodes, roots, leaves } = Layout::new(trees, series + context, classes)?;
    at_most(nodes.len(), NODES, "nodes")?;

    let mut blocks = Blocks(vec![0; BLOCK]);
    let mut at = vec![];
    for (i, &root) in roots.iter().enumerate() {
        let (root, end) = (root as usize, roots.get(i + 1).map_or(nodes.len(), |&it| it as usize));
        at_most(end - root, BLOCK_NODES, "nodes of a tree")?;
        let base = blocks.tree(end - root);
        at.push(base * size_of::<u64>());
        let nodes = nodes[root..end].iter().map(|&bits| {
            let node = Node(bits);
            match (bits, node.is_leaf()) {
                (0, _) => return 0, // fills up a line
                (_, true) => return 1 << 63 | u64::from(node.low()),
                (_, false) => {}
            }
            let (key, is_length) = match node.feature() {
                it if it < series => (it / places * PLACES + it % places, it < places),
                it => (2 * PLACES + it - series, false),
            };
            let below = base % BLOCK_NODES + node.next(0) as usize - root;
            let least = least_above(node.threshold(), is_length);
            u64::from(least) | (below as u64) << 32 | (key as u64) << 56
        });
        blocks.0.extend(nodes.flat_map(u64::to_ne_bytes));
    }
    let leaves: Vec<i16> = leaves.into_iter().map(i16::from).collect();
    let (steps, shift) = blocks.words(&leaves, classes);
    let (exponentials_at, exponentials) = exponentials(forest)?;
    let sums = forest.steps_max() + 1;
    at_most(sums, BLOCK / size_of::<f32>(), "sums of steps")?;
    let (exponentials, exponentials_shift) = blocks.rows(
        exponentials
            .chunks_exact(sums)
            .map(|of_factor| of_factor.iter().flat_map(|e| e.to_ne_bytes()).collect::<Vec<u8>>()),
    );

    let mut head = Numbers::head(true, places, classes);
    head.u32(trees.len());
    head.u32(steps as usize);
    head.u32(shift as usize);
    head.u32(classes.div_ceil(CHUNK));
    head.padded(TREES, at.iter().map(|&at| (at as u32).to_ne_bytes()));
    for at in exponentials_at {
        head.u32(exponentials as usize + ((at / sums) << exponentials_shift));
    }
    Ok(blocks.bytes(&head))
}

impl Blocks {
    /// Begins a tree of `nodes` nodes, which fit into one block; the number of its first node.
    fn tree(&mut self, nodes: usize) -> usize {
        const LINE: usize = 64;
        let (at, bytes) = (self.0.len().next_multiple_of(LINE), nodes * size_of::<u64>());
        let at = if at % BLOCK + bytes > BLOCK { at.next_multiple_of(BLOCK) } else { at };
        self.0.resize(at, 0);
        at / size_of::<u64>()
    }
}

/// Nodes on the longest way through a tree.
fn levels(tree: &[TreeNode]) -> usize {
    // Children stand behind their parents.
    let mut levels = vec![1; tree.len()];
    for (i, node) in tree.iter().enumerate() {
        if let TreeNode::Split { below, above, .. } = *node {
            (levels[below], levels[above]) = (levels[i] + 1, levels[i] + 1);
        }
    }
    levels.into_iter().max().unwrap_or(0)
}

/// The least key whose number, as a float, is above the threshold; one more than all keys if none
/// is.
fn least_above(threshold: f32, is_length: bool) -> u32 {
    let number = |key: u32| match is_length {
        true => (key ^ 1 << 31).cast_signed() as f32,
        false => key as f32,
    };
    let (mut from, mut to) = (0, u32::MAX);
    while from < to {
        let middle = from + (to - from) / 2;
        if number(middle) > threshold {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_part_integers_as_they_part_floats() {
        let lengths = |threshold| least_above(threshold, true) ^ 1 << 31;
        assert_eq!([0.5, 1.0, -0.5, -1.0].map(lengths).map(u32::cast_signed), [1, 2, 0, 0]);
        let others = |threshold| least_above(threshold, false);
        assert_eq!([-0.5, 0.0, 443.5].map(others), [0, 1, 444]);
        // Floats do not tell 2²⁴ + 1 from 2²⁴.
        assert_eq!(others((1 << 24) as f32), (1 << 24) + 2);
        assert_eq!([5e9, f32::INFINITY, f32::NAN].map(others), [u32::MAX; 3]);
        assert_eq!(least_above(f32::NEG_INFINITY, true), 0);
    }
}
