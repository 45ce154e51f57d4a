"""ONNX Runtime as fenxi uses it: the CPU, one thread, no batch of a single row."""

import numpy as np
import onnxruntime

from .errors import Refusal


def session(model):
    """A session on a model, given as bytes or path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's exceptions share no base of their own
        name = "model" if isinstance(model, bytes) else model
        raise Refusal(f"{name}: ONNX Runtime does not load it: {str(error).splitlines()[0]}") from None


def run(session, series, context):
    """Probabilities [N, classes]; a single row runs beside its copy."""
    if len(series) == 1:
        return run_as_is(session, np.repeat(series, 2, axis=0), np.repeat(context, 2, axis=0))[:1]
    return run_as_is(session, series, context)


def run_as_is(session, series, context):
    """The same, a single row alone: it may differ in its last bits from the row in a batch."""
    names = [i.name for i in session.get_inputs()]
    feeds = {names[0]: series}
    if len(names) > 1:
        feeds[names[1]] = context
    return session.run(None, feeds)[0]


def run_all(session, series, context, size=256):
    """The same for any number of rows."""
    if not len(series):
        return np.zeros((0, session.get_outputs()[0].shape[1]), np.float32)
    return np.concatenate([run(session, series[i : i + size], context[i : i + size]) for i in range(0, len(series), size)])
