"""The ONNX form of a network: raw numbers in, calibrated probabilities out.

Learned vectors and fixed codes of lengths are one table, so a length costs one look-up.  Dense layers are
matrix products over the batch.  In batches of two rows or more each row is summed in the same order whatever the
batch; check.py checks it.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import encode
from .inputs import LOCAL_MAX

OPSET, IR_VERSION = 17, 8  # read by ONNX Runtime 1.17 and later


class Graph:
    """Nodes and constants by name; each network of an ensemble has a prefix."""

    def __init__(self):
        self.nodes, self.constants, self.prefix = [], [], ""

    def constant(self, name, values, kind=np.float32):
        name = self.prefix + name
        self.constants.append(numpy_helper.from_array(np.array(values, kind, order="C"), name))
        return name

    def add(self, operator, name, *inputs, **attributes):
        name = self.prefix + name
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def cut(self, name, value, low, high):
        """The value within bounds, as an index."""
        bounds = self.constant(f"{name}_low", low), self.constant(f"{name}_high", high)
        value = self.add("Clip", f"{name}_cut", value, *bounds)
        if low < 0:
            value = self.add("Add", f"{name}_moved", value, self.constant(f"{name}_offset", -low))
        return self.add("Cast", f"{name}_index", value, to=TensorProto.INT32)

    def column(self, name, values, i, count, shape):
        """Column or channel i of an input."""
        if count == 1:
            return self.add("Reshape", name, values, self.constant(f"{name}_shape", shape, np.int64))
        return self.add("Gather", name, values, self.constant(f"{name}_at", i, np.int64), axis=1)

    def dense(self, name, values, weights, bias):
        return self.add("Gemm", name, values, self.constant(f"{name}_w", weights), self.constant(f"{name}_b", bias))


def model(nets, temperatures, name):
    """The ONNX model of an ensemble; `temperatures` [k + 1] by the number of elements."""
    graph, net = Graph(), nets[0]
    input = net.encoder.input
    channels = {
        feature: graph.column(feature, "series", i, len(input.features), [-1, input.k])
        for i, feature in enumerate(input.features)
    }
    shared = indices(graph, net.encoder, channels)
    flat_context = context_parts(graph, net.encoder, input)
    ports = port_index(graph, net.encoder, input) if "ports" in net.weights else None
    found = []
    for i, net in enumerate(nets):
        graph.prefix = f"n{i}_" if len(nets) > 1 else ""
        found.append(scores(graph, net, shared, flat_context, ports))
    graph.prefix = ""
    x = found[0]
    if len(nets) > 1:
        x = graph.add("Sum", "sum", *found)
    x = tempered(graph, input, channels, x, np.asarray(temperatures) * len(nets))
    graph.add("Softmax", "probabilities", x, axis=1)
    return finished(graph, net.classes, input, name)


def scores(graph, net, shared, flat_context, ports):
    """The scores of one network."""
    image, order = elements(graph, net, shared)
    flat, order = convolved(graph, net, image, order)
    parts = [flat, *flat_context]
    if ports:
        parts.append(graph.add("Gather", "port_vector", graph.constant("port_vectors", net.weights["ports"]), ports))
    x = graph.add("Concat", "all", *parts, axis=1) if len(parts) > 1 else flat
    for i in range(len(net.shape.hidden)):
        weights = net.weights[f"dense{i}"]
        if i == 0:
            weights = np.concatenate([weights[order], weights[len(order) :]])
        x = graph.dense(f"dense{i}", x, weights, net.weights[f"dense{i}_bias"])
        x = graph.add("Relu", f"dense{i}_relu", x)
    x = graph.dense("out", x, net.weights["out"], net.weights["out_bias"])
    if ports:
        direct = graph.add("Gather", "port_score", graph.constant("port_scores", net.weights["port_scores"]), ports)
        x = graph.add("Add", "scores", x, direct)
    return x


def indices(graph, encoder, channels):
    """What all networks of an ensemble look up: the row of each length in a table, bits of flags, codes of times."""
    found = {}
    for feature, values in channels.items():
        if feature in encoder.length_categories:
            if feature == "payload_length" and "signed_length" in channels:
                sign = graph.add("Sign", "direction", channels["signed_length"])
                values = graph.add("Mul", "signed_payload", values, sign)
            found[feature] = graph.cut(feature, values, -encode.LENGTH_TOP, encode.LENGTH_TOP)
        elif feature == "tcp_flags":
            bits = np.arange(256)[:, None] >> np.arange(encode.FLAG_BITS) & 1
            index = graph.cut(feature, values, 0, 255)
            found[feature] = graph.add("Gather", "flag_bits", graph.constant("bits", bits), index)
        else:
            found[feature] = time_code(graph, values)
    return found


def elements(graph, net, shared):
    """The code of each element, [N, k, D], and where each of its numbers stands in the network's own order."""
    encoder, shape, parts, order = net.encoder, net.shape, [], []
    lengths = list(encoder.length_categories)
    place = shape.vector * len(lengths)
    for feature, value in shared.items():
        if feature in lengths:
            i, codes = lengths.index(feature), encoder.length_codes(feature)
            table = np.concatenate([net.weights[f"vectors{i}"][encoder.length_categories[feature]], codes], axis=1)
            table = table[encoder.counts_as + encode.LENGTH_TOP]
            parts.append(graph.add("Gather", f"{feature}_code", graph.constant(f"{feature}_table", table), value))
            order += [*range(i * shape.vector, (i + 1) * shape.vector)]
            width = codes.shape[1]
        else:
            parts.append(value)
            width = encode.FLAG_BITS if feature == "tcp_flags" else len(encode.TIME_EDGES) - 1
        order += [*range(place, place + width)]
        place += width
    return (graph.add("Concat", "elements", *parts, axis=2) if len(parts) > 1 else parts[0]), np.array(order)


def time_code(graph, values):
    """The thermometer of times."""
    low, high = (np.array(e, np.float32) for e in (encode.TIME_EDGES[:-1], encode.TIME_EDGES[1:]))
    wide = graph.add("Unsqueeze", "times_wide", values, graph.constant("times_axis", [2], np.int64))
    scaled = graph.add("Mul", "times_scaled", wide, graph.constant("times_scale", 1 / (high - low)))
    moved = graph.add("Add", "times_moved", scaled, graph.constant("times_offset", -low / (high - low)))
    return graph.add("Clip", "times_code", moved, graph.constant("zero", 0.0), graph.constant("one", 1.0))


def convolved(graph, net, image, order):
    """Elements after the convolutions, as one row, and the order of its numbers."""
    k, width = net.encoder.input.k, len(order)
    if not net.shape.convolutions:
        flat = graph.add("Reshape", "flat", image, graph.constant("flat_shape", [-1, k * width], np.int64))
        return flat, (np.arange(k)[:, None] * width + order[None, :]).ravel()
    x = graph.add("Transpose", "by_channel", image, perm=[0, 2, 1])
    x = graph.add("Unsqueeze", "image", x, graph.constant("image_axis", [2], np.int64))
    for i, channels in enumerate(net.shape.convolutions):
        weights = net.weights[f"conv{i}"].reshape(3, -1, channels)
        weights = weights[:, order] if i == 0 else weights
        kernel = graph.constant(f"conv{i}_w", weights.transpose(2, 1, 0)[:, :, None, :])
        bias = graph.constant(f"conv{i}_b", net.weights[f"conv{i}_bias"])
        x = graph.add("Conv", f"conv{i}", x, kernel, bias, kernel_shape=[1, 3], pads=[0, 1, 0, 1])
        x = graph.add("Relu", f"conv{i}_relu", x)
    last = net.shape.convolutions[-1]
    return graph.add("Flatten", "flat", x, axis=1), np.arange(k * last).reshape(k, last).T.ravel()


def context_parts(graph, encoder, input):
    """The context's numbers other than the port, each from 0 to 1."""
    parts = []
    shape = [-1, 1]
    if "protocol" in input.context:
        value = graph.column("protocol", "context", [input.context.index("protocol")], len(input.context), shape)
        moved = graph.add("Add", "protocol_moved", value, graph.constant("protocol_offset", -6.0))
        scaled = graph.add("Mul", "protocol_scaled", moved, graph.constant("protocol_scale", 1 / 11))
        parts.append(graph.add("Clip", "is_udp", scaled, graph.constant("udp_low", 0.0), graph.constant("udp_high", 1.0)))
    codes = encode.thermometer(encode.LOCAL_EDGES, np.arange(LOCAL_MAX + 1, dtype=np.float32))
    for name, at in encoder.local:
        value = graph.column(name, "context", at, len(input.context), [-1])
        index = graph.cut(name, value, 0, LOCAL_MAX)
        parts.append(graph.add("Gather", f"{name}_code", graph.constant(f"{name}_table", codes), index))
    return parts


def port_index(graph, encoder, input):
    """The category of each row's port."""
    value = graph.column("server_port", "context", input.context.index("server_port"), len(input.context), [-1])
    index = graph.cut("port", value, 0, encode.PORTS - 1)
    table = graph.constant("port_categories", encoder.port_categories, np.uint8)
    return graph.add("Cast", "port_category", graph.add("Gather", "port_byte", table, index), to=TensorProto.INT32)


def tempered(graph, input, channels, scores, temperatures):
    """Scores divided by the temperature of the row's depth."""
    if np.all(temperatures == 1):
        return scores
    if not input.has_lengths:
        return graph.add("Mul", "tempered", scores, graph.constant("inverse_temperature", 1 / temperatures[-1]))
    size = graph.add("Abs", "size", channels["signed_length" if "signed_length" in channels else "payload_length"])
    there = graph.add("Clip", "there", size, graph.constant("there_low", 0.0), graph.constant("there_high", 1.0))
    count = graph.add("ReduceSum", "count", there, graph.constant("count_axis", [1], np.int64), keepdims=1)
    index = graph.add("Cast", "depth", count, to=TensorProto.INT32)
    inverse = graph.add("Gather", "inverse", graph.constant("inverse_temperatures", 1 / temperatures), index)
    return graph.add("Mul", "tempered", scores, inverse)


def finished(graph, classes, input, name, domains=()):
    """The model's bytes; `domains` are (domain, version) of operators beside ONNX's own."""
    values = [helper.make_tensor_value_info("series", TensorProto.FLOAT, ["N", len(input.features), input.k])]
    if input.context:
        values.append(helper.make_tensor_value_info("context", TensorProto.FLOAT, ["N", len(input.context)]))
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", classes])]
    made = helper.make_graph(graph.nodes, name, values, outputs, graph.constants)
    opset = [helper.make_opsetid(*d) for d in (("", OPSET), *domains)]
    made = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION, producer_name="fenxi")
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString(deterministic=True)
