"""A model of Triton's Python backend; figures/peers puts onnx_rows.py beside it.

Triton hands over the requests that it has batched.
"""

import json

import triton_python_backend_utils as triton
from onnx_rows import Model


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.model = Model(parameters["onnx"]["string_value"])

    def execute(self, requests):
        rows = [triton.get_input_tensor_by_name(it, "rows").as_numpy() for it in requests]
        tensors = [triton.Tensor("probabilities", it) for it in self.model.answers(rows)]
        return [triton.InferenceResponse([tensor]) for tensor in tensors]
