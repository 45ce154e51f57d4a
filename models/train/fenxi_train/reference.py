"""The arithmetic of fenxi's engine, in numpy: what every instruction set computes, to the bit.

A network's lengths become rows of tables, its layers sums of whole numbers:

    activation      0 .. top             one scale for each channel
    weight          7 or 11 bits, sign   one scale for each output
    sum             32 bits              activation = clamp((sum + bias) >> shift, 0, top)
    table entry     16 bits              summed in 16 bits; activation = clamp(sum, 0, top), or of
                                         a convolution clamp(mulhrs(sum, m), 0, top)
    score           32 bits              log2 units, 11 bits after the point, at the sharpest
                                         temperature
    probability     15 bits              2^-t by a cubic; its share of the sum

Activations of a convolution are bytes (top 127) that another layer's weights of 7 bits multiply;
all others, and the last ones before the scores, are words (top 4095) with weights of 11 bits.

A scale is a float that only `compiled` knows.  It is chosen so that the range of a channel
(ranges.py) fills 0 to top, and that a sum becomes an activation by a shift; the weights of the next
layer absorb what is left.  Sums of floats run in index order without fused multiply-add, so any
language compiles the same integers.
"""

import dataclasses
import json
import math

import numpy as np
import onnx
from onnx import numpy_helper

from .errors import Refusal
from .inputs import LENGTH_MAX

BYTE_TOP, WORD_TOP = 127, 4095  # of an activation
WEIGHT_TOP = {BYTE_TOP: 127, WORD_TOP: 2047}  # by the activations that it multiplies
PRODUCTS = 1 << 30  # of sums of products, at most; rounding and the bias add less than again
DENSE_SUM, CONVOLUTION_SUM = 32_000, 32_700  # of table entries, at most; rounding adds a little
SHIFT_MAX, BIAS_MAX = 24, 1 << 29
PROTOCOLS = 256
SCORE = math.log2(math.e) * 2048  # of a natural logarithm in a score's units
OUT_SHIFT_MAX = 30
SCORE_MAX = 1 << 26
EXP2 = (32767, -22645, 7556, -1295)  # 2^-x for x from 0 to 1, in 1 / 32768


# The network in floats.


@dataclasses.dataclass
class Layer:
    """A matrix, or one for each of the three places of a convolution."""

    name: str  # of the ReLU's output, or of the scores
    weights: np.ndarray  # float64 [inputs, outputs] or [3, inputs, outputs]
    bias: np.ndarray


@dataclasses.dataclass
class Net:
    """What a graph computes, its constants as float64."""

    row: np.ndarray  # index into `codes` of each length from -LENGTH_MAX to LENGTH_MAX
    codes: np.ndarray  # [codes, numbers]; neighbours differ
    layers: list[Layer]  # with ReLU; convolutions before matrices
    out: Layer
    inverse_temperatures: np.ndarray  # [k + 1], by elements
    categories: np.ndarray  # of each port
    vectors: np.ndarray  # [categories, numbers], behind is_udp
    scores: np.ndarray  # [categories, classes], added to the outputs
    is_udp: np.ndarray  # [protocols, 1] by number, or [1, 0]: behind the elements' codes


class Graph:
    """Nodes by their output, and constants."""

    def __init__(self, model):
        graph = onnx.load_from_string(model).graph
        self.nodes = {node.output[0]: node for node in graph.node}
        self.constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.output, self.inputs = graph.output[0].name, graph.input

    def is_made_by(self, value, operator):
        return value in self.nodes and self.nodes[value].op_type == operator

    def inputs_of(self, value, *operators):
        """Inputs of the node that makes a value, after checking its kind.  Several operators are a
        chain whose last one makes the value; then the inputs are the first node's."""
        for operator in reversed(operators):
            if not self.is_made_by(value, operator):
                found = self.nodes[value].op_type if value in self.nodes else "an input"
                raise Refusal(f"{value}: {found}, where integers need {operator}")
            node = self.nodes[value]
            value = node.input[0]
        return node.input

    def number(self, name):
        if name not in self.constants:
            raise Refusal(f"{name}: computed, where integers need a constant")
        return self.constants[name].astype(np.float64)

    def single(self, name):
        """A constant as float32, in which codes are computed as the graph does."""
        return self.number(name).astype(np.float32)

    def gathered(self, value):
        """The table that a value is looked up in."""
        return self.number(self.inputs_of(value, "Gather")[0])


def read(model):
    """The network of a model given as bytes; refuses a graph that has no integers, by node."""
    graph = Graph(model)
    k = graph.inputs[0].type.tensor_type.shape.dim[2].dim_value
    below = graph.inputs_of(graph.output, "Softmax")[0]
    inverse, scores = np.ones(k + 1), None
    if graph.is_made_by(below, "Mul"):
        below, depth = graph.inputs_of(below, "Mul")
        inverse = graph.gathered(depth)
    if graph.is_made_by(below, "Add"):
        below, port = graph.inputs_of(below, "Add")
        scores = graph.gathered(port)
    out, below = matrix(graph, below, below)
    layers = []
    while graph.is_made_by(below, "Relu"):
        layer, below = matrix(graph, below, graph.inputs_of(below, "Relu")[0])
        layers.insert(0, layer)
    context = []
    if graph.is_made_by(below, "Concat"):
        below, *context = graph.inputs_of(below, "Concat")
    is_udp, vectors, categories = context_of(graph, context)
    if scores is None:
        scores = np.zeros((len(vectors), len(out.bias)))
    if graph.is_made_by(below, "Flatten") and not context:
        below = graph.inputs_of(below, "Flatten")[0]
        # The graph has all places of a channel together, the integers all channels of a place.
        weights = layers[0].weights
        by_channel = weights.reshape(-1, k, weights.shape[1])
        layers[0].weights = by_channel.swapaxes(0, 1).reshape(weights.shape)
        while graph.is_made_by(below, "Relu"):
            layer, below = convolution(graph, below, graph.inputs_of(below, "Relu")[0])
            layers.insert(0, layer)
    codes = element_codes(graph, below)
    first = np.r_[True, (codes[1:] != codes[:-1]).any(axis=1)]  # of a run of equal codes
    row, codes = np.cumsum(first) - 1, codes[first]
    return Net(row, codes, layers, out, inverse, categories, vectors, scores, is_udp)


def context_of(graph, values):
    """What the first matrix reads of each protocol, the vectors of ports, and their index."""
    is_udp, vectors, categories = np.zeros((1, 0)), np.zeros((1, 0)), np.zeros(65_536, int)
    if values and graph.is_made_by(values[0], "Clip"):
        is_udp = udp_code(graph, values[0])[:, None]
    if len(values) > is_udp.shape[1]:
        vectors, index = graph.inputs_of(values[-1], "Gather")
        vectors = graph.number(vectors)
        categories = graph.gathered(graph.inputs_of(index, "Cast")[0]).astype(int)
    return is_udp, vectors, categories


def udp_code(graph, value):
    """0 for TCP and 1 for UDP, by the number of the protocol."""
    value, low, high = graph.inputs_of(value, "Clip")
    value, scale = graph.inputs_of(value, "Mul")
    value, offset = graph.inputs_of(value, "Add")
    moved = np.arange(PROTOCOLS, dtype=np.float32) + graph.single(offset)
    return np.clip(moved * graph.single(scale), graph.single(low), graph.single(high))


def matrix(graph, name, value):
    below, weights, bias = graph.inputs_of(value, "Gemm")
    return Layer(name, graph.number(weights), graph.number(bias)), below


def convolution(graph, name, value):
    below, weights, bias = graph.inputs_of(value, "Conv")
    return Layer(name, graph.number(weights)[:, :, 0].transpose(2, 1, 0), graph.number(bias)), below


def element_codes(graph, value):
    """The code of each length from -LENGTH_MAX to LENGTH_MAX, float64 [lengths, numbers]."""
    lengths = np.arange(-LENGTH_MAX, LENGTH_MAX + 1, dtype=np.float32)
    if graph.is_made_by(value, "Clip"):
        value, low, high = graph.inputs_of(value, "Clip")
        _, scale, offset = graph.inputs_of(value, "Conv")
        codes = lengths[:, None] * graph.single(scale).ravel() + graph.single(offset)
        return np.clip(codes, graph.single(low), graph.single(high)).astype(np.float64)
    for operator in ("Unsqueeze", "Transpose", "Reshape"):
        if graph.is_made_by(value, operator):
            value = graph.inputs_of(value, operator)[0]
    table, index = graph.inputs_of(value, "Gather")
    value, offset = graph.inputs_of(index, "Add", "Cast")
    value, low, high = graph.inputs_of(value, "Clip")
    graph.inputs_of(value, "Reshape")
    index = np.clip(lengths, graph.number(low), graph.number(high)) + graph.number(offset)
    return graph.number(table)[index.astype(int)]


# The integers.


def compiled(net, ranges):
    """All integers by name.  `ranges` is by layer, by the name of its output."""
    first, *others = net.layers
    made = {"elements": net.row}
    fold = first_convolution if first.weights.ndim == 3 else first_matrix
    folded, scales = fold(net, first, wanted(ranges, first), top(net, 0))
    made |= folded | {"first.top": np.array([top(net, 0)])}
    places = len(net.inverse_temperatures) - 1
    for i, layer in enumerate(others):
        after_convolution = layer.weights.ndim == 2 and net.layers[i].weights.ndim == 3
        inputs = np.tile(scales, places) if after_convolution else scales
        tops = top(net, i), top(net, i + 1)
        weights, bias, shift, scales = hidden(layer, inputs, wanted(ranges, layer), *tops)
        new = {"weights": weights, "bias": bias, "shifts": shift, "top": np.array([tops[1]])}
        made |= {f"hidden{i}.{n}": v for n, v in new.items()}
    return made | output(net, scales)


def top(net, i):
    """The largest activation that a layer makes."""
    is_last = i + 1 == len(net.layers)
    return WORD_TOP if net.layers[i].weights.ndim == 2 or is_last else BYTE_TOP


def wanted(ranges, layer):
    """The range of each channel."""
    found = ranges.get(layer.name)
    if found is None or len(found) != len(layer.bias):
        raise Refusal(f"{layer.name}: no ranges for its {len(layer.bias)} channels; write them with"
                      " fenxi-train ranges")
    return found.astype(np.float64)


def rounded(values):
    """To the nearest whole number, halves to the even one."""
    return np.rint(values).astype(np.int64)


def ordered_sum(rows, weights, kind=np.float64):
    """rows @ weights in index order, each product rounded before it is added."""
    rows, weights = rows.astype(kind), weights.astype(kind)
    total = np.zeros((len(rows), weights.shape[1]), kind)
    for i, row in enumerate(weights):
        total = total + rows[:, i, None] * row
    return total


def folded(codes, parts):
    """All codes times the weights of each part, in float32."""
    return np.stack([ordered_sum(codes, part, np.float32) for part in parts])


def entries(products, scale):
    """Table entries, from float32 by float32."""
    return rounded(products * (1 / scale).astype(np.float32))


def exponent(values):
    """The largest n with 2^n <= value."""
    return np.frexp(values)[1] - 1


def shifts(activation, least, most):
    """How often each scale can be halved, up to `most`, without falling below the least one; 0
    where that is 0."""
    found = np.zeros(len(least), int)
    some = least > 0
    found[some] = np.minimum(exponent(activation[some] / least[some]), most)
    return found


def check(layer, holds):
    if not np.all(holds):
        raise Refusal(f"{layer.name}: its weights are too large for integers")


def first_matrix(net, layer, ranges, top):
    """A matrix over codes as a table for each place; and its activations' scales."""
    width, places = net.codes.shape[1], len(net.inverse_temperatures) - 1
    ends = [width * p for p in range(1, places + 1)]
    parts = np.split(layer.weights, [*ends, ends[-1] + net.is_udp.shape[1]])
    tables = folded(net.codes, parts[:places])
    udp = ordered_sum(net.is_udp, parts[places])
    port = ordered_sum(net.vectors, parts[-1])
    if net.vectors.shape[1] or not net.is_udp.shape[1]:
        port = port + layer.bias
    else:
        udp = udp + layer.bias
    sums = np.abs(tables).max(axis=1).astype(np.float64).sum(axis=0)
    sums = sums + np.abs(udp).max(axis=0) + np.abs(port).max(axis=0)
    scale = np.maximum(ranges / top, sums / DENSE_SUM)
    tables = entries(tables, scale)
    udp, port = (rounded(part / scale) for part in (udp, port))
    sums = np.abs(tables).max(axis=1).sum(axis=0)
    check(layer, sums + np.abs(udp).max(axis=0) + np.abs(port).max(axis=0) <= 32767)
    made = {"tables": tables, "protocol": udp, "port": port}
    return {"ports": net.categories, **{f"first.{n}": v for n, v in made.items()}}, scale


def first_convolution(net, layer, ranges, top):
    """A convolution over codes as a table for each of its three places, in 16 bits; and its
    activations' scales."""
    taps = folded(net.codes, layer.weights)
    largest = np.abs(taps).max(axis=1).astype(np.float64)
    least = (largest.sum(axis=0) + np.abs(layer.bias)) / CONVOLUTION_SUM
    activation = np.maximum(ranges / top, 2 * least)
    shift = shifts(activation, least, 15)
    scale = activation / 2.0**shift
    taps, bias = entries(taps, scale), rounded(layer.bias / scale)
    check(layer, np.abs(taps).max(axis=1).sum(axis=0) + np.abs(bias) <= 32767)
    made = {"taps": taps, "bias": bias, "multipliers": 2 ** (15 - shift)}
    return {f"first.{n}": v for n, v in made.items()}, activation


def hidden(layer, inputs, ranges, top_before, top):
    """Weights [1 or 3, inputs, outputs], biases and shifts of a layer whose inputs have these
    scales; and its activations' scales."""
    scaled = layer.weights.reshape(-1, *layer.weights.shape[-2:]) * inputs[:, None]
    sizes = np.abs(scaled).reshape(-1, scaled.shape[-1])
    # The scale of the sums at which weights and sums fit.
    least = sizes.max(axis=0) / WEIGHT_TOP[top_before]
    least = np.maximum(least, column_sums(sizes) * (top_before / PRODUCTS))
    activation = np.maximum(ranges / top, least)
    shift = shifts(activation, least, SHIFT_MAX)
    scale = activation / 2.0**shift
    weights = rounded(scaled / scale)
    bias = np.clip(rounded(layer.bias / scale), -BIAS_MAX, BIAS_MAX)
    # Half of what is shifted out rounds to the nearest.
    bias = bias + np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
    return weights, bias, shift, activation


def column_sums(rows):
    """Sums in index order; numpy's own adds in another."""
    return np.add.accumulate(rows, axis=0)[-1]


def output(net, inputs):
    """The layer before the softmax, whose sums are shifted to the unit of scores."""
    scaled = net.out.weights * inputs[:, None]
    unit = SCORE * net.inverse_temperatures.max()
    largest = np.abs(scaled).max() * unit
    sums = column_sums(np.abs(scaled)).max() * unit
    for shift in range(OUT_SHIFT_MAX, 0, -1):
        fits = largest * 2.0**shift <= WEIGHT_TOP[WORD_TOP]
        fits &= sums * 2.0**shift * (WORD_TOP / PRODUCTS) <= 1
        if fits:
            break
    check(net.out, fits)
    weights, bias = rounded(scaled * (unit * 2.0**shift)), (net.scores + net.out.bias) * unit
    check(net.out, sums * WORD_TOP + np.abs(bias).max() <= SCORE_MAX)
    inverse = net.inverse_temperatures
    # By elements, as a share of the sharpest.
    temperatures = np.minimum(rounded(inverse / inverse.max() * 32768), 32767)
    made = {"weights": weights, "shift": np.array([shift]), "scores": rounded(bias),
            "temperatures": temperatures}
    return {f"output.{n}": v for n, v in made.items()}


# What they compute.


def run(made, series, context):
    """Class, confidence (of 32768) and the classes' weights of rows: int [rows], [rows], [rows,
    classes].  A context has the protocol, the port, or both in this order."""
    lengths = whole(series[:, 0], -LENGTH_MAX, LENGTH_MAX)
    code, port = made["elements"][lengths + LENGTH_MAX], np.zeros(len(series), int)
    if "first.taps" in made:
        taps = made["first.taps"]
        sums = padded(lambda t, code: taps[t, code], code) + made["first.bias"]
        sums = mulhrs(sums, made["first.multipliers"])
    else:
        protocol, tables = port, made["first.tables"]
        if context.shape[1]:
            port = made["ports"][whole(context[:, -1], 0, 65_535)]
            protocol = whole(context[:, 0], 0, len(made["first.protocol"]) - 1)
        sums = made["first.protocol"][protocol] + made["first.port"][port]
        for place, table in enumerate(tables):
            sums = sums + table[code[:, place]]
    a, i = np.clip(sums, 0, made["first.top"][0]), 0
    while f"hidden{i}.weights" in made:
        names = "weights", "bias", "shifts", "top"
        weights, bias, shifts, top = (made[f"hidden{i}.{n}"] for n in names)
        if len(weights) == 3:
            sums = padded(lambda t, a: product(a, weights[t]), a)
        else:
            sums = product(a.reshape(len(a), -1), weights[0])
        a, i = np.clip((sums + bias) >> shifts, 0, top[0]), i + 1
    shift = made["output.shift"][0]
    sums = product(a, made["output.weights"]) + (1 << (shift - 1))
    scores = (sums >> shift) + made["output.scores"][port]
    return softmax(scores, made["output.temperatures"][(lengths != 0).sum(axis=1)])


def whole(values, low, high):
    """Whole numbers within bounds; fractions are cut off, and what is no number is 0."""
    return np.clip(np.nan_to_num(values.astype(np.float64)), low, high).astype(np.int64)


def padded(tap, values):
    """The sum of three taps at each place of a row; beside its ends there is nothing."""
    sums = tap(1, values)
    sums[:, 1:] += tap(0, values[:, :-1])
    sums[:, :-1] += tap(2, values[:, 1:])
    return sums


def product(a, weights):
    """a @ weights in whole numbers; float64 holds these sums exactly, and is faster."""
    return (a.astype(np.float64) @ weights.astype(np.float64)).astype(np.int64)


def mulhrs(a, b):
    """The product of two 16-bit numbers in Q15, rounded: `pmulhrsw`, `sqrdmulh`."""
    return (a * b + (1 << 14)) >> 15


def exp2(t):
    """2^-t in Q15, t in Q11 from 0 to 32767."""
    x = (t & 2047) << 4
    p = mulhrs(x, EXP2[3]) + EXP2[2]
    p = mulhrs(x, p) + EXP2[1]
    return (mulhrs(x, p) + EXP2[0]) >> (t >> 11)


def softmax(scores, temperature):
    below = np.minimum(scores.max(axis=1, keepdims=True) - scores, 32767)
    weights = exp2(mulhrs(below, temperature[:, None]))
    return scores.argmax(axis=1), (32767 << 15) // weights.sum(axis=1), weights


def load(path):
    """The integers that the engine compiled, from a snapshot, which has the form of safetensors:
    the length of a header, the header in JSON, the numbers."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    made = {}
    tensors = json.loads(content[8:start])
    tensors.pop("__metadata__")
    for name, about in tensors.items():
        kind = np.dtype(f"<{about['dtype'][0].lower()}{int(about['dtype'][1:]) // 8}")
        first, end = (start + offset for offset in about["data_offsets"])
        values = np.frombuffer(content[first:end], kind).reshape(about["shape"])
        made[name] = values.astype(np.int64)
    return by_number(made)


def by_number(made):
    """The same with look-ups by length, protocol and port, as `compiled` gives them."""
    made = {name: values for name, values in made.items() if name != "shape"}
    low, row_of = made.pop("elements.low")[0], made.pop("elements.row_of")
    lengths = np.arange(-LENGTH_MAX, LENGTH_MAX + 1)
    made["elements"] = row_of[np.clip(lengths - low, 0, len(row_of) - 1)]
    parts, i = [], 0
    while f"first.context{i}" in made:
        lookup = made.pop(f"first.context{i}.lookup")[0]
        row_of = made[f"lookup{lookup}.row_of"] if lookup >= 0 else np.zeros(1, int)
        parts.append((made.pop(f"first.context{i}"), row_of))
        i += 1
    if parts:
        # The last one is by port, of two the first by protocol.
        made["first.port"], row_of = parts[-1]
        made["ports"] = row_of[np.minimum(np.arange(65_536), len(row_of) - 1)]
        none = np.zeros_like(made["first.port"][:1])
        made["first.protocol"] = parts[0][0][parts[0][1]] if len(parts) == 2 else none
    return {n: v for n, v in made.items() if not n.startswith("lookup") and n != "output.lookup"}
