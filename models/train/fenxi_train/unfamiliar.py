"""Flows that no training set holds, made for the outlier class.

Elements of different flows are put together, lengths become ones never seen, and the port becomes one that
says nothing.  A network that has learned to call these unfamiliar does not name what it has never met by what
happens to lie nearest.
"""

import dataclasses

import numpy as np

from . import augment

NEAR_BYTES = 40


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes unfamiliar flows out of each batch; `share` of the batch's size."""

    outlier: int  # the class they get
    share: float = 0.15
    sureness: float = 0.7  # the rest of the probability stays with the flow's own class
    ports: bool = True  # whether the port is replaced, too
    replaced: float = 1.0  # share of them that get another port
    near: float = 0.0  # share of them whose lengths are only a few bytes off

    def __call__(self, rng, input, series, context, targets):
        count = int(len(series) * self.share)
        rows = rng.integers(0, len(series), count)
        made, context = series[rows].copy(), context[rows].copy()
        mix(rng, input, made, series, self.near)
        context = self.other_ports(rng, input, context)
        wanted = np.zeros((count, targets.shape[1]), np.float32)
        wanted[:, self.outlier] = 1
        return made, context, self.sureness * wanted + (1 - self.sureness) * targets[rows]

    def other_ports(self, rng, input, context):
        """The context with ports that say nothing, if ports are replaced."""
        if not self.ports or "server_port" not in input.context:
            return context
        made, count, at = context.copy(), len(context), input.context.index("server_port")
        made[:, at] = np.where(rng.random(count) < self.replaced, augment.other_ports(rng, count), made[:, at])
        return made


def mix(rng, input, made, series, near):
    """Changes lengths in place: each element from another flow of the batch, of any size, or a few bytes off."""
    count, k = len(made), input.k
    there = input.present(made)
    for channel, name in enumerate(input.features):
        if name not in ("signed_length", "payload_length"):
            continue
        donors = series[rng.integers(0, len(series), (count, k)), channel, rng.integers(0, k, (count, k))]
        low = 29 if name == "signed_length" else 1
        sizes = np.floor(np.exp(rng.uniform(np.log(low), np.log(1500), (count, k))))
        sign = rng.choice([-1, 1], (count, k)) if name == "signed_length" else 1
        sign = np.where(rng.random((count, k)) < 0.5, np.where(made[:, channel] < 0, -1, 1), sign)
        anew = np.where((donors != 0) & (rng.random((count, 1)) < 0.4), donors, sizes * sign)
        step = rng.integers(2, NEAR_BYTES + 1, (count, k)) * rng.choice([-1, 1], (count, k))
        size = np.clip(np.abs(made[:, channel]) + step, low, 1500)
        off = np.where(made[:, channel] < 0, -size, size)
        anew = np.where(rng.random((count, 1)) < near, off, anew)
        changed = there & (rng.random((count, k)) < rng.uniform(0.3, 1.0, (count, 1)))
        made[:, channel] = np.where(changed, anew, made[:, channel])
