"""A network that learns on among what it learned before.

A network that only sees new flows forgets what they lack.  So a buffer keeps the newest samples of
each label, however long ago they came, and each round goes on from the weights before with new and
old samples together (experience replay).
"""

import collections
import copy
import dataclasses

import numpy as np

from . import calibrate, encode, forest, graph, network, ranges, tuner

SHAPE = network.Shape(hidden=(64, 32), steps=1200, dropout=0.1, decay=5e-4)
LATER = {"steps": 300, "rate": 1e-3}  # of rounds after the first
JUDGED = 2_000  # samples of each depth by which temperatures and loss are measured
ENCODED = 5_000  # samples from which the categories of lengths and ports are learned
OWN_LENGTHS = 64  # lengths with a category of their own
CATEGORY_MIN = 10  # samples that a length or port with a category of its own is in


class Network(tuner.Tuner):
    """At most `window` samples of each depth, divided equally among the labels.

    Rare labels are drawn more often than they come, by the square root of how many are kept; an
    offset of the scores makes up for it, so that probabilities hold for the newest traffic.
    The stability is the log loss on samples that the network had not learned yet."""

    def __init__(self, like, window=20_000, shape=SHAPE, seed=1):
        super().__init__(like)
        labels, depths = len(like.labels), like.input.depths
        self.shape, self.window, self.rng = shape, window, np.random.default_rng(seed)
        room = max(window * len(depths) // labels, 1)
        self.rows = [collections.deque(maxlen=room) for _ in range(labels)]
        self.shares = np.zeros(labels)  # of the newest flows, by label
        self.judged = {depth: collections.deque(maxlen=JUDGED) for depth in depths}
        self.temperatures = [1.0] * len(depths)
        self.net = self.kept = None
        self.loss = float("nan")

    def adapt(self, batch):
        if self.net:
            self.judge(batch)
        fades = 0.5 ** (len(batch.counts) / (self.window * len(self.judged)))
        came = np.bincount(batch.classes, batch.weights, len(self.shares))
        self.shares = fades * self.shares + (1 - fades) * came / came.sum()
        asked = batch.series, batch.context, batch.counts, batch.began_us, batch.weights
        for row in zip(*asked, batch.classes):
            self.rows[row[-1]].append(row)
        rows = [row for rows in self.rows for row in rows]
        if len(rows) >= tuner.SAMPLES_MIN:
            self.kept = tuner.Batch(batch.input, *(np.array(column) for column in zip(*rows)))
            self.learn(self.kept)

    def judge(self, batch):
        """Measures temperatures and loss on the newest samples, each by the network before it."""
        for row in zip(batch.counts, self.scores(batch), batch.classes, batch.weights):
            self.judged[row[0]].append(row[1:])
        found = []
        for at, depth in enumerate(batch.input.depths):
            if self.judged[depth]:
                scores, classes, weights = map(np.array, zip(*self.judged[depth]))
                self.temperatures[at] = calibrate.temperature(scores, classes, weights)
                probabilities = network.softmax(scores / self.temperatures[at])
                found.append((calibrate.log_losses(probabilities, classes), weights))
        losses, weights = map(np.concatenate, zip(*found))
        self.loss = float(np.average(losses, weights=weights))
        self.error = float(np.linalg.norm(weights * (losses - self.loss)) / weights.sum())

    def learn(self, kept):
        """Goes on from the weights before."""
        encoder = self.encoder(kept)
        is_first = self.net is None
        made = network.Network(encoder, len(self.rows), self.shape)
        if not is_first:
            made.weights = moved(self.net, made)
        counts = np.bincount(kept.classes, minlength=len(self.rows))
        drawn = np.sqrt(counts) / np.sqrt(counts).sum()
        weighed = np.bincount(kept.classes, kept.weights, len(self.rows))
        draw = np.cumsum(kept.weights * (drawn / np.maximum(weighed, 1e-9))[kept.classes])
        train(made, kept, draw, self.shape if is_first else dataclasses.replace(self.shape, **LATER), self.rng)
        shares = np.maximum(self.shares / self.shares.sum(), forest.SMALLEST_SHARE)
        self.net, self.offset = made, np.log(shares / np.where(counts, drawn, 1)).astype(np.float32)

    def encoder(self, kept):
        """Categories of lengths and ports that stand in some of the samples."""
        some = kept.take(self.rng.permutation(len(kept.counts))[:ENCODED])
        given = some.input, some.series, some.context, np.arange(len(some.counts))
        return encode.learn(*given, CATEGORY_MIN, CATEGORY_MIN, OWN_LENGTHS)

    def scores(self, batch):
        return self.net.scores(batch.series, batch.context) + self.offset

    def evaluate(self, batch):
        if self.net is None:
            shape = len(batch.counts), len(self.rows)
            return self.loss, np.full(shape, np.nan, np.float32)
        by_count = calibrate.by_count(batch.input.depths, self.temperatures, batch.input.k)
        scores = self.scores(batch) / by_count[batch.counts][:, None]
        return self.loss, network.softmax(scores).astype(np.float32)

    def freeze(self, folder, version, learn):
        input = self.like.input
        net = copy.copy(self.net)
        net.weights = {**net.weights, "out_bias": net.weights["out_bias"] + self.offset}
        by_count = calibrate.by_count(input.depths, self.temperatures, input.k)
        model = graph.model([net], by_count, self.like.manifest["name"])
        found = ranges.measured(model, *ranges.drawn(input, self.kept.series, self.kept.context, self.kept.counts))
        self.write(folder, version, learn, self.kept, model, {ranges.RANGES: ranges.text(found)})


def train(net, kept, draw, shape, rng):
    """Steps of Adam on samples drawn by `draw`, their cumulated chances."""
    first, second = ({n: np.zeros_like(v) for n, v in net.weights.items()} for _ in range(2))
    for step in range(shape.steps):
        rows = np.minimum(np.searchsorted(draw, rng.random(shape.batch) * draw[-1]), len(draw) - 1)
        coded = net.coded(kept.series[rows], kept.context[rows])
        scores, passed = net.forward(coded, rng)
        error = network.softmax(scores)
        error[np.arange(len(rows)), kept.classes[rows]] -= 1
        gradients = net.gradients(coded, passed, (error / len(rows)).astype(np.float32))
        network.update(net, gradients, first, second, step, shape)


def moved(before, made):
    """The weights of a network for the categories of another: a category's vector is the mean of
    those that its lengths or ports had."""
    old, new, weights = before.encoder, made.encoder, dict(before.weights)
    names = {"ports": (old.port_categories, new.port_categories)}
    names["port_scores"] = names["ports"]
    for i, feature in enumerate(new.length_categories):
        names[f"vectors{i}"] = tuple(
            e.length_categories[feature][e.counts_as + encode.LENGTH_TOP] for e in (old, new))
    for name in names.keys() & weights.keys():
        of_old, of_new = names[name]
        count = len(made.weights[name])
        sums = network.gathered(of_new, weights[name][of_old], count)
        sizes = np.bincount(of_new, minlength=count)[:, None]
        weights[name] = (sums / np.maximum(sizes, 1)).astype(np.float32)
    return weights
