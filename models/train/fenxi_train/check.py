"""Checks a bundle's model: the same bits in every batch, golden outputs, and how long a row takes."""

import time

import numpy as np

from . import runtime

BATCHES = (2, 3, 5, 8, 13, 16, 31, 32, 64, 128, 256, 512, 1000, 1024)
GOLDEN_TOLERANCE = 1e-4  # processors round differently
TIMED_BATCHES = (1, 8, 64, 256, 1024)


def rows_of(bundle, count=2048):
    """Golden rows, and random ones at every depth."""
    rng = np.random.default_rng(1)
    series, context, _ = bundle.goldens()
    more, more_context = bundle.input.random(rng, count)
    more = bundle.input.cut(more, rng.choice(bundle.input.depths, count)) if bundle.input.has_lengths else more
    return np.concatenate([series, more]), np.concatenate([context, more_context])


def in_batches(session, series, context, size):
    parts = [runtime.run(session, series[i : i + size], context[i : i + size]) for i in range(0, len(series), size)]
    return np.concatenate(parts)


def count_different(some, others):
    """Rows that differ by any bit."""
    return int((some.view(np.uint32) != others.view(np.uint32)).any(axis=1).sum())


def problems(bundle):
    """What is wrong, as lines."""
    session = bundle.session()
    series, context = rows_of(bundle)
    rng = np.random.default_rng(2)
    pairs = in_batches(session, series, context, 1)
    found = [] if np.isfinite(pairs).all() else ["outputs that are no numbers"]
    if bundle.target and len(bundle.labels) != len(bundle.target[1]) + 1:
        found.append(f"{len(bundle.labels)} labels, but target.edges has {len(bundle.target[1])}; bands are one more")
    for size in BATCHES:
        order = rng.permutation(len(series))
        rows = count_different(in_batches(session, series[order], context[order], size), pairs[order])
        if rows:
            found.append(f"batch {size}: {rows} of {len(series)} rows differ from their output beside their copy")
    golden_series, golden_context, outputs = bundle.goldens()
    furthest = np.abs(runtime.run(session, golden_series, golden_context) - outputs).max()
    if not furthest <= GOLDEN_TOLERANCE:
        found.append(f"golden outputs differ by up to {furthest:.2g}")
    return found


def cost_ratio(bundle, other, size=256, rounds=60):
    """What a row costs beside one of another bundle, each the median of runs in turn; and both in microseconds."""
    times = []
    runs = []
    for one in (bundle, other):
        series, context = rows_of(one, rounds * size)
        runs.append((one.session(), series, context))
    for i in range(rounds):
        part = slice(i * size, (i + 1) * size)
        row = []
        for session, series, context in runs:
            own = np.ascontiguousarray(series[part]), np.ascontiguousarray(context[part])
            begin = time.perf_counter()
            for _ in range(8):
                runtime.run(session, *own)
            row.append((time.perf_counter() - begin) / (8 * size) * 1e6)
        times.append(row)
    own, reference = np.median(times, axis=0)
    return float(np.median([a / b for a, b in times])), float(own), float(reference)


def time_per_row_us(bundle, size):
    """The best of ten runs of some thousand rows each."""
    session = bundle.session()
    series, context = (np.ascontiguousarray(a[:size]) for a in rows_of(bundle))
    repeats, best = max(4096 // size, 1), float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(repeats):
            runtime.run(session, series, context)
        best = min(best, time.perf_counter() - begin)
    return best / (repeats * size) * 1e6
