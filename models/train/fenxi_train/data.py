"""From tables to arrays: which flows count, their classes, and what must stay together."""

import collections
import dataclasses

import numpy as np

from . import groups, table
from .errors import Refusal
from .inputs import ELEMENTS, Input

LOST_MAX = 20  # labels told of that are no class
OUTLIERS = ("other", "unknown")  # a class of this name stands for everything that is no other class


@dataclasses.dataclass
class Flows:
    """The flows used, one array row each, in the order of the tables."""

    input: Input
    series: np.ndarray  # float32 [flows, features, k]
    context: np.ndarray  # float32 [flows, C], ports of mid-stream flows not hidden
    counts: np.ndarray  # elements that each flow has, k at most
    midstream: np.ndarray
    classes: np.ndarray  # index into `names`
    names: list[str]
    taxonomy: dict[str, str]
    groups: np.ndarray  # what must stay in one fold shares a name
    ports: np.ndarray  # [flows, 2]: protocol and destination port of the first packet
    labels: np.ndarray  # as in the table
    hosts: np.ndarray  # whose flow it is, for scores by host
    sources: np.ndarray  # the table or the source that each flow is of
    second_groups: np.ndarray  # groups of a second split

    def take(self, rows):
        picked = {
            f.name: getattr(self, f.name)[rows]
            for f in dataclasses.fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }
        return dataclasses.replace(self, **picked)

    def beside(self, others):
        """These flows and others of the same input and classes."""
        arrays = [f.name for f in dataclasses.fields(self) if isinstance(getattr(self, f.name), np.ndarray)]
        return dataclasses.replace(self, **{n: np.concatenate([getattr(self, n), getattr(others, n)]) for n in arrays})

    def seen_context(self):
        """The context as fenxi gives it: no port where the beginning of a TCP flow was not seen."""
        made = self.context.copy()
        if "server_port" in self.input.context:
            made[self.midstream, self.input.context.index("server_port")] = 0
        return made

    @property
    def outlier(self):
        """The class of everything else, or None."""
        return next((i for i, n in enumerate(self.names) if n in OUTLIERS), None)


def label_of(row, column):
    """A row's label; `protocol` is the first part of `label` where a table has no such column."""
    if column == "protocol" and not row.get("protocol"):
        return row.get("label", "").split(".")[0].strip()
    return row.get(column, "").strip()


def load(paths, input, column="label", joined=(), split="capture", classes=None, min_flows=20, min_sources=1, outlier="other", second_split=None,
         say=None):
    """The flows of these tables that have a certain label.  `classes` are the names to use, or None for all labels
    with enough flows (of at least the first depth) from enough sources; `say` is told which labels are no class."""
    read = table.read_all(paths, joined)
    where = ", ".join(map(str, paths))
    table.check_columns(read, paths, input)
    if column not in read.columns and not (column == "protocol" and "label" in read.columns):
        raise Refusal(f"{where}: line 1: no column {column}; label the flows first (fenxi-train label) or give --label-column")
    labels = [label_of(r, column) for r in read.rows]
    certain = [bool(n) and r.get("confidence", "").strip().lower() in table.CERTAIN for n, r in zip(labels, read.rows)]
    if not any(certain):
        raise Refusal(f"{where}: no flow has a label in {column}; label the flows first (fenxi-train label)")
    read = read.keep(certain)
    labels = np.array([n for n, c in zip(labels, certain) if c])
    series, counts = table.series(read, input)
    names = classes or frequent(labels, counts, read, input, min_flows, min_sources, where)
    names = [n for n in names if n not in OUTLIERS]
    if say:
        tell_lost(labels, counts, names, bool(classes), input, min_flows, min_sources, say)
    known = np.array([n in names for n in labels])
    # Made-up flows teach the outlier class, so it does not need flows of its own.
    if outlier and (input.has_lengths or not known.all()):
        names = [*names, outlier]
    elif not known.all():
        read, series, counts, labels = read.keep(known), series[known], counts[known], labels[known]
    index = {n: i for i, n in enumerate(names)}
    numbers = np.array([index.get(n, len(names) - 1) for n in labels])
    flows = Flows(
        input, series, table.context(read, input, np.zeros(len(series), bool)), counts, table.midstream(read), numbers,
        names, taxonomies(names, labels, read), groups.of(read, split, labels), np.array(table.ports(read)), labels,
        np.array([r.get("device") or r.get("src", "") for r in read.rows]), np.array([r["source"] for r in read.rows]),
        groups.of(read, second_split or split, labels),
    )
    return flows


def foreign(paths, flows, joined=()):
    """The flows of tables of other networks, whatever their labels, all of the outlier class; for training only."""
    read = table.read_all(paths, joined)
    table.check_columns(read, paths, flows.input)
    series, counts = table.series(read, flows.input)
    count, nowhere = len(series), np.zeros((len(series), 2), int)
    names = np.array([f"{r['source']}\0{r.get('capture', '')}" for r in read.rows])
    return Flows(
        flows.input, series, table.context(read, flows.input, np.zeros(count, bool)), counts, table.midstream(read),
        np.full(count, flows.outlier), flows.names, flows.taxonomy, names, nowhere, np.full(count, ""), names, names, names,
    )


def frequent(labels, counts, read, input, min_flows, min_sources, where):
    """Labels with enough flows; refuses a table that teaches nothing."""
    long = counts >= input.depths[0]
    if not long.any():
        raise Refusal(f"{where}: no flow has {input.depths[0]} elements of unit {input.unit}; give a smaller depth")
    flows = collections.Counter(labels[long])
    sources = collections.defaultdict(set)
    for name, row in zip(labels, read.rows):
        sources[name].add(row["source"])
    names = sorted(n for n in flows if flows[n] >= min_flows and len(sources[n]) >= min_sources and n not in OUTLIERS)
    if len(names) + bool(set(flows) - set(names)) < 2:
        raise Refusal(f"{where}: one class only ({', '.join(sorted(flows)[:3])}); a model needs flows of two or more labels")
    if not names:
        raise Refusal(
            f"{where}: no label has {min_flows} flows of {input.depths[0]} elements"
            f"{f' in {min_sources} sources' if min_sources > 1 else ''}; give more flows or a smaller --min-flows"
        )
    return names


def tell_lost(labels, counts, names, were_given, input, min_flows, min_sources, say):
    """Says which labels are no class (or which given classes have no flow to learn from) and why; those with most flows first."""
    flows = collections.Counter(labels.tolist())
    need = 1 if were_given else min_flows
    lost = names if were_given else [n for n in flows if n not in names and n not in OUTLIERS]
    lines = []
    for name in sorted(lost, key=lambda n: (-flows[n], n)):
        own, depth = np.sort(counts[labels == name])[::-1], input.depths[0]
        long = int((own >= depth).sum())
        if long >= need and were_given:
            continue
        short = f"{long} of its {len(own)} flows have {depth} {ELEMENTS[input.unit]}, and a class needs {need}"
        if long >= need:
            lines.append(f"{name}: in fewer than {min_sources} sources; give tables of more sources, or a smaller --min-sources")
        elif len(own) >= need and own[need - 1] > 0:
            lines.append(f"{name}: {short}; {own[need - 1]} as the first depth keeps it ({'--k' if len(input.depths) == 1 else '--depths'})")
        else:
            lines.append(f"{name}: {short}; give more of its flows" + ("" if were_given else ", or a smaller --min-flows"))
    for line in lines[:LOST_MAX]:
        say(f"not a class: {line}")
    if len(lines) > LOST_MAX:
        say(f"not a class: {len(lines) - LOST_MAX} more labels, with fewer flows")


def taxonomies(names, labels, read):
    """The group of each class: the category that most of its flows have."""
    found = {}
    categories = np.array([r.get("category", "") for r in read.rows])
    for name in names:
        own = collections.Counter(c for c in categories[labels == name] if c)
        found[name] = own.most_common(1)[0][0].lower() if own else "other"
    return found


def of_bundle(bundle, paths, column, joined=(), split="capture"):
    """The flows of a table for the input and the labels of a bundle."""
    names = bundle.labels
    flows = load(paths, bundle.input, column, joined, split, classes=names, outlier=bundle.outlier or "unknown")
    order = names if bundle.outlier else [*names, *(n for n in flows.names if n not in names)]
    place = {n: i for i, n in enumerate(order)}
    return dataclasses.replace(flows, classes=np.array([place[flows.names[c]] for c in flows.classes]), names=order)
