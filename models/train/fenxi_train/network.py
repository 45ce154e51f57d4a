"""The network and its training, in numpy: small enough that a minute on one core is plenty.

    element: category vector of each length, fixed codes        [k, D]
    optional 1D convolutions of width 3, each with ReLU           [k, C]
    all elements and the context side by side -> dense, ReLU -> dense, ReLU -> classes

The port also has its own weights straight to the classes, so that what a port says is learned once and
is not lost between the lengths.  Training is seeded; sums are done on one thread, so the same
machine gives the same bytes.
"""

import dataclasses

import numpy as np

from . import augment
from .encode import Encoder, coarse_only


TEACHER_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a network, and how it is trained."""

    vector: int = 8  # numbers in the vector of a length's category
    port_vector: int = 12
    convolutions: tuple[int, ...] = ()
    hidden: tuple[int, ...] = (96, 64)
    steps: int = 3000
    batch: int = 256
    rate: float = 3e-3
    decay: float = 2e-3
    dropout: float = 0.3
    smoothing: float = 0.02
    port_exchange: float = 0.05  # share of training rows that get no port or a random one
    midstream_exchange: float = 0.5  # the same, of flows whose beginning was not seen
    length_dropout: float = 0.05  # share of lengths taken for ones never seen
    jitter: float = 1.0  # share of training rows whose lengths and times are changed
    vector_decay: float = 1.0  # decay of the categories' vectors, as a multiple


def softmax(scores):
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


class Network:
    """Weights, and the two passes through them."""

    def __init__(self, encoder: Encoder, classes, shape=Shape(), seed=1):
        rng = np.random.default_rng(seed)
        self.encoder, self.shape, self.classes = encoder, shape, classes
        self.weights = w = {}
        input = encoder.input
        for i, (name, table) in enumerate(encoder.length_categories.items()):
            w[f"vectors{i}"] = rng.normal(0, 0.3, (int(table.max()) + 1, shape.vector))
            w[f"vectors{i}"][0] = 0
        probe = encoder.values(np.zeros((1, len(input.features), input.k), np.float32))
        width = probe.shape[2] + shape.vector * len(encoder.length_categories)
        for i, channels in enumerate(shape.convolutions):
            w[f"conv{i}"] = he(rng, 3 * width, channels)
            w[f"conv{i}_bias"] = np.zeros(channels)
            width = channels
        self.element_width = width
        size = width * input.k + encoder.flat_context_len
        if "server_port" in input.context:
            w["ports"] = rng.normal(0, 0.3, (encoder.port_count, shape.port_vector))
            w["port_scores"] = np.zeros((encoder.port_count, classes))
            size += shape.port_vector
        for i, units in enumerate(shape.hidden):
            w[f"dense{i}"] = he(rng, size, units)
            w[f"dense{i}_bias"] = np.zeros(units)
            size = units
        w["out"] = he(rng, size, classes) * 0.5
        w["out_bias"] = np.zeros(classes)
        for name in w:
            w[name] = w[name].astype(np.float32)

    def coded(self, series, context):
        """What the passes read: categories, fixed codes, flat context, ports."""
        e = self.encoder
        return e.categories(series), e.values(series), e.flat_context(context), e.ports(context)

    def forward(self, coded, dropout=None):
        """Scores before softmax, and what the backward pass needs."""
        categories, values, flat, ports = coded
        w, kept = self.weights, {}
        parts = [w[f"vectors{i}"][categories[:, :, i]] for i in range(categories.shape[2])]
        x = np.concatenate([*parts, values], axis=2)
        for i in range(len(self.shape.convolutions)):
            shifted = np.pad(x, ((0, 0), (1, 1), (0, 0)))
            columns = np.concatenate([shifted[:, j : j + x.shape[1]] for j in range(3)], axis=2)
            x = np.maximum(columns @ w[f"conv{i}"] + w[f"conv{i}_bias"], 0)
            kept[f"conv{i}"] = columns, x
        x = x.reshape(len(x), -1)
        parts = [x, flat] + ([w["ports"][ports]] if "ports" in w else [])
        x = np.concatenate(parts, axis=1)
        for i in range(len(self.shape.hidden)):
            mask = None
            if dropout is not None:
                share = self.shape.dropout * (0.5 if i == 0 and not self.shape.convolutions else 1)
                mask = (dropout.random(x.shape, dtype=np.float32) >= share).astype(np.float32) / (1 - share)
                x = x * mask
            before = x
            x = np.maximum(x @ w[f"dense{i}"] + w[f"dense{i}_bias"], 0)
            kept[f"dense{i}"] = before, x, mask
        kept["out"] = x
        scores = x @ w["out"] + w["out_bias"]
        if "port_scores" in w:
            scores = scores + w["port_scores"][ports]
        return scores, kept

    def gradients(self, coded, kept, error):
        """Gradients of all weights; `error` is the error of the scores."""
        categories, _, flat, ports = coded
        w, g = self.weights, {}
        g["out"], g["out_bias"] = kept["out"].T @ error, error.sum(axis=0)
        if "port_scores" in w:
            g["port_scores"] = gathered(ports, error, len(w["port_scores"]))
        back = error @ w["out"].T
        for i in reversed(range(len(self.shape.hidden))):
            before, after, mask = kept[f"dense{i}"]
            back = back * (after > 0)
            g[f"dense{i}"], g[f"dense{i}_bias"] = before.T @ back, back.sum(axis=0)
            back = back @ w[f"dense{i}"].T
            if mask is not None:
                back = back * mask
        k = categories.shape[1]
        elements = self.element_width * k
        if "ports" in w:
            g["ports"] = gathered(ports, back[:, elements + flat.shape[1] :], len(w["ports"]))
        back = back[:, :elements].reshape(len(back), k, -1)
        for i in reversed(range(len(self.shape.convolutions))):
            columns, after = kept[f"conv{i}"]
            back = back * (after > 0)
            flat_back = back.reshape(-1, back.shape[2])
            g[f"conv{i}"] = columns.reshape(len(flat_back), -1).T @ flat_back
            g[f"conv{i}_bias"] = flat_back.sum(axis=0)
            wide = back @ w[f"conv{i}"].T
            width = wide.shape[2] // 3
            padded = np.zeros((len(wide), k + 2, width), np.float32)
            for j in range(3):
                padded[:, j : j + k] += wide[:, :, j * width : (j + 1) * width]
            back = padded[:, 1:-1]
        for i in range(categories.shape[2]):
            part = back[:, :, i * self.shape.vector : (i + 1) * self.shape.vector]
            g[f"vectors{i}"] = gathered(categories[:, :, i].ravel(), part.reshape(-1, self.shape.vector), len(w[f"vectors{i}"]))
            g[f"vectors{i}"][0] = 0
        return g

    def scores(self, series, context):
        """Scores before softmax."""
        found = [self.forward(self.coded(series[i : i + 4096], context[i : i + 4096]))[0] for i in range(0, len(series), 4096)]
        return np.concatenate(found) if found else np.zeros((0, self.classes), np.float32)


def he(rng, inputs, outputs):
    return rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs))


def gathered(places, rows, count):
    """Sums of the rows that belong to one place."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    made = np.zeros((count, rows.shape[1]), np.float32)
    made[ordered[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return made


def fit(encoder, series, context, counts, targets, shape=Shape(), seed=1, weights=None, midstream=None, extra=None, teacher=None):
    """A trained network.  `targets` are probabilities [flows, classes]; `weights` say how often a flow is drawn;
    `extra` makes further rows (series, context, targets) of a batch's own, such as unfamiliar flows; `teacher` gives
    scores that the network learns beside the targets."""
    rng = np.random.default_rng(seed)
    net = Network(encoder, targets.shape[1], shape, seed)
    smooth = targets * (1 - shape.smoothing) + shape.smoothing / targets.shape[1]
    draw = None if weights is None else np.cumsum(weights / weights.sum())
    first, second = ({n: np.zeros_like(v) for n, v in net.weights.items()} for _ in range(2))
    coarse = [coarse_only(c) for c in encoder.length_categories.values()]
    exchange = np.full(len(series), shape.port_exchange)
    if midstream is not None:
        exchange[midstream] = shape.midstream_exchange
    for step in range(shape.steps):
        if draw is None:
            rows = rng.integers(0, len(series), shape.batch)
        else:
            rows = np.minimum(np.searchsorted(draw, rng.random(shape.batch)), len(series) - 1)
        x, ctx = augment.flows(rng, encoder.input, series[rows], context[rows], counts[rows], exchange[rows], shape.jitter)
        y = smooth[rows]
        if extra is not None:
            more = extra(rng, encoder.input, x, ctx, y)
            x, ctx, y = (np.concatenate(p) for p in zip((x, ctx, y), more))
        if teacher is not None:
            y = TEACHER_SHARE * softmax(teacher.scores(x, ctx)) + (1 - TEACHER_SHARE) * y
        coded = list(net.coded(x, ctx))
        for i, plain in enumerate(coarse):
            hidden = rng.random(coded[0].shape[:2]) < shape.length_dropout
            coded[0][:, :, i] = np.where(hidden, plain[coded[0][:, :, i]], coded[0][:, :, i])
        found, kept = net.forward(coded, rng)
        error = ((softmax(found) - y) / len(y)).astype(np.float32)
        g = net.gradients(coded, kept, error)
        update(net, g, first, second, step, shape)
    return net


def update(net, gradients, first, second, step, shape):
    """One step of Adam with decoupled decay; the rate warms up and falls to 0 as a cosine."""
    warm = max(shape.steps // 20, 1)
    share = (step + 1) / warm if step < warm else 0.5 * (1 + np.cos(np.pi * (step - warm) / max(shape.steps - warm, 1)))
    rate = shape.rate * share
    for name, g in gradients.items():
        m, v, w = first[name], second[name], net.weights[name]
        m += 0.1 * (g - m)
        v += 0.001 * (g * g - v)
        change = (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8)
        if not name.endswith("bias"):
            multiple = shape.vector_decay if name.startswith(("vectors", "port")) else 1.0
            change = change + shape.decay * 10 * multiple * w
        w -= (rate * change).astype(np.float32)
