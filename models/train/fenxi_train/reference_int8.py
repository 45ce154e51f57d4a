"""A network in 8 bits as ONNX Runtime computes it, in numpy: whole numbers up to its scores.

Between a QuantizeLinear and the next one everything is whole numbers: sums of products, and a bias in
their unit.  A sum becomes a byte by one multiplication in float32, rounded to the even of two.
"""

import dataclasses

import numpy as np
import onnx
from onnx import numpy_helper

from .errors import Refusal


@dataclasses.dataclass
class Quantized:
    """Whole numbers, and what one of them is worth."""

    numbers: np.ndarray
    scale: np.float32

    @property
    def values(self):
        return self.numbers.astype(np.float32) * self.scale


class Sums(Quantized):
    """Of products; not yet bytes."""


def scores(model, series, context):
    """What the softmax is given, float32 [rows, classes]; `model` is given as bytes."""
    graph = onnx.load_from_string(model).graph
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    found |= {i.name: v for i, v in zip(graph.input, (series, context))}
    for node in graph.node:
        inputs = [found[name] for name in node.input]
        if node.op_type == "Softmax":
            return plain(inputs[0])
        if node.op_type not in OPERATORS:
            raise Refusal(f"{node.name}: {node.op_type} is unknown in 8 bits")
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        found[node.output[0]] = OPERATORS[node.op_type](*inputs, **given)
    raise Refusal(f"{graph.name}: no Softmax")


def plain(value):
    return value.values if isinstance(value, Quantized) else value


def quantize(value, scale, zero):
    """Bytes; a sum of products is multiplied, what is a float is divided."""
    if isinstance(value, Sums):
        steps = value.numbers.astype(np.float32) * (value.scale / scale.item())
    else:
        steps = plain(value) / scale
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(zero.dtype)


def dequantize(numbers, scale, zero):
    return Quantized(numbers.astype(np.int32) - zero.astype(np.int32), np.float32(scale.item()))


def gemm(a, weights, bias):
    if not isinstance(a, Quantized):
        return a @ weights + bias
    return summed(product(a.numbers, weights.numbers), a, weights, bias)


def conv(a, weights, bias, pads, **_):
    """A convolution over three places of a row."""
    padded = np.pad(a.numbers, ((0, 0), (0, 0), (0, 0), (pads[1], pads[3])))
    places = padded.shape[3] - 2
    sums = 0
    for tap in range(3):
        inputs = padded[:, :, 0, tap : tap + places].swapaxes(1, 2)
        sums = sums + product(inputs, weights.numbers[:, :, 0, tap].T)
    return summed(sums.swapaxes(1, 2)[:, :, None], a, weights, bias, (-1, 1, 1))


def product(a, weights):
    return (a.astype(np.float64) @ weights.astype(np.float64)).astype(np.int64)


def summed(sums, a, weights, bias, shape=(-1,)):
    """Sums of products, and a bias in their unit."""
    sums = sums + bias.numbers.astype(np.int64).reshape(shape)
    return Sums(sums, a.scale * weights.scale)


def reshape(values, shape):
    """Rows stay the first axis, also where a graph lays them along the height of an image."""
    return values.reshape(len(values), *shape[1:])


def moved(change):
    """An operator that only moves numbers."""

    def run(value, *more, **given):
        if isinstance(value, Quantized):
            return Quantized(change(value.numbers, *more, **given), value.scale)
        return change(value, *more, **given)

    return run


OPERATORS = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "Gemm": gemm,
    "Conv": conv,
    "Reshape": moved(reshape),
    "Transpose": moved(lambda x, perm: x.transpose(perm)),
    "Relu": lambda x: np.maximum(plain(x), 0),
    "Add": lambda a, b: plain(a) + plain(b),
    "Mul": lambda a, b: plain(a) * plain(b),
    "Clip": lambda x, low, high: np.clip(x, low, high),
    "Abs": np.abs,
    "Cast": lambda x, to: x.astype(np.int32),
    "Concat": lambda *parts, axis: np.concatenate([plain(p) for p in parts], axis=axis),
    "Gather": lambda table, at, axis=0: np.take(table, at, axis=axis),
    "ReduceSum": lambda x, axes, keepdims: x.sum(axis=tuple(axes), keepdims=bool(keepdims)),
}
