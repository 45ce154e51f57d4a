"""A few networks of different seeds whose scores are averaged: they err in different places."""

import numpy as np

from . import encode, network


class Ensemble:
    """Networks with one encoder."""

    def __init__(self, nets):
        self.nets, self.encoder, self.classes = nets, nets[0].encoder, nets[0].classes

    def scores(self, series, context):
        return np.mean([net.scores(series, context) for net in self.nets], axis=0)

    @property
    def weight_count(self):
        return sum(w.size for net in self.nets for w in net.weights.values())


def fit(flows, shape, nets, min_groups, capture_weight, extra, seed=1):
    """An ensemble trained on these flows."""
    encoder = encode.learn(flows.input, flows.series, flows.context, flows.groups, min_groups)
    targets = np.eye(len(flows.names), dtype=np.float32)[flows.classes]
    _, place, sizes = np.unique(flows.groups, return_inverse=True, return_counts=True)
    weights = sizes[place].astype(float) ** -capture_weight
    made = [
        network.fit(encoder, flows.series, flows.context, flows.counts, targets, shape, seed + i, weights,
                    flows.midstream, extra)
        for i in range(nets)
    ]
    return Ensemble(made)
