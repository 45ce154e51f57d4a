"""Fits the network; as a program, on all flows of the table, and writes the weights.

Against so little data stand dropout, weight decay and numbers jittered anew in every step.
Weights per class and per capture were tried and gained nothing on captures held out.
"""

import os

# JAX divides its sums by the number of cores it sees: shown one, it rounds alike on any number.
os.environ["PJRT_NPROC"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse

import jax
import numpy as np
import optax

import dataset
import inputs
import network

SEED = 1
STEPS = 1500
BATCH = 128
LEARNING_RATE = 2e-3  # highest; warmed up, then falling to 0 as a cosine
WEIGHT_DECAY = 0.05
DROPOUT = 0.6
JITTER_BYTES = 6
FULL_SIZE_BYTES = 1300  # from here on a packet is taken to be filled to the path's MTU


def augment(rng, series, input):
    """Series as they might have been elsewhere: jitter for lengths and times, none for flags."""
    jitter = {"signed_length": jitter_lengths, "payload_length": jitter_payloads, "inter_arrival_us": jitter_times}
    channels = [
        jitter[name](rng, series[:, i]) if name in jitter else series[:, i] for i, name in enumerate(input.features)
    ]
    return np.stack(channels, axis=1)


def jitter_lengths(rng, series):
    """Signed lengths as they might have been elsewhere: other options, paddings and MTUs."""
    size = np.abs(series)
    moved = size + rng.integers(-JITTER_BYTES, JITTER_BYTES + 1, series.shape) * (rng.random(series.shape) < 0.3)
    shift = rng.choice([-12, 0, 0, 0, 12], (len(series), 1))  # the TCP timestamp option, on or off
    mtu = rng.integers(FULL_SIZE_BYTES, 1501, (len(series), 1))
    full = (size >= FULL_SIZE_BYTES) & (size <= 1500) & (rng.random((len(series), 1)) < 0.3)
    moved = np.where(full, mtu, np.maximum(moved + shift, 20))
    return (np.sign(series) * np.minimum(moved, inputs.LENGTH_MAX)).astype(np.float32)


def jitter_payloads(rng, series):
    """Payload lengths some bytes off; none stays none."""
    moved = series + rng.integers(-JITTER_BYTES, JITTER_BYTES + 1, series.shape) * (rng.random(series.shape) < 0.3)
    return np.where(series > 0, np.clip(moved, 1, inputs.LENGTH_MAX), 0).astype(np.float32)


def jitter_times(rng, series):
    """Times of a path that is longer or shorter, and of other hosts."""
    factor = 2.0 ** (rng.uniform(-1, 1, (len(series), 1)) + rng.uniform(-0.5, 0.5, series.shape))
    return np.minimum(np.floor(series * factor), inputs.TIME_MAX).astype(np.float32)


def fit(series, classes, class_count, seed=SEED, input=dataset.INPUT, dense=network.DENSE):
    """Weights trained on these flows."""
    rng = np.random.default_rng(seed)
    params = network.init(rng, class_count, input, dense)
    rate = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, STEPS // 20, STEPS)
    optimizer = optax.adamw(rate, weight_decay=WEIGHT_DECAY)
    state = optimizer.init(params)

    def loss(params, x, y, key):
        scores = network.logits(params, x, input, key, DROPOUT)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @jax.jit
    def step(params, state, x, y, key):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y, key), state, params)
        return optax.apply_updates(params, updates), state

    for i in range(STEPS):
        rows = rng.integers(0, len(series), BATCH)
        key = jax.random.fold_in(jax.random.key(seed), i)
        params, state = step(params, state, augment(rng, series[rows], input), classes[rows], key)
    return {name: np.asarray(value) for name, value in params.items()}


def predict(params, series, input=dataset.INPUT):
    """Class of each series."""
    return np.asarray(network.logits(params, series, input)).argmax(axis=1)


def main():
    parser = argparse.ArgumentParser(description="train on all flows of the table")
    parser.add_argument("table", help="train.csv.gz")
    parser.add_argument("weights", help="file to write (.npz)")
    args = parser.parse_args()
    flows = dataset.load(args.table)
    params = fit(flows.series, flows.classes, len(flows.names))
    right = np.mean(predict(params, flows.series) == flows.classes)
    print(f"trained on {len(flows.series)} flows, {len(flows.names)} classes; {right:.3f} of them known again")
    np.savez(args.weights, **params)


if __name__ == "__main__":
    main()
