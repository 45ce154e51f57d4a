"""ONNX Runtime as fenxi uses it: the CPU, one thread."""

import onnxruntime


def session(model):
    """A session on a model, given as bytes or path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session, series):
    """Probabilities [N, classes] of float32 series [N, 1, K]."""
    return session.run(["probabilities"], {"series": series})[0]
