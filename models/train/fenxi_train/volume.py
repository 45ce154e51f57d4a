"""A model of what flows will weigh, from samples whose truth is known.

fenxi writes a sample when a flow that it asked about has ended, one for each depth, as a line of
JSON.

    proto, server_port   of the flow's first packet
    began_us             its time
    elements             [[signed length, us since the first packet], ...] of the data packets, as many
                         as the depth
    context              what the memory of servers knew when the flow began (servers.py), by name
    truth                {"bytes_to_come": IP bytes of both directions after the depth, ...}
    weight               how many flows it stands for, where samples are drawn by band; 1 if absent
    capture              what is held out as a whole; if absent, each hour is one

Other keys are not read.  The model is a forest over the depths; its classes are bands of the bytes
to come.  A flow's rank is the mean of its bands' bytes, weighted by their probabilities.
"""

import dataclasses
import json
import math
import statistics

import numpy as np

from . import bundle, calibrate, forest, forestgraph, inputs, servers, table
from .errors import Refusal, in_line
from .network import softmax

BANDS = ("small", "medium", "large", "huge")
EDGES = (0.75, 0.95, 0.99)  # shares of the flows below each edge, at the first depth
SAMPLES_MAX = 500_000
SAMPLES_MIN = 100
LINE_MAX = 1 << 16
NEWEST = 0.2  # share of the samples, the newest, on which temperatures are measured
DRAWN = 0.5  # share of the samples that each tree sees: half the time, and scores no worse
SCATTER = 2.5  # of log2 of what flows of a server weigh, as in 25,813 flows of five places
HOUR_US = 3_600_000_000
BYTES_MAX = 2**52


@dataclasses.dataclass
class Asked:
    """What was asked about flows as arrays, in order of time."""

    input: inputs.Input
    series: np.ndarray  # float32 [samples, features, k]
    context: np.ndarray  # float32 [samples, numbers]
    counts: np.ndarray  # elements: the depth asked
    began_us: np.ndarray
    weights: np.ndarray

    def take(self, rows):
        names = [f.name for f in dataclasses.fields(self) if f.name != "input"]
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})


@dataclasses.dataclass
class Samples(Asked):
    """With the truth."""

    to_come: np.ndarray  # bytes after the depth
    captures: np.ndarray
    volume: np.ndarray  # server_volume, with which the table of servers ranks


@dataclasses.dataclass
class Model:
    """A forest, what its bands are, and the temperature of each depth."""

    forest: forest.Forest
    edges: np.ndarray  # bytes; a band begins at its edge
    means: np.ndarray  # bytes of the bands' flows
    temperatures: list[float]

    def probabilities(self, samples):
        by_count = calibrate.by_count(self.forest.input.depths, self.temperatures, self.forest.input.k)
        scores = self.forest.scores(samples.series, samples.context)
        return softmax(scores / by_count[samples.counts][:, None])

    def ranks(self, samples):
        """The bytes that are expected to come."""
        return self.probabilities(samples) @ self.means


def input_of(depths, local=True, times=True):
    """What a model reads of a flow; without `local` nothing that is known of its server, without
    `times` no time between packets."""
    features = ("signed_length", *(("inter_arrival_us",) if times else ()))
    context = inputs.CONTEXT + (servers.FEATURES if local else ())
    return inputs.Input("data", depths, features, context)


def read(paths, input, newest=None):
    """The samples of these files at the depths of `input`; of many only the `newest`."""
    found = []
    for path in paths:
        with table.open_text(path) as file:
            try:
                for number, line in enumerate(file, 1):
                    if len(line) > LINE_MAX:
                        raise in_line(path, number, f"more than {LINE_MAX} characters")
                    if line.strip():
                        sample = row(line, path, number, input)
                        found += [sample] if sample else []
                    if len(found) > SAMPLES_MAX:
                        raise in_line(path, number, f"more than {SAMPLES_MAX:,} samples")
            except (UnicodeDecodeError, EOFError, OSError) as error:
                raise Refusal(f"{path}: {error}") from None
    found.sort(key=lambda sample: sample[3])
    if len(found) < SAMPLES_MIN:
        depths = ", ".join(map(str, input.depths))
        where = ", ".join(map(str, paths))
        least = f"give {SAMPLES_MIN} or more"
        raise Refusal(f"{where}: {len(found)} samples at depth {depths}; {least}")
    columns = [np.array(column) for column in zip(*found[-newest:] if newest else found)]
    return Samples(input, *columns)


def blank(input, edges):
    """Samples for a model that knows no flow yet.  It is the table of servers: flows weigh what the
    memory of servers says on average, and scatter around it as measured ones do.  Without that
    memory they look alike and are of all bands, most of the lowest, which the model then says."""
    if "server_volume" in input.context:
        normal = statistics.NormalDist(-(SCATTER**2) * math.log(2) / 2, SCATTER)  # mean weight 1
        scatter = [normal.inv_cdf((i + 0.5) / SAMPLES_MIN) for i in range(SAMPLES_MIN)]
        known, apart = np.meshgrid(np.arange(inputs.LOCAL_MAX + 1.0), scatter)
        known, to_come = known.ravel(), 2 ** (known + apart).ravel()
        weights = np.ones(len(known))
    else:
        known, to_come = np.zeros(SAMPLES_MIN), np.resize(np.array([0, *edges], float), SAMPLES_MIN)
        weights = np.where(to_come == 0, 2.0, 1.0)
    # Temperatures are measured on the last ones, which must be like the others.
    order = np.random.default_rng(1).permutation(len(known))
    columns = (known, to_come, weights)
    known, to_come, weights = (np.tile(column[order], len(input.depths)) for column in columns)
    counts = np.repeat(input.depths, len(order))
    series = np.zeros((len(counts), len(input.features), input.k), np.float32)
    context = np.zeros((len(counts), len(input.context)), np.float32)
    if "server_volume" in input.context:
        context[:, input.context.index("server_volume")] = known
    zeros = np.zeros(len(counts), np.int64)
    return Samples(input, series, context, counts, zeros, weights, to_come, zeros, known)


def row(line, path, number, input):
    """One sample, in the order of the fields of Samples, or None if it was asked at another depth."""
    try:
        given = json.loads(line)
        asked = asked_of(given, input)
        to_come = float(given["truth"]["bytes_to_come"])
        capture = str(given.get("capture", f"hour {int(given['began_us']) // HOUR_US}"))
        volume = float(given.get("context", {}).get("server_volume", 0))
        if not (0 <= to_come <= BYTES_MAX and np.isfinite(volume)):
            raise ValueError("bytes_to_come or server_volume is out of range")
    except KeyError as error:
        raise in_line(path, number, f"no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise in_line(path, number, f"no sample: {error}") from None
    return asked and (*asked, to_come, capture, volume)


def asked_of(given, input):
    """What was asked about one flow, in the order of the fields of Asked, or None if it was asked
    at another depth; KeyError, ValueError and the like if `given` is no sample."""
    elements = given["elements"]
    if len(elements) not in input.depths:
        return None
    lengths, times = np.array(elements, np.float64).reshape(-1, 2).T
    channels = {
        "signed_length": np.clip(lengths, -inputs.LENGTH_MAX, inputs.LENGTH_MAX),
        "inter_arrival_us": np.clip(np.diff(times, prepend=times[0]), 0, inputs.TIME_MAX),
    }
    series = np.zeros((len(input.features), input.k), np.float32)
    for channel, feature in enumerate(input.features):
        series[channel, : len(elements)] = channels[feature]
    known = {**(given.get("context") or {}), "protocol": given["proto"],
             "server_port": given["server_port"]}
    context = np.array([known[name] for name in input.context], np.float32)
    began_us, weight = int(given["began_us"]), float(given.get("weight", 1))
    if not (np.isfinite(series).all() and np.isfinite(context).all()):
        raise ValueError("a number is missing or not finite")
    if not (0 < weight <= BYTES_MAX and 0 <= began_us < 2**63):
        raise ValueError("weight or began_us is out of range")
    return series, context, len(elements), began_us, weight


def edges_of(samples, shares):
    """The bytes at these shares of the flows, each above the one before."""
    first = samples.counts == samples.input.depths[0]
    to_come, weights = samples.to_come[first], samples.weights[first]
    if not len(to_come):
        raise Refusal(f"no sample at depth {samples.input.depths[0]}")
    order = np.argsort(to_come, kind="stable")
    below = np.cumsum(weights[order]) / weights.sum()
    places = np.minimum(np.searchsorted(below, shares), len(order) - 1)
    edges = np.ceil(to_come[order][places])
    for i in range(len(edges)):
        edges[i] = max(edges[i], edges[i - 1] + 1 if i else 1)
    return edges


def bands_of(samples, edges):
    return np.searchsorted(edges, samples.to_come, side="right")


def grown(asked, classes, count, size, seed):
    """A forest that tells `count` classes apart."""
    from sklearn.ensemble import RandomForestClassifier

    made = RandomForestClassifier(size.trees, max_features=size.features, min_samples_leaf=size.leaf,
                                  max_samples=DRAWN, random_state=seed)
    made.fit(forest.numbers(asked.series, asked.context), classes, asked.weights)
    trees = [forest.of_scikit(e.tree_, made.classes_, count) for e in made.estimators_]
    return forest.Forest(asked.input, trees, count)


def grown_in_time(asked, classes, count, size, seed):
    """A forest of all, the temperature of each depth, and the mean log loss with its standard error.
    Temperatures and loss are measured on the newest by a forest of the others, as the model will
    meet flows newer than all that it knows."""
    cut = int(len(classes) * (1 - NEWEST))
    older, newer, newer_classes = asked.take(np.s_[:cut]), asked.take(np.s_[cut:]), classes[cut:]
    scores = grown(older, classes[:cut], count, size, seed).scores(newer.series, newer.context)
    temperatures = []
    for depth in asked.input.depths:
        own = newer.counts == depth
        t = calibrate.temperature(scores[own], newer_classes[own], newer.weights[own])
        temperatures.append(t)
    by_count = calibrate.by_count(asked.input.depths, temperatures, asked.input.k)
    probabilities = softmax(scores / by_count[newer.counts][:, None])
    losses, weights = calibrate.log_losses(probabilities, newer_classes), newer.weights
    loss = float(np.average(losses, weights=weights))
    error = float(np.linalg.norm(weights * (losses - loss)) / weights.sum())
    return grown(asked, classes, count, size, seed), temperatures, (loss, error)


def fit(samples, size=forest.Size(leaf=6, features=0.4), shares=EDGES, edges=None, seed=1):
    """A model of these samples."""
    edges = edges_of(samples, shares) if edges is None else np.asarray(edges, float)
    bands = bands_of(samples, edges)
    made, temperatures, _ = grown_in_time(samples, bands, len(edges) + 1, size, seed)
    means = np.concatenate([[0], edges])  # of a band without samples: where it begins
    for band in np.unique(bands):
        own = bands == band
        means[band] = np.average(samples.to_come[own], weights=samples.weights[own])
    return Model(made, edges, means, temperatures)


@dataclasses.dataclass
class Flows:
    """What bundle.write reads of samples."""

    input: inputs.Input
    series: np.ndarray
    context: np.ndarray
    counts: np.ndarray
    classes: np.ndarray
    names: tuple
    taxonomy: dict

    def seen_context(self):
        return self.context


def write(folder, name, version, samples, model):
    """The bundle of a model."""
    input = samples.input
    by_count = calibrate.by_count(input.depths, model.temperatures, input.k)
    bands = bands_of(samples, model.edges)
    flows = Flows(input, samples.series, samples.context, samples.counts, bands, BANDS,
                  dict.fromkeys(BANDS, "volume"))
    target = ("volume", [int(edge) for edge in model.edges])
    bundle.write(folder, name, version, flows, forestgraph.model(model.forest, by_count, name),
                 [0.0] * len(input.depths), 0.0, [], {}, target=target)
