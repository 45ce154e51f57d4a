"""Scores a model of volume in order of time, as it would have been used.

Captures are ordered by their first flow.  A new model is learned every few captures from a window
of earlier ones, and ranks the flows of the next ones.  The flows of the highest rank are marked; a
score is their share of all bytes to come.  Beside it stand the table of servers,
a model learned once, and a counter, which marks flows that pass a number of bytes, chosen in
hindsight to mark the same number; bytes before the mark do not count.
"""

import time

import numpy as np

from . import metrics, volume
from .errors import USAGE, Refusal

REPEATS = 400  # of the bootstrap over captures
TAILS = (2.5, 97.5)  # percentiles


def report(samples, size, shares, args):
    """The lines of the report."""
    names, place = order(samples)
    if len(names) <= args.first:
        raise Refusal(f"--first {args.first}: there are only {len(names)} captures; give fewer", USAGE)
    learn = size, shares, args.seed
    found, slowest = walk(samples, place, learn, args.first, args.every, args.window)
    once, _ = walk(samples, place, learn, args.first, len(names), args.first)
    late = place >= args.first
    yield (f"{len(names)} captures, {late.sum():,} of {len(late):,} samples scored; a model of"
           f" {args.window} captures every {args.every}; the slowest took {slowest:.1f} s to learn")
    for depth in samples.input.depths:
        rows = np.where(late & (samples.counts == depth))[0]
        if not len(rows):
            continue
        own = samples.take(rows)
        ranks = {
            "model": found["rank"][rows],
            "model learned once": once["rank"][rows],
            "table of servers": own.volume,
            "perfect choice": own.to_come,
        }
        for marked in args.marked:
            yield f"depth {depth}, {marked:.1%} of {len(rows):,} flows marked"
            for name, line in compared(ranks, own, marked):
                yield f"  {name:<20}{line}"
            yield f"  {'counter':<20}{counted(own, marked):.3f}"
        bands = found["band"][rows]
        scored = metrics.score(bands, found["probabilities"][rows])
        yield f"  bands: {scored['accuracy']:.3f} right, calibration error {scored['ece']:.3f}"


def order(samples):
    """The captures by their first flow, and the place of each sample's."""
    names, inverse = np.unique(samples.captures, return_inverse=True)
    first = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse, samples.began_us)
    by_time = np.argsort(first, kind="stable")
    place = np.empty(len(names), int)
    place[by_time] = np.arange(len(names))
    return names[by_time], place[inverse]


def walk(samples, place, learn, first, every, window):
    """Rank, probabilities and true band of each sample from `first` on, and the seconds of the
    slowest fit; `learn` is the size, the shares of the edges and the seed."""
    (size, shares, seed), count = learn, len(place)
    found = {"rank": np.zeros(count), "band": np.zeros(count, int),
             "probabilities": np.zeros((count, len(volume.BANDS)))}
    slowest = 0.0
    for at in range(first, int(place.max()) + 1, every):
        known = samples.take(np.where((place < at) & (place >= at - window))[0])
        began = time.perf_counter()
        model = volume.fit(known, size, shares, seed=seed)
        slowest = max(slowest, time.perf_counter() - began)
        rows = np.where((place >= at) & (place < at + every))[0]
        next_ones = samples.take(rows)
        probabilities = model.probabilities(next_ones)
        found["rank"][rows] = probabilities @ model.means
        found["probabilities"][rows] = probabilities
        found["band"][rows] = volume.bands_of(next_ones, model.edges)
    return found, slowest


def covered(rank, to_come, weights, marked):
    """Share of the bytes to come of the flows of the highest rank, `marked` of all flows."""
    best = np.argsort(-rank, kind="stable")
    bytes_, flows = (to_come * weights)[best], weights[best]
    # The flow at the border counts in part.
    part = np.clip((marked * flows.sum() - (np.cumsum(flows) - flows)) / flows, 0, 1)
    return float((bytes_ * part).sum() / max(bytes_.sum(), 1))


def compared(ranks, samples, marked):
    """For each rank its share, its interval, and how far the first is ahead of it."""
    groups = [np.where(samples.captures == name)[0] for name in np.unique(samples.captures)]
    rng, drawn = np.random.default_rng(1), []
    for _ in range(REPEATS):
        rows = np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))])
        truth = samples.to_come[rows], samples.weights[rows]
        drawn.append([covered(rank[rows], *truth, marked) for rank in ranks.values()])
    drawn = np.array(drawn)
    for i, (name, rank) in enumerate(ranks.items()):
        low, high = np.percentile(drawn[:, i], TAILS)
        share = covered(rank, samples.to_come, samples.weights, marked)
        line = f"{share:.3f} ({low:.3f} to {high:.3f})"
        if i:
            low, high = np.percentile(drawn[:, 0] - drawn[:, i], TAILS)
            line += f"; the model is {low:+.3f} to {high:+.3f} ahead"
        yield name, line


def counted(samples, marked):
    """Share of the bytes that come after the depth and a bound, which `marked` of the flows pass."""
    sent = np.abs(samples.series[:, 0]).sum(axis=1)
    total = sent + samples.to_come
    by_size = np.argsort(-total, kind="stable")
    flows = np.cumsum(samples.weights[by_size])
    bound = total[by_size[min(np.searchsorted(flows, marked * flows[-1]), len(flows) - 1)]]
    caught = np.minimum(np.maximum(total - bound, 0), samples.to_come)
    return float(caught @ samples.weights / max(samples.to_come @ samples.weights, 1))
