"""The ONNX form of a forest: raw numbers in, calibrated probabilities out."""

import numpy as np
from onnx import TensorProto, helper

from . import graph

TREES_DOMAIN, TREES_OPSET = "ai.onnx.ml", 3


def model(made, temperatures, name):
    """The ONNX model of a forest; `temperatures` [k + 1] by the number of elements."""
    g, input = graph.Graph(), made.input
    channels = {
        feature: g.column(feature, "series", i, len(input.features), [-1, input.k])
        for i, feature in enumerate(input.features)
        if feature == length_feature(input)
    }
    flat = g.add("Reshape", "flat", "series", g.constant("flat_shape", [-1, len(input.features) * input.k], np.int64))
    rows = g.add("Concat", "numbers", flat, "context", axis=1) if input.context else flat
    g.nodes.append(helper.make_node("TreeEnsembleRegressor", [rows], ["steps"], "trees", domain=TREES_DOMAIN, **attributes(made)))
    index = g.add("Cast", "step", "steps", to=TensorProto.INT32)
    scores = g.add("Gather", "scores", g.constant("log_shares", made.log_shares), index)
    scores = graph.tempered(g, input, channels, scores, np.asarray(temperatures))
    g.add("Softmax", "probabilities", scores, axis=1)
    return graph.finished(g, made.classes, input, name, [(TREES_DOMAIN, TREES_OPSET)])


def length_feature(input):
    """The feature by which elements are counted, or None."""
    return next((f for f in ("signed_length", "payload_length") if f in input.features), None)


def attributes(made):
    """The trees as TreeEnsembleRegressor writes them: lists of nodes, and of what leaves add to the classes."""
    nodes = {k: [] for k in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")}
    target = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for number, tree in enumerate(made.trees):
        inner = tree.feature >= 0
        count = len(inner)
        nodes["treeids"] += [number] * count
        nodes["nodeids"] += range(count)
        nodes["featureids"] += np.where(inner, tree.feature, 0).tolist()
        nodes["modes"] += ["BRANCH_LEQ" if i else "LEAF" for i in inner]
        nodes["values"] += np.where(inner, tree.threshold, 0).tolist()
        nodes["truenodeids"] += np.where(inner, tree.left, 0).tolist()
        nodes["falsenodeids"] += np.where(inner, tree.right, 0).tolist()
        at, classes = np.nonzero(tree.steps)
        target["treeids"] += [number] * len(at)
        target["nodeids"] += at.tolist()
        target["ids"] += classes.tolist()
        target["weights"] += tree.steps[at, classes].astype(float).tolist()
    return {
        **{f"nodes_{k}": v for k, v in nodes.items()},
        **{f"target_{k}": v for k, v in target.items()},
        "n_targets": made.classes,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
    }
