"""A random forest that serves all depths of a bundle.

It is trained on each flow as it was at each depth that it reached, elements beyond the depth 0, so one forest answers
at every depth.  Flows of the outlier class can be added: made-up ones, whose lengths are a few bytes off or
taken from other flows, and flows of other networks.

A leaf holds the share of each class in whole steps of 1 / LEAF_STEPS, so the sum over the trees is a whole number, exact
whatever the order.  The scores before softmax are the logarithm of that sum, looked up in a table, because the vector
and the scalar form of a logarithm may round differently.
"""

import dataclasses

import numpy as np

from . import unfamiliar

LEAF_STEPS = 64
SMALLEST_SHARE = 1e-3  # what a class that no tree names counts as


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of a forest, and how it is trained."""

    trees: int = 20
    leaf: int = 2  # training rows that a leaf needs
    features: float = 0.5  # share of the numbers that each split may choose from
    foreign_weight: float = 0.3  # of a row of another network
    random_cuts: bool = False  # extremely randomised trees: thresholds are drawn, not searched


class Forest:
    """Trees as arrays; `scores` as for a network."""

    def __init__(self, input, trees, classes):
        self.input, self.trees, self.classes = input, trees, classes
        most = len(trees) * LEAF_STEPS
        self.log_shares = np.log(np.maximum(np.arange(most + 1) / most, SMALLEST_SHARE)).astype(np.float32)

    form = "forest"

    @property
    def weight_count(self):
        return sum(len(t.feature) for t in self.trees)

    @property
    def description(self):
        return f"{len(self.trees)} trees with {self.weight_count:,} nodes"

    def steps(self, series, context):
        """The sum of each class over the trees, in whole steps."""
        rows = numbers(series, context)
        total = np.zeros((len(rows), self.classes), int)
        for tree in self.trees:
            total += tree.steps[tree.leaves(rows)]
        return total

    def scores(self, series, context):
        """Scores before softmax."""
        return self.log_shares[self.steps(series, context)]


@dataclasses.dataclass
class Tree:
    """Nodes of one tree; a node with `feature` -1 is a leaf."""

    feature: np.ndarray
    threshold: np.ndarray  # float32: at most this goes left
    left: np.ndarray
    right: np.ndarray
    steps: np.ndarray  # [nodes, classes]: shares of the classes in steps, 0 for nodes that are no leaves

    def leaves(self, rows):
        """The leaf that each row falls into."""
        at = np.zeros(len(rows), int)
        while True:
            inner = np.where(self.feature[at] >= 0)[0]
            if not len(inner):
                return at
            node = at[inner]
            low = rows[inner, self.feature[node]] <= self.threshold[node]
            at[inner] = np.where(low, self.left[node], self.right[node])


def numbers(series, context):
    """What a split may ask about: all channels one after the other, then the context."""
    return np.concatenate([series.reshape(len(series), -1), context], axis=1).astype(np.float32)


def of_scikit(tree, classes, count):
    """A tree of scikit-learn, whose columns are `classes`, as arrays with `count` columns."""
    leaf = tree.children_left < 0
    steps = np.zeros((tree.node_count, count), np.int16)
    share = tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True)
    steps[:, classes] = np.floor(share * LEAF_STEPS + 0.5)
    steps[~leaf] = 0
    # scikit-learn compares float32 numbers with float64 thresholds; the largest float32 not above one decides alike.
    threshold = tree.threshold.astype(np.float32)
    above = threshold > tree.threshold
    threshold[above] = np.nextafter(threshold[above], np.float32(-np.inf))
    return Tree(np.where(leaf, -1, tree.feature), threshold, tree.children_left, tree.children_right, steps)


def at_all_depths(input, series, context, counts):
    """Every flow as it was at each depth that it reached: series, context, and the flow of each row."""
    parts = []
    for depth in input.depths:
        rows = np.where(counts >= depth)[0]
        parts.append((input.cut(series[rows], depth), context[rows], rows))
    return tuple(np.concatenate(p) for p in zip(*parts))


def fit(flows, size, extra=None, foreign=None, seed=1):
    """A forest for these flows.  `extra` is an unfamiliar.Maker or None; `foreign` are flows of other networks or None."""
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    input = flows.input
    series, context, of = at_all_depths(input, flows.series, flows.seen_context(), flows.counts)
    rows, classes, weights = [numbers(series, context)], [flows.classes[of]], [np.ones(len(of))]
    if extra is not None:
        rng = np.random.default_rng(seed)
        made = series.copy()
        unfamiliar.mix(rng, input, made, series, extra.near)
        changed = (made != series).reshape(len(made), -1).any(axis=1)
        rows.append(numbers(made, extra.other_ports(rng, input, context))[changed])
        classes.append(np.full(changed.sum(), extra.outlier))
        weights.append(np.full(changed.sum(), extra.share))
    if foreign is not None and flows.outlier is not None:
        far, far_context, _ = at_all_depths(input, foreign.series, foreign.seen_context(), foreign.counts)
        rows.append(numbers(far, far_context))
        classes.append(np.full(len(far), flows.outlier))
        weights.append(np.full(len(far), size.foreign_weight))
    kind = ExtraTreesClassifier if size.random_cuts else RandomForestClassifier
    made = kind(size.trees, max_features=size.features, min_samples_leaf=size.leaf, random_state=seed)
    made.fit(np.concatenate(rows), np.concatenate(classes), np.concatenate(weights))
    trees = [of_scikit(e.tree_, made.classes_, len(flows.names)) for e in made.estimators_]
    return Forest(input, trees, len(flows.names))
