"""The arithmetic of fenxi's engine for forests, in numpy, to the bit.

Each number is compared with thresholds as float32, what is no number being above all.  Leaves add
whole steps, so their sum has no rounding.  Probabilities come from a table by elements and steps,
e^(score / temperature), rounded to float32; every fourth class is summed by itself.
"""

import dataclasses
import math

import numpy as np
import onnx

from . import forest
from .inputs import LENGTH_MAX
from .reference import Graph, whole


@dataclasses.dataclass
class Forest:
    """Trees, and what their steps are worth."""

    trees: list[forest.Tree]
    weights: np.ndarray  # float32 [k + 1, steps]: e^(score / temperature)
    channel: int  # whose numbers other than 0 are the elements


def read(model):
    """The forest of a model given as bytes; refuses other graphs by node."""
    graph = Graph(model)
    scores, inverse = graph.inputs_of(graph.output, "Mul", "Softmax")
    shares, steps = graph.inputs_of(scores, "Gather")
    numbers = graph.inputs_of(steps, "Cast")[0]
    graph.inputs_of(numbers, "TreeEnsembleRegressor")
    temperatures, depth = graph.inputs_of(inverse, "Gather")
    lengths, channel = graph.inputs_of(depth, "Abs", "Clip", "ReduceSum", "Cast")[0], 0
    if graph.is_made_by(lengths, "Gather"):
        channel = int(graph.number(graph.inputs_of(lengths, "Gather")[1]))
    scores = graph.number(shares)
    weights = exp(graph.number(temperatures)[:, None] * (scores - scores.max()))
    return Forest(trees(graph.nodes[numbers]), weights.astype(np.float32), channel)


def exp(x):
    """e^x of numbers up to 0, by sums and products only, so that all libraries agree."""
    whole = np.trunc(x / math.log(2) - 0.5)
    rest, series = x - whole * math.log(2), np.ones_like(x)
    for i in range(16, 0, -1):
        series = 1 + series * rest / i
    return np.ldexp(series, whole.astype(int))


def trees(node):
    """The trees of a TreeEnsembleRegressor, whose nodes are numbered from 0 in each."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    lists = {name: np.array(v) for name, v in given.items() if isinstance(v, list)}
    feature = np.where(lists["nodes_modes"] == b"LEAF", -1, lists["nodes_featureids"])
    made = []
    for number in np.unique(lists["nodes_treeids"]):
        own, added = lists["nodes_treeids"] == number, lists["target_treeids"] == number
        threshold = lists["nodes_values"][own].astype(np.float32)
        children = lists["nodes_truenodeids"][own], lists["nodes_falsenodeids"][own]
        steps = np.zeros((own.sum(), given["n_targets"]), int)
        at = lists["target_nodeids"][added], lists["target_ids"][added]
        steps[at] = lists["target_weights"][added]
        made.append(forest.Tree(feature[own], threshold, *children, steps))
    return made


def run(made, series, context):
    """Class and confidence of rows: int [rows], float32 [rows]."""
    rows = forest.numbers(series, context)
    steps = sum(tree.steps[tree.leaves(rows)] for tree in made.trees)
    depth = (whole(series[:, made.channel], -LENGTH_MAX, LENGTH_MAX) != 0).sum(axis=1)
    weights = made.weights[depth[:, None], steps]
    total = np.zeros((len(rows), 4), np.float32)
    for i, column in enumerate(weights.T):
        total[:, i % 4] += column
    total = (total[:, 0] + total[:, 2]) + (total[:, 1] + total[:, 3])
    return weights.argmax(axis=1), weights.max(axis=1) / total
