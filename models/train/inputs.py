"""What a model reads of a flow: its unit, K and features, and how the network codes each feature.

A flow's series has K elements: its first K packets (unit "packet"), or its first K packets with layer-4
payload (unit "data").  Of each element the model gets one number for each feature, raw, channel by
channel: float32 [features, K].  Scaling is the network's first layer, which is fixed: it codes a number
as numbers in 0..1, each of which says how much of one range the number fills (a piecewise linear
thermometer).  TCP flags are coded as their eight bits.

Ranges of times grow tenfold, so their code follows the logarithm.  A logarithm itself is avoided: its
vector and scalar forms may round differently, and a row's output must not depend on its place in the batch.
"""

import dataclasses
import tomllib

import numpy as np

UNITS = ("packet", "data")
K_MAX = 32
LENGTH_MAX = 65_535  # a series holds no more; longer lengths saturate
TIME_MAX = 2**32 - 1  # microseconds; longer gaps saturate
FLAG_BITS = 8

LENGTH_EDGES = (0, 64, 128, 256, 512, 1024, 1536, 16384)  # bytes
TIME_EDGES = (0, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8)  # microseconds

FEATURES = ("signed_length", "payload_length", "inter_arrival_us", "tcp_flags")
# Columns of the tables by unit: train.csv.gz for packets, train_data.csv.gz for the rest.
COLUMNS = {
    "packet": {"lengths": "lengths", "payloads": "payloads", "offsets": "offsets_us", "flags": "flags"},
    "data": {"lengths": "data_lengths", "payloads": "data_payloads", "offsets": "data_offsets_us", "flags": "data_flags"},
}


@dataclasses.dataclass(frozen=True)
class Input:
    """Unit, number of elements, and features in the order of the channels."""

    unit: str
    k: int
    features: tuple[str, ...]

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"unit {self.unit}: known are {', '.join(UNITS)}")
        if not 1 <= self.k <= K_MAX:
            raise ValueError(f"k {self.k}: a series has 1 to {K_MAX} elements")
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown or not self.features:
            raise ValueError(f"features {', '.join(unknown) or 'are none'}: known are {', '.join(FEATURES)}")
        if len(set(self.features)) < len(self.features):
            raise ValueError("features: one stands twice")

    @property
    def is_lengths_only(self):
        return self.features == ("signed_length",)

    def read(self, row):
        """The series of a table's row, float32 [features, K], or None where the flow is shorter."""
        numbers = {name: [int(v) for v in row.get(column, "").split()] for name, column in COLUMNS[self.unit].items()}
        if len(numbers["lengths"]) < self.k:
            return None
        offsets = np.array(numbers["offsets"])
        found = {
            "signed_length": np.clip(numbers["lengths"], -LENGTH_MAX, LENGTH_MAX),
            "payload_length": np.minimum(numbers["payloads"], LENGTH_MAX),
            # The first element has no time before it, and time may step back in a capture: 0 for both.
            "inter_arrival_us": np.clip(np.diff(offsets, prepend=offsets[:1]), 0, TIME_MAX),
            "tcp_flags": np.array(numbers["flags"] or [0] * self.k),  # UDP has none
        }
        return np.stack([found[name][: self.k] for name in self.features]).astype(np.float32)

    def code(self):
        """The thermometers of all features but flags: scale [channels, codes] and offset [codes], so that
        code = clip(series * scale + offset, 0, 1)."""
        scales, offsets = [], []
        for channel, name in enumerate(self.features):
            if name == "tcp_flags":
                continue
            edges = TIME_EDGES if name == "inter_arrival_us" else LENGTH_EDGES
            low, high = np.array(edges[:-1], np.float32), np.array(edges[1:], np.float32)
            scale, offset = 1 / (high - low), -low / (high - low)
            for sign in (1, -1) if name == "signed_length" else (1,):
                row = np.zeros((len(self.features), len(scale)), np.float32)
                row[channel] = sign * scale
                scales.append(row)
                offsets.append(offset)
        if not scales:
            return np.zeros((len(self.features), 0), np.float32), np.zeros(0, np.float32)
        return np.concatenate(scales, axis=1), np.concatenate(offsets)

    @property
    def flags_channel(self):
        """The channel of the TCP flags, or None."""
        return self.features.index("tcp_flags") if "tcp_flags" in self.features else None

    @property
    def code_len(self):
        """Numbers in an element's code."""
        return len(self.code()[1]) + (FLAG_BITS if self.flags_channel is not None else 0)

    def extremes(self):
        """Series that no network sends, for the golden rows: [3, features, K]."""
        rows = {
            "signed_length": ([LENGTH_MAX] * self.k, [LENGTH_MAX * (-1) ** i for i in range(self.k)], [28] * self.k),
            "payload_length": ([LENGTH_MAX] * self.k, [LENGTH_MAX] * self.k, [0] * self.k),
            "inter_arrival_us": ([TIME_MAX] * self.k, [0] * self.k, [1] * self.k),
            "tcp_flags": ([255] * self.k, [2**i % 255 for i in range(self.k)], [0] * self.k),
        }
        return np.array([[rows[name][i] for name in self.features] for i in range(3)], np.float32)


    def random(self, rng, count):
        """Any numbers that a series can hold, [count, features, K]."""
        ranges = {
            "signed_length": (-LENGTH_MAX, LENGTH_MAX + 1),
            "payload_length": (0, LENGTH_MAX + 1),
            "inter_arrival_us": (0, TIME_MAX + 1),
            "tcp_flags": (0, 256),
        }
        channels = [rng.integers(*ranges[name], (count, self.k)) for name in self.features]
        return np.stack(channels, axis=1).astype(np.float32)


def of_bundle(folder):
    """The Input of a bundle."""
    manifest = tomllib.loads((folder / "model.toml").read_text())
    return Input(manifest.get("unit", "packet"), manifest["k"], tuple(manifest["features"]))


def add_options(parser):
    """--unit, --k and --features."""
    parser.add_argument("--unit", choices=UNITS, default="packet", help="which packets are counted and collected")
    parser.add_argument("--k", type=int, default=10, help=f"elements of a series, 1 to {K_MAX}")
    parser.add_argument(
        "--features", default="signed_length", help=f"in the order of the channels, with commas: {', '.join(FEATURES)}"
    )


def of_options(parser, args):
    """The Input that the options ask for; ends the program where it cannot be."""
    try:
        return Input(args.unit, args.k, tuple(args.features.split(",")))
    except ValueError as error:
        parser.error(str(error))
