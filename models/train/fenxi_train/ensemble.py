"""A few networks of different seeds err in different places, so the mean of their scores is better than each; one
network more learns that mean, and costs a third.
"""

import dataclasses

import numpy as np

from . import encode, network


class Ensemble:
    """Networks with one encoder."""

    def __init__(self, nets):
        self.nets, self.encoder, self.classes = nets, nets[0].encoder, nets[0].classes

    form = "net"

    def scores(self, series, context):
        return np.mean([net.scores(series, context) for net in self.nets], axis=0)

    @property
    def weight_count(self):
        return sum(w.size for net in self.nets for w in net.weights.values())

    @property
    def description(self):
        return f"{self.weight_count:,} weights"


def fit(flows, shape, nets, min_groups, capture_weight, extra, seed=1, foreign=None):
    """A network trained on these flows: the only one, or one that learned from `nets` others."""
    if foreign is not None:
        flows = flows.beside(foreign)
    encoder = encode.learn(flows.input, flows.series, flows.context, flows.groups, min_groups)
    targets = np.eye(len(flows.names), dtype=np.float32)[flows.classes]
    _, place, sizes = np.unique(flows.groups, return_inverse=True, return_counts=True)
    weights = sizes[place].astype(float) ** -capture_weight
    given = encoder, flows.series, flows.context, flows.counts, targets
    more = {"weights": weights, "midstream": flows.midstream, "extra": extra}
    made = [network.fit(*given, shape, seed + i, **more) for i in range(nets)]
    if nets == 1:
        return Ensemble(made)
    student = dataclasses.replace(shape, steps=shape.steps * 3 // 2, dropout=shape.dropout / 2, smoothing=0.0)
    return Ensemble([network.fit(*given, student, seed + nets, teacher=Ensemble(made), **more)])
