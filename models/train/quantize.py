"""Quantises the model and writes the bundle app-id-k10-int8: the same network, weights and activations in 8 bits.

The form is static QDQ: pairs of QuantizeLinear and DequantizeLinear stand where the numbers are rounded, and a runtime
melts them with the operators between them into integer kernels.  Scales are those of ONNX Runtime's calibration, the
range that each tensor takes over the calibration series.  The coding of lengths and the softmax stay in float.

Weights get 7 of their 8 bits: on x86 without VNNI a kernel adds two products of u8 and s8 in 16 bits, and only so can
that never saturate.  Activations are u8, one scale per tensor; s8, a scale per channel or 8-bit weights gained nothing.

The operators are arranged for the integer kernels, which changes no result:

* The rows of a batch are the height of one image, so that a convolution is one call and not one per row.
* Numbers lie place by place, channels innermost, as the kernels want them: nothing is transposed.
* The code has two channels more, all zeros: at a multiple of four the first convolution takes half the time.

Sums of integers are exact in any order, so only the float ends could make a row's result depend on its batch, and
check_model.py shows that they do not.
"""

import argparse
import logging
import pathlib
import tempfile

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import dataset
import export
import runtime

NAME = export.NAME + "-int8"
CODE_CHANNELS = 16  # of them 14 in use
FLOAT_NODES = ["ranges", "code", "probabilities"]
QUANTIZED_OPERATORS = ["Conv", "Gemm", "Relu", "Reshape", "Transpose"]
CALIBRATION_BATCH = 128


class Series(CalibrationDataReader):
    """The calibration series, float32 [flows, 1, K], batch by batch."""

    def __init__(self, series):
        starts = range(0, len(series), CALIBRATION_BATCH)
        self.batches = ({"series": series[i : i + CALIBRATION_BATCH]} for i in starts)

    def get_next(self):
        return next(self.batches, None)


def code(graph, scale, offset):
    """The 14 ranges of each length, place by place, as one matrix product with a band of scales."""
    spare = (0, CODE_CHANNELS - len(scale))
    scale, offset = np.pad(scale, spare), np.pad(offset, spare)
    band = np.zeros((dataset.INPUT.k, dataset.INPUT.k, CODE_CHANNELS), np.float32)
    band[np.arange(dataset.INPUT.k), np.arange(dataset.INPUT.k)] = scale
    graph.add("Reshape", "row", [np.array([-1, dataset.INPUT.k], np.int64)])
    graph.dense("ranges", band.reshape(dataset.INPUT.k, -1), np.tile(offset, dataset.INPUT.k))
    graph.add("Clip", "code", [np.float32(0), np.float32(1)])


def image(graph, name, channels):
    """From rows of places to an image as high as the batch."""
    graph.add("Reshape", name, [np.array([1, -1, dataset.INPUT.k, channels], np.int64)])
    graph.add("Transpose", name + "_channels", perm=[0, 3, 1, 2])


def arranged(model):
    """The float model in the form described above; `model` is one of export.py."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    graph = export.Graph("series")
    code(graph, weights["ranges.0"].ravel(), weights["ranges.1"])
    image(graph, "image", CODE_CHANNELS)
    first = weights["conv1.0"]
    spare = ((0, 0), (0, CODE_CHANNELS - first.shape[1]), (0, 0), (0, 0))
    for name, kernel in ("conv1", np.pad(first, spare)), ("conv2", weights["conv2.0"]):
        attributes = {"kernel_shape": list(kernel.shape[2:]), "pads": [0, 1, 0, 1]}
        graph.add("Conv", name, [kernel, weights[name + ".1"]], **attributes)
        graph.add("Relu", name + "_relu")
    graph.add("Transpose", "places", perm=[0, 2, 3, 1])
    dense = weights["dense.0"]
    graph.add("Reshape", "flat", [np.array([-1, len(dense)], np.int64)])
    by_place = dense.reshape(-1, dataset.INPUT.k, dense.shape[1]).transpose(1, 0, 2)
    graph.dense("dense", by_place.reshape(dense.shape), weights["dense.1"])
    graph.add("Relu", "dense_relu")
    graph.dense("out", weights["out.0"], weights["out.1"])
    graph.add("Softmax", "probabilities", axis=1)
    made = helper.make_graph(graph.nodes, NAME, model.graph.input, model.graph.output, graph.constants)
    version = {"opset_imports": model.opset_import, "ir_version": export.IR_VERSION}
    made = helper.make_model(made, producer_name="fenxi", **version)
    onnx.checker.check_model(made, full_check=True)
    return made


def quantized(model, series):
    """The int8 model, as bytes; `series` are for the calibration."""
    logging.disable(logging.WARNING)  # it advises a preparation of which this graph has no need
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        quantize_static(
            arranged(model),
            path,
            Series(series),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=QUANTIZED_OPERATORS,
            nodes_to_exclude=FLOAT_NODES,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,
        )
        made = onnx.load(path)
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString(deterministic=True)


def main():
    parser = argparse.ArgumentParser(description="write the int8 bundle")
    parser.add_argument("table", help="train.csv.gz, the flows that the model was trained on")
    parser.add_argument("source", type=pathlib.Path, help="bundle of the fp32 model")
    parser.add_argument("bundle", type=pathlib.Path, help="folder to write")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    made = quantized(onnx.load(args.source / "model.onnx"), flows.series)
    export.write_bundle(args.bundle, NAME, "int8", flows, made)


if __name__ == "__main__":
    main()
