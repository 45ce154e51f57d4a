"""Checks a bundle's model: the same bits in every batch, and the golden outputs; then times it."""

import argparse
import pathlib
import sys
import time

import numpy as np

import dataset
import inputs
import runtime

BATCHES = (2, 3, 5, 8, 13, 16, 31, 32, 64, 128, 256, 512, 1000, 1024)
TIMED_BATCHES = (1, 8, 64, 256, 1024)


def in_batches(run, session, series, size):
    """Outputs of all series, run in batches of `size`."""
    return np.concatenate([run(session, series[i : i + size]) for i in range(0, len(series), size)])


def count_different(some, others):
    """Rows that differ by any bit."""
    return int((some.view(np.uint32) != others.view(np.uint32)).any(axis=1).sum())


def unstable_rows(session, series, pairs, rng):
    """(batch size, rows) where a row's output is not the one in `pairs`; other neighbours at each size."""
    found = []
    for size in BATCHES:
        order = rng.permutation(len(series))
        rows = count_different(in_batches(runtime.run, session, series[order], size), pairs[order])
        if rows:
            found.append((size, rows))
    return found


def time_per_row_us(session, series, size):
    """The best of ten runs of some thousand rows each."""
    batch, repeats = np.ascontiguousarray(series[:size]), 4096 // size
    best = float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(repeats):
            runtime.run(session, batch)
        best = min(best, time.perf_counter() - begin)
    return best / (repeats * size) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("--data-table", help="train_data.csv.gz, for unit data and payload lengths")
    args = parser.parse_args()
    input = inputs.of_bundle(args.bundle)
    return check(args.bundle, dataset.load(args.table, input, args.data_table))


def check(bundle, flows):
    """Prints what it finds, and returns 1 where something is wrong."""
    session = runtime.session(bundle / "model.onnx")
    rng = np.random.default_rng(1)
    series = rng.permutation(np.concatenate([flows.series, flows.input.random(rng, 2048)]))

    pairs = in_batches(runtime.run, session, series, 1)
    if not np.isfinite(pairs).all():
        sys.exit("outputs that are no numbers")
    found = unstable_rows(session, series, pairs, rng)
    for size, rows in found:
        print(f"batch {size}: {rows} of {len(series)} rows differ from their output beside their copy")
    unpadded = count_different(in_batches(runtime.run_as_is, session, series, 1), pairs)
    print(f"rows that differ when run without a second row (fenxi never does): {unpadded} of {len(series)}")
    rows = np.loadtxt(bundle / "golden/inputs.csv", np.float32, delimiter=",", ndmin=2)
    outputs = np.loadtxt(bundle / "golden/outputs.csv", np.float32, delimiter=",", ndmin=2)
    exact = np.array_equal(runtime.run(session, rows.reshape(-1, *series.shape[1:])), outputs)
    print(f"batches {'differ' if found else 'agree to the bit'}; golden outputs {'match' if exact else 'differ'}")
    for size in TIMED_BATCHES:
        print(f"batch {size}: {time_per_row_us(session, series, size):.2f} us per row")
    return 1 if found or not exact else 0


if __name__ == "__main__":
    sys.exit(main())
