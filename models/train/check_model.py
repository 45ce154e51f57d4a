"""Checks a bundle's model: the same bits in every batch, and the golden outputs; then times it."""

import argparse
import pathlib
import sys
import time

import numpy as np

import dataset
import runtime

BATCHES = (2, 3, 5, 8, 13, 16, 31, 32, 64, 128, 256, 512, 1000, 1024)
TIMED_BATCHES = (1, 8, 64, 256)


def unstable_rows(session, series):
    """(batch size, rows) where a row's output differs from its output alone, by any bit."""
    alone = np.concatenate([runtime.run(session, series[i : i + 1]) for i in range(len(series))])
    found = []
    for size in BATCHES:
        batches = [runtime.run(session, series[i : i + size]) for i in range(0, len(series), size)]
        differs = (np.concatenate(batches).view(np.uint32) != alone.view(np.uint32)).any(axis=1)
        if differs.any():
            found.append((size, int(differs.sum())))
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
    args = parser.parse_args()
    session = runtime.session(args.bundle / "model.onnx")
    real = dataset.load(args.table).series
    rng = np.random.default_rng(1)
    made = rng.integers(-dataset.LENGTH_MAX, dataset.LENGTH_MAX + 1, (2048, dataset.K))
    series = rng.permutation(np.concatenate([real, made.astype(np.float32)]))[:, None, :]

    found = unstable_rows(session, series)
    for size, rows in found:
        print(f"batch {size}: {rows} of {len(series)} rows differ from their output alone")
    inputs = np.loadtxt(args.bundle / "golden/inputs.csv", np.float32, delimiter=",", ndmin=2)
    outputs = np.loadtxt(args.bundle / "golden/outputs.csv", np.float32, delimiter=",", ndmin=2)
    exact = np.array_equal(runtime.run(session, inputs[:, None, :]), outputs)
    print(f"batches {'differ' if found else 'agree to the bit'}; golden outputs {'match' if exact else 'differ'}")
    for size in TIMED_BATCHES:
        print(f"batch {size}: {time_per_row_us(session, series, size):.2f} us per row")
    return 1 if found or not exact else 0


if __name__ == "__main__":
    sys.exit(main())
