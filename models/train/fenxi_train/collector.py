"""A bundle that asks fenxi for everything: all features, the longest series, and labels that mean nothing."""

import hashlib
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import inputs, runtime
from .bundle import write_rows
from .graph import IR_VERSION, OPSET

MANIFEST = """\
schema_version = 1
name = "collector-{unit}"
version = "1.0.0"
file = "model.onnx"
sha256 = "{digest}"
k = {k}
unit = "{unit}"
features = ["signed_length", "payload_length", "inter_arrival_us", "tcp_flags"]
precision = "fp32"
min_confidence = 0.0
midstream = true

[input]
name = "series"

[output]
name = "probabilities"

[[labels]]
name = "a"
taxonomy = "other"

[[labels]]
name = "b"
taxonomy = "other"
"""


def write(folder, unit):
    """The collector for a unit, in an existing folder."""
    folder = pathlib.Path(folder)
    k, channels = inputs.K_MAX, len(inputs.FEATURES)
    constants = [
        numpy_helper.from_array(np.array([-1, channels * k], np.int64), "shape"),
        numpy_helper.from_array(np.zeros((channels * k, 2), np.float32), "weights"),
    ]
    nodes = [
        helper.make_node("Reshape", ["series", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    made = helper.make_graph(
        nodes, "collector",
        [helper.make_tensor_value_info("series", TensorProto.FLOAT, ["N", channels, k])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])],
        constants,
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION, producer_name="fenxi")
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString(deterministic=True)
    (folder / "golden").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(data)
    (folder / "model.toml").write_text(MANIFEST.format(unit=unit, digest=hashlib.sha256(data).hexdigest(), k=k))
    rows = np.zeros((4, channels, k), np.float32)
    write_rows(folder / "golden/inputs.csv", rows)
    write_rows(folder / "golden/outputs.csv", runtime.run(runtime.session(data), rows, np.zeros((4, 0), np.float32)))
    return folder
