"""The arithmetic of fenxi's engine for forests, in numpy, to the bit.

Each number is compared with thresholds as float32, what is no number being above all.  Leaves add whole steps, so their sum
has no rounding.  Probabilities come from a table by elements and steps, e^(score / temperature), rounded once to
float32; their sum runs in the order of the classes.
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
    scores, depth = graph.inputs_of(graph.output, "Mul", "Softmax")
    shares, steps = graph.inputs_of(scores, "Gather")
    numbers = graph.inputs_of(steps, "Cast")[0]
    graph.inputs_of(numbers, "TreeEnsembleRegressor")
    inverse = graph.gathered(depth)
    length = graph.inputs_of(graph.inputs_of(depth, "Gather")[1], "Abs", "Clip", "ReduceSum", "Cast")[0]
    channel = int(graph.number(graph.inputs_of(length, "Gather")[1])) if graph.is_made_by(length, "Gather") else 0
    weights = np.exp(inverse[:, None] * graph.number(shares)[None]).astype(np.float32)
    return Forest(trees(graph.nodes[numbers]), graph.constants[shares], weights, channel)


def trees(node):
    """The trees of a TreeEnsembleRegressor, whose nodes are numbered from 0 in each."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    of = np.array(given["nodes_treeids"])
    column = lambda name, kind: np.array(given[f"nodes_{name}"], kind)
    feature, threshold = column("featureids", int), column("values", np.float32)
    left, right, leaf = column("truenodeids", int), column("falsenodeids", int), column("modes", "S") == b"LEAF"
    target = {name: np.array(given[f"target_{name}"]) for name in ("treeids", "nodeids", "ids", "weights")}
    made = []
    for number in np.unique(of):
        own, added = of == number, target["treeids"] == number
        steps = np.zeros((own.sum(), given["n_targets"]), int)
        steps[target["nodeids"][added], target["ids"][added]] = target["weights"][added].astype(int)
        made.append(forest.Tree(np.where(leaf[own], -1, feature[own]), threshold[own], left[own], right[own], steps))
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
