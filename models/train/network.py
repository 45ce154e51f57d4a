"""The network: a 1D-CNN of about 100 k weights over one series of signed lengths.

    series [K] -> code [K, 14] -> conv 3 [K, 32] -> conv 3 [K, 64] -> dense [144] -> classes

The first layer is fixed.  It codes a signed length as 14 numbers in 0..1: each says how much of
one range of lengths, in one direction, the length fills (a piecewise linear thermometer).  So
52 and 64 bytes differ visibly although 1500 and even 65535 stay in range, the direction is
plain, and padding is all zeros.  As a scaled and clipped line per range it is a convolution of
width 1 and a clip, which is how it stands in the exported graph; it has no logarithm, whose
vector and scalar forms may round differently and so depend on a row's place in the batch.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dataset import K

EDGES = (0, 64, 128, 256, 512, 1024, 1536, 16384)  # bytes
CONV1, CONV2, DENSE = 32, 64, 144
KERNEL = 3


def code_weights():
    """Scale and offset of each range: code = clip(scale * length + offset, 0, 1)."""
    low, high = np.array(EDGES[:-1], np.float32), np.array(EDGES[1:], np.float32)
    scale, offset = 1 / (high - low), -low / (high - low)
    return np.concatenate([scale, -scale]), np.concatenate([offset, offset])


def init(rng, classes):
    """Random weights by He's rule; `rng` is a numpy generator."""
    code = 2 * (len(EDGES) - 1)
    shapes = {
        "conv1": (KERNEL, code, CONV1),
        "conv2": (KERNEL, CONV1, CONV2),
        "dense": (K, CONV2, DENSE),
        "out": (DENSE, classes),
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
    shifted = jnp.concatenate([padded[:, i : i + K] for i in range(KERNEL)], axis=2)
    return jax.nn.relu(shifted @ weights.reshape(-1, weights.shape[-1]) + bias)


def logits(params, series, dropout_key=None, dropout=0.0):
    """Class scores before softmax; `series` is [batch, K] in bytes. No key: no dropout."""

    def thin(x, i):
        if dropout_key is None:
            return x
        keep = jax.random.bernoulli(jax.random.fold_in(dropout_key, i), 1 - dropout, x.shape)
        return jnp.where(keep, x / (1 - dropout), 0)

    scale, offset = code_weights()
    x = jnp.clip(series[:, :, None] * scale + offset, 0, 1)
    x = convolve(x, params["conv1"], params["conv1_bias"])
    x = convolve(x, params["conv2"], params["conv2_bias"])
    x = thin(x.reshape(len(x), -1), 0)
    x = jax.nn.relu(x @ params["dense"].reshape(-1, DENSE) + params["dense_bias"])
    return thin(x, 1) @ params["out"] + params["out_bias"]
