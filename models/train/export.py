"""Writes the bundle: model.onnx, model.toml and the golden inputs and outputs.

The graph takes raw numbers [N, features, K], so the scaling is inside.  A 1D convolution stands
as a 2D one of height 1, the form most accelerators know.  The dense layers are matrix products
over the batch, so their weights are read once for some rows, not for every row.  In batches of two
rows or more each row is summed up in the same order whatever the batch; a single row may get
another kernel, so it is run as a pair (runtime.py).  check_model.py checks it.
"""

import argparse
import hashlib
import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import dataset
import inputs
import runtime

NAME, VERSION = "app-id-k10", "1.0.1"
OPSET, IR_VERSION = 17, 8  # read by ONNX Runtime 1.17 and later
GOLDEN_ROWS = 64


class Graph:
    """A chain of nodes in which each takes the output of the one before."""

    def __init__(self, first):
        self.nodes, self.constants, self.last = [], [], first

    def add(self, operator, name, constants=(), before=(), **attributes):
        """Append a node called `name`; `constants` are its further inputs, the nodes `before` its first ones."""
        values = [numpy_helper.from_array(c, f"{name}.{i}") for i, c in enumerate(constants)]
        self.constants += values
        given = [*before, self.last, *(v.name for v in values)]
        self.nodes.append(helper.make_node(operator, given, [name], name, **attributes))
        self.last = name

    def convolution(self, name, weights, bias, padding=0):
        """`weights` as in training, [width, channels in, channels out]."""
        turned = np.ascontiguousarray(weights.transpose(2, 1, 0)[:, :, None, :], np.float32)
        attributes = {"kernel_shape": [1, weights.shape[0]], "pads": [0, padding, 0, padding]}
        self.add("Conv", name, [turned, bias.astype(np.float32)], **attributes)

    def dense(self, name, weights, bias):
        """`weights` are [numbers in, numbers out]."""
        self.add("Gemm", name, [np.ascontiguousarray(weights, np.float32), bias.astype(np.float32)])


def code(graph, input):
    """The fixed first layer, as in network.py."""
    scale, offset = input.code()
    if len(offset):
        graph.convolution("ranges", scale[None], offset)
        graph.add("Clip", "code", [np.float32(0), np.float32(1)])
    if input.flags_channel is None:
        return
    coded, graph.last = [graph.last] * bool(len(offset)), "image"
    powers = np.zeros((1, len(input.features), inputs.FLAG_BITS + 1), np.float32)
    powers[0, input.flags_channel] = 0.5 ** np.arange(inputs.FLAG_BITS + 1)
    graph.convolution("powers", powers, np.zeros(inputs.FLAG_BITS + 1))
    graph.add("Floor", "whole")
    bits = np.eye(inputs.FLAG_BITS + 1, inputs.FLAG_BITS) - 2 * np.eye(inputs.FLAG_BITS + 1, inputs.FLAG_BITS, -1)
    graph.convolution("bits", bits[None], np.zeros(inputs.FLAG_BITS))
    if coded:
        graph.add("Concat", "all_codes", before=coded, axis=1)


def model(params, classes, input=dataset.INPUT, name=NAME):
    """The ONNX model of these weights."""
    channels = len(input.features)
    graph = Graph("series")
    graph.add("Reshape", "image", [np.array([-1, channels, 1, input.k], np.int64)])
    code(graph, input)
    for layer in ("conv1", "conv2"):
        graph.convolution(layer, params[layer], params[layer + "_bias"], padding=1)
        graph.add("Relu", layer + "_relu")
    graph.add("Flatten", "flat", axis=1)
    # A convolution's output lies channel by channel, in training it lies place by place.
    by_channel = params["dense"].transpose(1, 0, 2)
    graph.dense("dense", by_channel.reshape(-1, by_channel.shape[-1]), params["dense_bias"])
    graph.add("Relu", "dense_relu")
    graph.dense("out", params["out"], params["out_bias"])
    graph.add("Softmax", "probabilities", axis=1)
    made = helper.make_graph(
        graph.nodes,
        name,
        [helper.make_tensor_value_info("series", TensorProto.FLOAT, ["N", channels, input.k])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", classes])],
        graph.constants,
    )
    opset = [helper.make_opsetid("", OPSET)]
    made = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION, producer_name="fenxi")
    onnx.checker.check_model(made, full_check=True)
    return made


def golden_inputs(flows):
    """Series of every class in turn, then extremes: saturated numbers and the smallest."""
    made = flows.input.extremes()
    order = np.random.default_rng(1).permutation(len(flows.series))
    queues = [[i for i in order if flows.classes[i] == c] for c in range(len(flows.names))]
    turns = [i for turn in zip(*queues) for i in turn][: GOLDEN_ROWS - len(made)]
    return np.concatenate([flows.series[turns], made])


def write_table(path, rows):
    """One row per line, the numbers exact (nine digits identify a float32)."""
    lines = (",".join(f"{v:.9g}" for v in row.ravel()) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))


def manifest(name, version, precision, flows, digest):
    """The text of model.toml."""
    quoted = lambda text: json.dumps(text, ensure_ascii=False)  # also how TOML quotes
    labels = "".join(
        f"\n[[labels]]\nname = {quoted(n)}\ntaxonomy = {quoted(flows.taxonomy[n])}\n" for n in flows.names
    )
    # Packets are the unit where a bundle names none; app-id-k10 is from before there was a choice.
    unit = f'unit = "{flows.input.unit}"\n' if flows.input != dataset.INPUT else ""
    return f"""\
# Written by models/train; see CARD.md.
schema_version = 1
name = "{name}"
version = "{version}"
file = "model.onnx"
sha256 = "{digest}"
k = {flows.input.k}
{unit}features = {json.dumps(flows.input.features)}
precision = "{precision}"
min_confidence = 0.0

[input]
name = "series"

[output]
name = "probabilities"

# In the order of the output's columns.
{labels.lstrip()}"""


def write_bundle(folder, name, precision, flows, made, version=VERSION):
    """The bundle of the model `made`, given as bytes, but for its card."""
    (folder / "golden").mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(made)
    digest = hashlib.sha256(made).hexdigest()
    (folder / "model.toml").write_text(manifest(name, version, precision, flows, digest))
    inputs = golden_inputs(flows)
    write_table(folder / "golden/inputs.csv", inputs)
    write_table(folder / "golden/outputs.csv", runtime.run(runtime.session(made), inputs))


def main():
    parser = argparse.ArgumentParser(description="write the bundle")
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("weights", help="what train.py wrote (.npz)")
    parser.add_argument("bundle", type=pathlib.Path, help="folder to write")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    made = model(dict(np.load(args.weights)), len(flows.names)).SerializeToString(deterministic=True)
    write_bundle(args.bundle, NAME, "fp32", flows, made)


if __name__ == "__main__":
    main()
