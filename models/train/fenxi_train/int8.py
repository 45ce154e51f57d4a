"""The 8-bit form of a network: dense layers in whole numbers, and what that costs in right answers.

Quantisation is static (QDQ, unsigned activations, signed weights of 7 bits so that no processor's kernels
saturate).  The dynamic form is not used: its scales depend on the other rows of a batch.
"""

import logging
import pathlib
import tempfile

import numpy as np

from . import card, forest, graph, runtime
from .graph import OPSET

CALIBRATION_ROWS = 4096


class Rows:
    """Training rows, as the quantiser asks for them."""

    def __init__(self, flows, size=256):
        series, context, _ = forest.at_all_depths(flows.input, flows.series, flows.seen_context(), flows.counts)
        chosen = np.random.default_rng(1).permutation(len(series))[:CALIBRATION_ROWS]
        self.parts = [self.feed(series[chosen[i : i + size]], context[chosen[i : i + size]]) for i in range(0, len(chosen), size)]

    @staticmethod
    def feed(series, context):
        return {"series": series, **({"context": context} if context.shape[1] else {})}

    def get_next(self):
        return self.parts.pop(0) if self.parts else None


def of_model(model, flows):
    """The 8-bit form of an ONNX model, its ranges those that these flows take."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    CalibrationDataReader.register(Rows)
    with tempfile.TemporaryDirectory() as folder:
        source, made = pathlib.Path(folder, "fp32.onnx"), pathlib.Path(folder, "int8.onnx")
        source.write_bytes(model)
        logging.disable(logging.WARNING)  # it asks for a preparation that these graphs do not need
        try:
            quantize_static(
                source, made, Rows(flows), quant_format=QuantFormat.QDQ, op_types_to_quantize=["Gemm", "Conv"],
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True,
            )
        finally:
            logging.disable(logging.NOTSET)
        return made.read_bytes()


class Comparison:
    """Both forms of each fold's network, on flows that it has not seen."""

    def __init__(self, flows):
        self.flows = flows
        self.answers = {d: np.zeros((2, len(flows.classes)), int) for d in flows.input.depths}

    def add(self, net, train, test):
        """One fold: its network, and the rows of its training and held-out flows."""
        flows, input = self.flows, self.flows.input
        plain = graph.model(net.nets, np.ones(input.k + 1), "fold")
        sessions = runtime.session(plain), runtime.session(of_model(plain, flows.take(train)))
        context = flows.seen_context()[test]
        for depth, answers in self.answers.items():
            series = input.cut(flows.series[test], depth)
            for i, session in enumerate(sessions):
                answers[i, test] = runtime.run_all(session, series, context).argmax(axis=1)

    def rows(self, plain_score):
        """By depth: depth, flows, both scores, share of the flows that both call the same."""
        made = []
        for depth, answers in self.answers.items():
            long = (self.flows.counts >= depth) & ~self.flows.midstream
            if long.any():
                both = (card.pair(plain_score(self.flows.classes[long], a[long], len(self.flows.names))) for a in answers)
                made.append((depth, int(long.sum()), *both, f"{(answers[0] == answers[1])[long].mean():.2%}"))
        return made


HEAD = ("depth", "flows", "fp32", "int8", "same class")
LOSS = ("Accuracy / macro-F1 of both forms of each fold's network on flows that it has not seen, the 8-bit form with the ranges"
        " of that fold's training flows:")


def text(name, version, folder, rows, command):
    """The card of the 8-bit bundle."""
    return "\n".join([
        f"# {name} {version}", "",
        f"The model [{folder}](../{folder}/CARD.md) {version} in 8 bits: the same network, trained once, with the same input,"
        " output, confidences and ports. That card says what it can and cannot do.", "",
        "* Static quantisation (QDQ) of the dense layers and convolutions: unsigned activations, signed weights of 7 bits,"
        " one scale for each tensor. Tables of lengths and ports, calibration and softmax are fp32.",
        f"* ONNX opset {OPSET}. The golden outputs are this model's own.", "",
        "## Loss", "", LOSS, "", card.table(HEAD, rows), "", "## Reproduction", "", f"    {command}", "",
    ])
