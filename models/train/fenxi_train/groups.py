"""What must stay on one side of a split, and the folds made of it.

Flows of one capture resemble each other, so a split by random flows mostly asks "have I seen this capture?".
Rows are split by capture, host, day, a label's day or source; captures in which the same conversation was recorded stay together.
Random flows are held out only on request, where a label was recorded once.
"""

import collections
import datetime
import itertools

import numpy as np

from .errors import USAGE, Refusal
from .table import integer

FLOW_PARTS = 20
SAME_START = datetime.timedelta(seconds=1)  # the clocks of two captures may differ by this


def of(table, split, labels=()):
    """Name of the group that each row belongs to; `labels` are the rows' labels, for a split by label-day."""
    rows = table.rows
    if split == "label-day":
        return label_days(table, labels)
    if split == "capture":
        if "capture" not in table.columns:
            raise Refusal("no column capture to split by: give --split-by host or day, or add the column", USAGE)
        return np.array(connected(table))
    if split == "source":
        return np.array([r["source"] for r in rows])
    if split == "flow":
        return np.random.default_rng(1).integers(0, FLOW_PARTS, len(rows)).astype(str)
    if split == "host":
        column = "host_address" if "host_address" in table.columns else "src"
        if column not in table.columns:
            raise Refusal("no column src to split by host", USAGE)
        return np.array([r[column] for r in rows])
    column = start_column(table)
    if column is None:
        raise Refusal("no column first_us to split by day", USAGE)
    return np.array([start(table, i, column).date().isoformat() for i in range(len(rows))])


def label_days(table, labels):
    """A label's flows of one day.  Of a label with one day only, its captures, so that it is not held out whole."""
    days, captures = of(table, "day"), of(table, "capture")
    days_of = collections.defaultdict(set)
    for label, day in zip(labels, days):
        days_of[label].add(day)
    return np.array([f"{n} {d if len(days_of[n]) > 1 else c}" for n, d, c in zip(labels, days, captures)])


def start_column(table):
    """The column that holds a flow's first time, or None."""
    return next((c for c in ("first_us", "first_ts") if c in table.columns), None)


def start(table, i, column):
    """The time of a flow's first packet."""
    try:
        return datetime.datetime.fromtimestamp(integer(table.rows[i][column]) / 1e6, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise table.refuse(i, f"{column}: '{table.rows[i][column][:30]}' is not a time in microseconds") from None


def connected(table):
    """Captures that share a group, or in which the same conversation was recorded, get one name.

    Devices use the same addresses and ports again (DHCP, mDNS, NTP), so a Community ID alone says nothing: start and
    lengths have to agree as well.
    """
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    alike, column = collections.defaultdict(list), start_column(table)
    for i, row in enumerate(table.rows):
        if row.get("group"):
            parent[root(("group", row["group"]))] = root(("capture", row["capture"]))
        if row.get("community_id") and column:
            lengths = row.get("data_lengths") or row.get("lengths")
            alike[row["community_id"], lengths].append((start(table, i, column), row["capture"]))
    for seen in alike.values():
        for (before, one), (after, other) in itertools.pairwise(sorted(seen)):
            if after - before <= SAME_START:
                parent[root(("capture", one))] = root(("capture", other))
    return [root(("capture", row["capture"]))[1] for row in table.rows]


def only_one(groups, classes):
    """The classes whose rows all belong to one group, each with that group."""
    found = collections.defaultdict(set)
    for group, c in zip(groups, classes):
        found[int(c)].add(str(group))
    return {c: next(iter(own)) for c, own in sorted(found.items()) if len(own) == 1}


def folds(groups, classes, count):
    """The fold of each row: groups, largest first, each to the fold that has fewest flows of its classes so far."""
    names = sorted(set(groups))
    if len(names) < 2:
        return None
    if len(names) <= count:
        return np.array([names.index(g) for g in groups])
    sizes = collections.defaultdict(collections.Counter)
    for group, c in zip(groups, classes):
        sizes[group][c] += 1
    total = collections.Counter(classes)
    filled = [collections.Counter() for _ in range(count)]
    place = {}
    for name in sorted(names, key=lambda n: (-sum(sizes[n].values()), n)):
        cost = [sum(n * filled[f][c] / total[c] for c, n in sizes[name].items()) + sum(filled[f].values()) / len(groups) for f in range(count)]
        place[name] = int(np.argmin(cost))
        filled[place[name]].update(sizes[name])
    return np.array([place[g] for g in groups])
