"""A bundle's ONNX file in ONNX Runtime, on one thread."""

import math

import numpy as np
import onnxruntime


class Model:
    def __init__(self, file):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(file, options, providers=providers)
        self.inputs = [(it.name, it.shape[1:]) for it in self.session.get_inputs()]
        self.width = sum(math.prod(shape) for _, shape in self.inputs)

    def answers(self, requests):
        """The answers to each request: rows of the series, then the context."""
        rows = np.concatenate(requests)
        fed, at = {}, 0
        for name, shape in self.inputs:
            width = math.prod(shape)
            fed[name] = np.ascontiguousarray(rows[:, at : at + width]).reshape(-1, *shape)
            at += width
        (answers,) = self.session.run(None, fed)
        ends = np.cumsum([len(request) for request in requests])
        return [answers[end - len(request) : end] for request, end in zip(requests, ends)]
