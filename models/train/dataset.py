"""The labelled flow table: which flows are used, their classes, and the folds.

A row of the table is one TCP or UDP flow.  Used are flows with at least K packets whose label
was found in their bytes (confidence "dpi").  The class is the protocol, the first part of the
label; protocols with fewer than MIN_FLOWS such flows become "other".

Flows of one capture resemble each other, so a split by random flows mostly asks "have I seen
this capture?".  The honest split keeps whole captures together, and with them the captures that
share a 5-tuple (they show the same conversation).
"""

import collections
import csv
import dataclasses
import gzip

import numpy as np
from sklearn.model_selection import GroupKFold, StratifiedKFold

K = 10
MIN_FLOWS = 20
FOLDS = 5
OTHER = "other"
LENGTH_MAX = 65_535  # a series holds no more; longer lengths saturate

# What an operator would call the traffic; the card lists it.
TAXONOMY = {
    "ETHEREUM": "crypto",
    "Gnutella": "p2p",
    "HTTP": "web",
    "QUIC": "web",
    "SD-RTN": "voip",
    "STUN": "voip",
    "TLS": "web",
    "Zabbix": "monitoring",
    OTHER: "other",
}


@dataclasses.dataclass(frozen=True)
class Flows:
    """The flows used, one array row each, in the order of the table."""

    series: np.ndarray  # float32 [flows, K], signed lengths in bytes
    classes: np.ndarray  # int, index into `names`
    names: list[str]  # sorted, "other" last
    captures: np.ndarray  # file names
    groups: np.ndarray  # captures that must stay in one fold share a name
    ports: list[tuple[int, int]]  # (IP protocol, lower port), for the port-table baseline


def load(table):
    """Read the table (CSV, gzip) and select the flows."""
    with gzip.open(table, "rt", newline="") as file:
        rows = [r for r in csv.DictReader(file) if int(r["packets"]) >= K and r["confidence"] == "dpi"]
    protocols = [r["label"].split(".")[0] for r in rows]
    count = collections.Counter(protocols)
    kept = sorted(p for p in count if count[p] >= MIN_FLOWS)
    names = [*kept, OTHER]
    series = [[int(v) for v in r["lengths"].split()[:K]] for r in rows]
    return Flows(
        series=np.clip(np.array(series), -LENGTH_MAX, LENGTH_MAX).astype(np.float32),
        classes=np.array([names.index(p if p in kept else OTHER) for p in protocols]),
        names=names,
        captures=np.array([r["capture"] for r in rows]),
        groups=capture_groups(rows),
        ports=[(int(r["proto"]), min(int(r["sport"]), int(r["dport"]))) for r in rows],
    )


def capture_groups(rows):
    """Name of the connected set of captures that each row belongs to.

    Two captures are connected when a 5-tuple (its Community ID) occurs in both.
    """
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for row in rows:
        parent[root(row["capture"])] = root(row["community_id"])
    return np.array([root(row["capture"]) for row in rows])


def folds(flows, split):
    """Pairs (training rows, test rows); `split` is "captures" or "flows"."""
    if split == "captures":
        return list(GroupKFold(FOLDS).split(flows.series, flows.classes, flows.groups))
    shuffled = StratifiedKFold(FOLDS, shuffle=True, random_state=1)
    return list(shuffled.split(flows.series, flows.classes))
