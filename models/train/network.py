"""The network: a 1D-CNN over one series; for ten signed lengths it has about 100 k weights.

    series [features, K] -> code [K, codes] -> conv 3 [K, 32] -> conv 3 [K, 64] -> dense [144] -> classes

The first layer is fixed (inputs.py).  It codes a signed length as 14 numbers in 0..1: each says how much
of one range of lengths, in one direction, the length fills.  So 52 and 64 bytes differ visibly although
1500 and even 65535 stay in range, the direction is plain, and padding is all zeros.  As a scaled and
clipped line per range it is a convolution of width 1 and a clip, which is how it stands in the exported
graph.
"""

import jax
import jax.numpy as jnp
import numpy as np

from inputs import FLAG_BITS

CONV1, CONV2, DENSE = 32, 64, 144
KERNEL = 3


def init(rng, classes, input, dense=DENSE):
    """Random weights by He's rule; `rng` is a numpy generator."""
    shapes = {
        "conv1": (KERNEL, input.code_len, CONV1),
        "conv2": (KERNEL, CONV1, CONV2),
        "dense": (input.k, CONV2, dense),
        "out": (dense, classes),
    }
    params = {}
    for name, shape in shapes.items():
        deviation = np.sqrt(2 / np.prod(shape[:-1]))
        params[name] = rng.normal(0, deviation, shape).astype(np.float32)
        params[name + "_bias"] = np.zeros(shape[-1], np.float32)
    return params


def convolve(x, weights, bias):
    """Width 3, one row of zeros at either end; x is [batch, K, channels]."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    shifted = jnp.concatenate([padded[:, i : i + x.shape[1]] for i in range(KERNEL)], axis=2)
    return jax.nn.relu(shifted @ weights.reshape(-1, weights.shape[-1]) + bias)


def code(series, input):
    """The code of each element, [batch, K, codes]; `series` is [batch, features, K]."""
    scale, offset = input.code()
    elements = series.transpose(0, 2, 1)
    if input.is_lengths_only:
        coded = jnp.clip(elements * scale[0] + offset, 0, 1)
    else:
        # Each code reads one channel.
        coded = jnp.clip(sum(elements[:, :, i, None] * row for i, row in enumerate(scale)) + offset, 0, 1)
    if input.flags_channel is None:
        return coded
    powers = jnp.floor(elements[:, :, input.flags_channel, None] / 2.0 ** np.arange(FLAG_BITS + 1))
    return jnp.concatenate([coded, powers[:, :, :-1] - 2 * powers[:, :, 1:]], axis=2)


def logits(params, series, input, dropout_key=None, dropout=0.0):
    """Class scores before softmax; `series` is [batch, features, K], raw. No key: no dropout."""

    def thin(x, i):
        if dropout_key is None:
            return x
        keep = jax.random.bernoulli(jax.random.fold_in(dropout_key, i), 1 - dropout, x.shape)
        return jnp.where(keep, x / (1 - dropout), 0)

    x = code(series, input)
    x = convolve(x, params["conv1"], params["conv1_bias"])
    x = convolve(x, params["conv2"], params["conv2_bias"])
    x = thin(x.reshape(len(x), -1), 0)
    x = jax.nn.relu(x @ params["dense"].reshape(x.shape[1], -1) + params["dense_bias"])
    return thin(x, 1) @ params["out"] + params["out_bias"]
