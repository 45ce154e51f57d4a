"""Flows as they might have been elsewhere: other depths, options, paths, and ports that say nothing."""

import numpy as np

from .inputs import LENGTH_MAX, TIME_MAX

FULL_SIZE_BYTES = 1300  # from here on a packet is taken to be filled to the path's MTU
JITTER_BYTES = 6


def flows(rng, input, series, context, counts, port_exchange, share=1.0):
    """Series and context of a batch, changed at random; a flow is cut to a depth that it reached.  `port_exchange`
    is the share of flows that get another port, `share` is the share whose numbers are changed."""
    depths = np.array(input.depths)
    reached = np.maximum((counts[:, None] >= depths[None, :]).sum(axis=1), 1)
    depth = depths[(rng.random(len(series)) * reached).astype(int)]
    made = input.cut(series, depth)
    changed = rng.random(len(made)) < share
    moved = lengths(rng, input, made)
    if "inter_arrival_us" in input.features:
        moved[:, input.channel("inter_arrival_us")] = times(rng, made[:, input.channel("inter_arrival_us")])
    made = np.where(changed[:, None, None], moved, made)
    context = context.copy()
    if "server_port" in input.context:
        port = context[:, input.context.index("server_port")]
        # Where no port is given, a random one says as little.
        exchanged = (rng.random(len(context)) < port_exchange) | (port == 0)
        port[exchanged] = other_ports(rng, exchanged.sum())
    return made, context


def other_ports(rng, count):
    """Ports that say nothing: 0 for none, or any that is not privileged."""
    return rng.choice([0, 1], count, p=[0.4, 0.6]) * rng.integers(1024, 65_536, count)


def lengths(rng, input, series):
    """Lengths with other TCP options, paddings and MTUs."""
    made = series.copy()
    if "signed_length" in input.features:
        channel = input.channel("signed_length")
        values = made[:, channel]
        size = np.abs(values)
        shift = rng.choice([-20, -12, 0, 0, 0, 0, 0, 0, 0, 0, 12, 20], (len(values), 1))
        mtu = rng.integers(FULL_SIZE_BYTES, 1501, (len(values), 1))
        full = (size >= FULL_SIZE_BYTES) & (size <= 1500) & (rng.random((len(values), 1)) < 0.2)
        moved = np.where(full, mtu, np.maximum(jitter(rng, size) + shift, 20))
        made[:, channel] = np.where(size > 0, np.sign(values) * np.minimum(moved, LENGTH_MAX), 0)
    if "payload_length" in input.features:
        channel = input.channel("payload_length")
        size = made[:, channel]
        made[:, channel] = np.where(size > 0, np.clip(jitter(rng, size), 1, LENGTH_MAX), 0)
    return made


def jitter(rng, size):
    """A few lengths in ten off by a few bytes."""
    return size + rng.integers(-JITTER_BYTES, JITTER_BYTES + 1, size.shape) * (rng.random(size.shape) < 0.1)


def times(rng, values):
    """Times of a path that is longer or shorter, and of other hosts."""
    factor = 2.0 ** (rng.uniform(-1.5, 1.5, (len(values), 1)) + rng.uniform(-0.5, 0.5, values.shape))
    return np.minimum(np.floor(values * factor), TIME_MAX).astype(np.float32)
