"""What a model reads of a flow: unit, depths, features and context.

A flow's series has up to k elements: its first packets (unit "packet"), or its first packets with layer-4 payload
(unit "data").  Each feature is one channel of raw numbers, float32 [features, k]; elements that the flow does not
have are 0.  The context is a second row of raw numbers.
"""

import dataclasses

import numpy as np

from . import servers
from .errors import USAGE, Refusal

ELEMENTS = {"packet": "packets", "data": "packets with layer-4 payload"}  # what a series is made of, by unit
UNITS = tuple(ELEMENTS)
FEATURES = ("signed_length", "payload_length", "inter_arrival_us", "tcp_flags")
CONTEXT = ("protocol", "server_port")
LOCAL = servers.FEATURES  # context of addresses: a model with these serves one network
K_MAX = 32
LENGTH_MAX = 65_535  # a series holds no more; longer lengths saturate
TIME_MAX = 2**32 - 1  # microseconds; longer gaps saturate
LOCAL_MAX = 52  # logarithms of bytes and us; a count of flows stays below
TCP, UDP = 6, 17
SYN, ACK = 2, 16


@dataclasses.dataclass(frozen=True)
class Input:
    """Unit, depths (rising, the last is k), features in the order of the channels, and context."""

    unit: str = "packet"
    depths: tuple[int, ...] = (10,)
    features: tuple[str, ...] = ("signed_length",)
    context: tuple[str, ...] = ()

    def __post_init__(self):
        if self.unit not in UNITS:
            raise Refusal(f"unit {self.unit}: known are {', '.join(UNITS)}", USAGE)
        rising = all(a < b for a, b in zip(self.depths, self.depths[1:]))
        if not self.depths or not rising or self.depths[0] < 1 or self.depths[-1] > K_MAX:
            raise Refusal(f"depths {list(self.depths)}: give rising numbers from 1 to {K_MAX}, such as 3,5,10", USAGE)
        chosen(self.features, FEATURES, "features")
        chosen(self.context, CONTEXT + LOCAL, "context")
        if not self.features:
            raise Refusal(f"features are none: known are {', '.join(FEATURES)}", USAGE)
        if len(self.depths) > 1 and not self.has_lengths:
            raise Refusal("several depths need a feature whose numbers are never 0: add signed_length", USAGE)

    @property
    def k(self):
        return self.depths[-1]

    @property
    def has_lengths(self):
        """Whether an absent element can be told from the numbers alone."""
        return "signed_length" in self.features or (self.unit == "data" and "payload_length" in self.features)

    def channel(self, feature):
        """The channel of a feature, or None."""
        return self.features.index(feature) if feature in self.features else None

    def present(self, series):
        """Which elements a flow has, bool [flows, k]."""
        name = "signed_length" if "signed_length" in self.features else "payload_length"
        if not self.has_lengths:
            return np.ones((len(series), self.k), bool)
        return series[:, self.channel(name)] != 0

    def cut(self, series, depth):
        """The same series as they were when they had `depth` elements; `depth` is one number, or one for each."""
        keep = np.arange(self.k)[None, :] < np.broadcast_to(depth, len(series))[:, None]
        return series * keep[:, None, :].astype(np.float32)

    def random(self, rng, count):
        """Any numbers that a series and its context can hold."""
        ranges = {
            "signed_length": (-LENGTH_MAX, LENGTH_MAX + 1),
            "payload_length": (0, LENGTH_MAX + 1),
            "inter_arrival_us": (0, TIME_MAX + 1),
            "tcp_flags": (0, 256),
        }
        channels = [rng.integers(*ranges[name], (count, self.k)) for name in self.features]
        return np.stack(channels, axis=1).astype(np.float32), self.random_context(rng, count)

    def random_context(self, rng, count):
        columns = {
            "protocol": rng.choice([TCP, UDP], count),
            "server_port": rng.integers(0, 65_536, count),
            **{name: rng.uniform(0, LOCAL_MAX, count) for name in LOCAL},
        }
        return np.array([columns[name] for name in self.context], np.float32).T.reshape(count, len(self.context))

    def extremes(self):
        """Rows that no network sends, for the golden rows."""
        k = self.k
        rows = {
            "signed_length": ([LENGTH_MAX] * k, [LENGTH_MAX * (-1) ** i for i in range(k)], [28] * k),
            "payload_length": ([LENGTH_MAX] * k, [LENGTH_MAX] * k, [0] * k),
            "inter_arrival_us": ([TIME_MAX] * k, [0] * k, [1] * k),
            "tcp_flags": ([255] * k, [2**i % 255 for i in range(k)], [0] * k),
        }
        series = np.array([[rows[name][i] for name in self.features] for i in range(3)], np.float32)
        ends = {"protocol": (TCP, UDP, TCP), "server_port": (65_535, 1, 0)}
        ends |= {name: (LOCAL_MAX, 1, 0) for name in LOCAL}
        context = np.array([[ends[name][i] for name in self.context] for i in range(3)], np.float32)
        return series, context.reshape(3, len(self.context))


def chosen(names, known, what):
    """Checks a list of names."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Refusal(f"{what} {', '.join(unknown)}: known are {', '.join(known)}", USAGE)
    if len(set(names)) < len(names):
        raise Refusal(f"{what}: one stands twice", USAGE)


def of_manifest(manifest):
    """The Input of a bundle, from its model.toml as a dictionary."""
    depths = tuple(manifest.get("depths", [manifest["k"]]))
    return Input(manifest.get("unit", "packet"), depths, tuple(manifest["features"]), tuple(manifest.get("context", [])))
