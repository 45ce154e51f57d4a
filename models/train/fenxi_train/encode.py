"""How numbers become the network's first layer: categories with learned vectors, beside fixed ranges.

A length is a category of its own where training has seen it often enough, because protocols and devices send
messages of exact lengths; other lengths share a category with their neighbours.  Beside the learned vector of its category
stands the length's value, as how much of each of a few ranges it fills.  Times have ranges that grow threefold;
a logarithm is avoided, because its vector and scalar forms may round differently.  TCP flags are eight bits.  A
server's port is a category as well.  What the memory of servers knows are whole numbers in ranges.

A network for small caches has fewer lengths: all but the commonest count as the middle of a fine
range.
"""

import dataclasses

import numpy as np

from .inputs import LOCAL, LOCAL_MAX, Input

LENGTH_TOP = 1600  # longer packets are merged ones; they count as this long
LENGTH_EDGES = (0, 64, 128, 256, 512, 1024, LENGTH_TOP)
TIME_EDGES = (0, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e8)  # microseconds
COARSE_EDGES = (1, 20, 40, 64, 100, 160, 256, 400, 640, 1024, 1300, LENGTH_TOP)
FINE_EDGES = (1, *range(32, 128, 8), *range(128, 256, 16), *range(256, 512, 32),
              *range(512, LENGTH_TOP, 64), LENGTH_TOP + 1)
ABSENT = 0  # the category of an element that the flow does not have; its vector is zero
LOCAL_EDGES = tuple(range(0, LOCAL_MAX + 1, 4))
FLAG_BITS = 8
PORTS = 65_536
UNSEEN_PORTS = ((0, 0), (1, 1023), (1024, 32_767), (32_768, 65_535))  # the categories 0 to 3
PORT_CATEGORIES_MAX = 255


def thermometer(edges, values):
    """How much of each range the values fill, 0 to 1."""
    low, high = np.array(edges[:-1], np.float32), np.array(edges[1:], np.float32)
    return np.clip(values[..., None] * (1 / (high - low)) + -low / (high - low), 0, 1).astype(np.float32)


@dataclasses.dataclass
class Encoder:
    """Categories found in training data; everything else is fixed."""

    input: Input
    length_categories: dict[str, np.ndarray]  # by feature: category of each length from -LENGTH_TOP to LENGTH_TOP
    port_categories: np.ndarray  # [PORTS]
    port_count: int
    counts_as: np.ndarray  # the length that each one from -LENGTH_TOP to LENGTH_TOP is taken for

    @property
    def category_count(self):
        return max((int(c.max()) + 1 for c in self.length_categories.values()), default=1)

    def signed(self, series, feature):
        """Lengths with their direction, as the table has them: int [flows, k]."""
        values = series[:, self.input.channel(feature)]
        if feature == "payload_length" and "signed_length" in self.input.features:
            values = values * np.sign(series[:, self.input.channel("signed_length")])
        values = np.clip(values, -LENGTH_TOP, LENGTH_TOP).astype(np.int64)
        return self.counts_as[values + LENGTH_TOP]

    def categories(self, series):
        """Categories, int [flows, k, length features]."""
        found = [table[self.signed(series, name) + LENGTH_TOP] for name, table in self.length_categories.items()]
        return np.stack(found, axis=2) if found else np.zeros((len(series), self.input.k, 0), int)

    def values(self, series):
        """The fixed codes of all features, float32 [flows, k, codes]."""
        codes = []
        for channel, name in enumerate(self.input.features):
            if name == "inter_arrival_us":
                codes.append(thermometer(TIME_EDGES, series[:, channel]))
            elif name == "tcp_flags":
                bits = series[:, channel].astype(np.int64)[..., None] >> np.arange(FLAG_BITS) & 1
                codes.append(bits.astype(np.float32))
            else:
                codes.append(self.length_codes(name)[self.signed(series, name) + LENGTH_TOP])
        return np.concatenate(codes, axis=2)

    def length_codes(self, name):
        """The fixed code of each length in the table."""
        values = np.arange(-LENGTH_TOP, LENGTH_TOP + 1, dtype=np.float32)
        return np.concatenate([thermometer(LENGTH_EDGES, values), thermometer(LENGTH_EDGES, -values)], axis=1)

    def ports(self, context):
        """The category of each flow's port."""
        if "server_port" not in self.input.context:
            return np.zeros(len(context), int)
        return self.port_categories[context[:, self.input.context.index("server_port")].astype(int)]

    def flat_context(self, context):
        """The context's other numbers, each from 0 to 1."""
        columns = [np.zeros((len(context), 0), np.float32)]
        if "protocol" in self.input.context:
            protocol = context[:, [self.input.context.index("protocol")]]
            columns.append(np.clip((protocol - 6) / 11, 0, 1))
        columns += [thermometer(LOCAL_EDGES, np.trunc(context[:, at])) for _, at in self.local]
        return np.concatenate(columns, axis=1).astype(np.float32)

    @property
    def local(self):
        """What of the context the memory of servers knows, with its columns."""
        return [(name, at) for at, name in enumerate(self.input.context) if name in LOCAL]

    @property
    def flat_context_len(self):
        return int("protocol" in self.input.context) + len(self.local) * (len(LOCAL_EDGES) - 1)


def learn(input, series, context, groups, min_groups=2, min_port_flows=2, own_lengths=None):
    """The categories of these flows: lengths that stand in enough groups, ports that stand in
    enough flows.  With `own_lengths` only that number of lengths stay apart from neighbours."""
    groups = np.unique(groups, return_inverse=True)[1]
    every = np.arange(-LENGTH_TOP, LENGTH_TOP + 1)
    encoder = Encoder(input, {}, np.zeros(PORTS, int), len(UNSEEN_PORTS), every)
    features = [name for name in ("signed_length", "payload_length") if name in input.features]
    if own_lengths is not None and features:
        values = np.concatenate([encoder.signed(series, name) for name in features], axis=1)
        encoder.counts_as = fewer_lengths(values, groups, own_lengths)
    for name in features:
        values = encoder.signed(series, name)
        encoder.length_categories[name] = length_categories(values, groups, min_groups)
    for category, (low, high) in enumerate(UNSEEN_PORTS):
        encoder.port_categories[low : high + 1] = category
    if "server_port" in input.context:
        ports = context[:, input.context.index("server_port")].astype(int)
        found, counts = np.unique(ports[ports > 0], return_counts=True)
        order = sorted(range(len(found)), key=lambda i: (-counts[i], found[i]))
        kept = [found[i] for i in order if counts[i] >= min_port_flows][: PORT_CATEGORIES_MAX - len(UNSEEN_PORTS)]
        for i, port in enumerate(sorted(kept)):
            encoder.port_categories[port] = len(UNSEEN_PORTS) + i
        encoder.port_count = len(UNSEEN_PORTS) + len(kept)
    return encoder


def length_categories(values, groups, min_groups):
    """A category for each length that flows of `min_groups` groups have, one for each coarse range of the others, 0
    for absent."""
    coarse = np.searchsorted(COARSE_EDGES, np.arange(LENGTH_TOP + 1), side="right")
    ranges = int(coarse.max())
    lengths = np.arange(-LENGTH_TOP, LENGTH_TOP + 1)
    table = coarse[np.abs(lengths)] + np.where(lengths < 0, ranges, 0)
    table[LENGTH_TOP] = ABSENT
    seen = np.where(group_counts(values, groups) >= min_groups)[0]
    table[seen] = 2 * ranges + 1 + np.arange(len(seen))
    return table


def group_counts(values, groups):
    """How many groups have each length from -LENGTH_TOP to LENGTH_TOP, absent elements aside."""
    pairs = np.stack([values.ravel() + LENGTH_TOP, np.repeat(groups, values.shape[1])])
    found = np.bincount(np.unique(pairs, axis=1)[0], minlength=2 * LENGTH_TOP + 1)
    found[LENGTH_TOP] = 0
    return found


def fewer_lengths(values, groups, own):
    """For each length itself if it is one of the `own` commonest, else the middle of its range.
    Common is what many groups have, then what many elements have."""
    lengths, edges = np.arange(-LENGTH_TOP, LENGTH_TOP + 1), np.array(FINE_EDGES)
    place = np.maximum(np.searchsorted(edges, np.abs(lengths), side="right"), 1)
    made = np.sign(lengths) * ((edges[place - 1] + edges[place] - 1) // 2)
    elements = np.bincount(values.ravel() + LENGTH_TOP, minlength=len(lengths))
    common = np.lexsort((elements, group_counts(values, groups)))[::-1][:own]
    made[common] = lengths[common]
    return made


def coarse_only(categories):
    """For each category the coarse one of the same lengths: what an unseen length nearby would get."""
    coarse = np.searchsorted(COARSE_EDGES, np.arange(LENGTH_TOP + 1), side="right")
    ranges = int(coarse.max())
    lengths = np.arange(-LENGTH_TOP, LENGTH_TOP + 1)
    plain = coarse[np.abs(lengths)] + np.where(lengths < 0, ranges, 0)
    plain[LENGTH_TOP] = ABSENT
    made = np.arange(int(categories.max()) + 1)
    made[categories] = plain
    return made
