"""ONNX Runtime as fenxi uses it: the CPU, one thread, no batch of a single row."""

import numpy as np
import onnxruntime


def session(model):
    """A session on a model, given as bytes or path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session, series):
    """Probabilities [N, classes] of float32 series [N, features, K]; a single row runs beside its copy."""
    return run_as_is(session, np.repeat(series, 2, axis=0) if len(series) == 1 else series)[: len(series)]


def run_as_is(session, series):
    """The same, a single row alone: it may differ in its last bits from the row in a batch."""
    return session.run(["probabilities"], {"series": series})[0]
