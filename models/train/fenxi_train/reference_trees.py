"""The arithmetic of fenxi's engine for forests, in numpy, to the bit.

Each number is compared with thresholds as float32, what is no number being above all.  Leaves add
whole steps, so their sum has no rounding.  Probabilities come from a table by elements and steps,
e^(score / temperature), rounded once to float32; their sum runs in the order of the classes.
"""

import dataclasses

import numpy as np
import onnx

from . import forest
from .inputs import LENGTH_MAX
from .reference import Graph, whole


@dataclasses.dataclass
class Forest:
    """Trees, and what their steps are worth."""

    trees: list[forest.Tree]
    scores: np.ndarray  # float32 by steps
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
    weights = np.exp(graph.number(temperatures)[:, None] * graph.number(shares)).astype(np.float32)
    return Forest(trees(graph.nodes[numbers]), graph.constants[shares], weights, channel)


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
    classes = made.scores[steps].argmax(axis=1)
    depth = (whole(series[:, made.channel], -LENGTH_MAX, LENGTH_MAX) != 0).sum(axis=1)
    weights = made.weights[depth[:, None], steps]
    total = np.zeros(len(rows), np.float32)
    for column in weights.T:
        total += column
    return classes, weights[np.arange(len(rows)), classes] / total
