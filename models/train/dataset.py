"""The labelled flow table: which flows are used, their classes, and the folds.

A row of the table is one TCP or UDP flow.  Used are flows that have as many elements as the model reads
(inputs.py) and whose label was found in their bytes (confidence "dpi").  The class is the protocol, the first part of the
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

import inputs

INPUT = inputs.Input("packet", 10, ("signed_length",))  # of app-id-k10
MIN_FLOWS = 20
FOLDS = 5
OTHER = "other"

# What an operator would call the traffic; the card lists it.  Other labels take nDPI's category.
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

    input: inputs.Input
    series: np.ndarray  # float32 [flows, features, K]
    classes: np.ndarray  # int, index into `names`
    names: list[str]  # sorted, "other" last
    taxonomy: dict[str, str]  # by name
    captures: np.ndarray  # file names
    groups: np.ndarray  # captures that must stay in one fold share a name
    ports: list[tuple[int, int]]  # (IP protocol, lower port), for the port-table baseline


def load(table, input=INPUT, data_table=None):
    """Read the table (CSV, gzip) and select the flows; `data_table` has the columns of payload (train_data.csv.gz)."""
    rows = read(table)
    if data_table:
        more = {(r["capture"], r["flow"]): r for r in read(data_table)}
        rows = [{**r, **more.get((r["capture"], r["flow"]), {})} for r in rows]
    rows = [r for r in rows if r["confidence"] == "dpi"]
    found = [(r, s) for r in rows if (s := input.read(r)) is not None]
    if not found:
        raise SystemExit(f"{table}: no flow with {input.k} elements of unit {input.unit} and a label that is certain")
    rows = [r for r, _ in found]
    protocols = [r["label"].split(".")[0] for r in rows]
    count = collections.Counter(protocols)
    kept = sorted(p for p in count if count[p] >= MIN_FLOWS)
    names = [*kept, OTHER]
    return Flows(
        input=input,
        series=np.stack([s for _, s in found]),
        classes=np.array([names.index(p if p in kept else OTHER) for p in protocols]),
        names=names,
        taxonomy={name: taxonomy(name, protocols, rows) for name in names},
        captures=np.array([r["capture"] for r in rows]),
        groups=capture_groups(rows),
        ports=[(int(r["proto"]), min(int(r["sport"]), int(r["dport"]))) for r in rows],
    )


def read(table):
    with gzip.open(table, "rt", newline="") as file:
        return list(csv.DictReader(file))


def taxonomy(name, protocols, rows):
    """The label's group: from TAXONOMY, else the category that most of its flows have."""
    if name in TAXONOMY:
        return TAXONOMY[name]
    categories = collections.Counter(r["category"] for p, r in zip(protocols, rows) if p == name)
    return categories.most_common(1)[0][0].lower() or OTHER


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
