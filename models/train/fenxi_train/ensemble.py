"""A few networks of different seeds err in different places, so the mean of their scores is better than each; one
network more learns that mean, and costs a third.  A small network learns more from a larger one's
answers than from the flows alone.
"""

import dataclasses

import numpy as np

from . import encode, network

STUDENT_STEPS = 1.5  # as a multiple of a teacher's
SMALL_STUDENT_STEPS = 4  # a smaller network takes longer to give the same answers


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


def fit(flows, shape, nets, min_groups, capture_weight, extra, seed=1, foreign=None, teacher=None,
        own_lengths=None):
    """A network trained on these flows: the only one, or one that learned from `nets` others.  With
    `teacher`, the others' shape, it also learns from a single one; they tell all lengths apart.
    `own_lengths` is how many lengths it tells apart."""
    if foreign is not None:
        flows = flows.beside(foreign)
    taught = flows.input, flows.series, flows.context, flows.groups, min_groups
    encoder = encode.learn(*taught, own_lengths=own_lengths)
    targets = np.eye(len(flows.names), dtype=np.float32)[flows.classes]
    _, place, sizes = np.unique(flows.groups, return_inverse=True, return_counts=True)
    weights = sizes[place].astype(float) ** -capture_weight
    given = flows.series, flows.context, flows.counts, targets
    more = {"weights": weights, "midstream": flows.midstream, "extra": extra}
    first = (encode.learn(*taught), teacher) if teacher else (encoder, shape)
    made = [network.fit(first[0], *given, first[1], seed + i, **more) for i in range(nets)]
    if nets == 1 and teacher is None:
        return Ensemble(made)
    steps = int(shape.steps * (SMALL_STUDENT_STEPS if teacher else STUDENT_STEPS))
    student = dataclasses.replace(shape, steps=steps, dropout=shape.dropout / 2, smoothing=0.0)
    made = network.fit(encoder, *given, student, seed + nets, teacher=Ensemble(made), **more)
    return Ensemble([made])
