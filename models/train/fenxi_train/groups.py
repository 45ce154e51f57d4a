"""What must stay on one side of a split, and the folds made of it.

Flows of one capture resemble each other, so a split by random flows mostly asks "have I seen this capture?".
Rows are split by capture, host, day or source; captures that show the same conversation stay together.
"""

import collections
import datetime

import numpy as np

from .errors import USAGE, Refusal
from .table import integer

SPLITS = ("capture", "host", "day", "source")


def of(table, split):
    """Name of the group that each row belongs to."""
    rows = table.rows
    if split == "capture":
        if "capture" not in table.columns:
            raise Refusal("no column capture to split by: give --split-by host or day, or add the column", USAGE)
        return np.array(connected(rows))
    if split == "source":
        return np.array([r["source"] for r in rows])
    if split == "host":
        column = "host_address" if "host_address" in table.columns else "src"
        if column not in table.columns:
            raise Refusal("no column src to split by host", USAGE)
        return np.array([r[column] for r in rows])
    column = next((c for c in ("first_us", "first_ts") if c in table.columns), None)
    if column is None:
        raise Refusal("no column first_us to split by day", USAGE)
    return np.array([day(table, i, column) for i in range(len(rows))])


def day(table, i, column):
    try:
        return datetime.datetime.fromtimestamp(integer(table.rows[i][column]) / 1e6, datetime.timezone.utc).date().isoformat()
    except (ValueError, OverflowError, OSError):
        raise table.refuse(i, f"{column}: '{table.rows[i][column][:30]}' is not a time in microseconds") from None


def connected(rows):
    """Captures that share a group or a conversation (community id) get one name."""
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for row in rows:
        for column in ("group", "community_id"):
            if row.get(column):
                parent[root((column, row[column]))] = root(("capture", row["capture"]))
    return [root(("capture", row["capture"]))[1] for row in rows]


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
