"""What a model says of labels that it has never seen."""

import dataclasses

import numpy as np

from . import metrics
from .network import softmax


def measured(flows, options, trained, temperatures, confidences, say, platforms=()):
    """By depth, rows of (label, flows, share named at p >= 0.8, share named at the confidence), each by a model that
    has never seen the label, nor the other labels of its platform."""
    found = {d: [] for d in flows.input.depths}
    options = dataclasses.replace(options, nets=1)
    for label, name in enumerate(flows.names):
        own = flows.classes == label
        if label == flows.outlier or not (own & (flows.counts >= flows.input.depths[0])).any():
            continue
        alike = next((p for p in platforms if name in p), (name,))
        rest = flows.take(np.where(~np.isin(flows.classes, [flows.names.index(n) for n in alike]))[0])
        made = trained(rest, options)
        test = flows.take(np.where(own)[0])
        for depth, t, level in zip(flows.input.depths, temperatures, confidences):
            long = (test.counts >= depth) & ~test.midstream
            if long.any():
                p = softmax(made.scores(flows.input.cut(test.series[long], depth), test.seen_context()[long]) / t)
                found[depth].append((name, int(long.sum()), *named(p, flows.outlier, level)))
        shares = ", ".join(f"{rows[-1][2]:.0%} at depth {d}" for d, rows in found.items() if rows and rows[-1][0] == name)
        say(f"without {' and '.join(alike)}: {name} {shares}")
    return found


def named(probabilities, outlier, level):
    """Shares of rows that get a name with p >= 0.8, and with p of at least the level."""
    some = probabilities.argmax(axis=1) != (-1 if outlier is None else outlier)
    top = probabilities.max(axis=1)
    return float((some & (top >= metrics.DECIDED)).mean()), float((some & (top >= level)).mean())


def shared_prefixes(flows, platforms=()):
    """By depth, the share of flows whose lengths and context another label (not of the same platform) has as well: no
    model that reads these can tell that they are new."""
    own = np.arange(len(flows.names))
    for i, labels in enumerate(platforms):
        own[[flows.names.index(n) for n in labels]] = len(flows.names) + i
    kind, context, found = own[flows.classes], flows.seen_context(), {}
    lengths = [c for c, f in enumerate(flows.input.features) if f != "inter_arrival_us"]
    for depth in flows.input.depths:
        long = np.where(flows.counts >= depth)[0]
        keys = {i: flows.series[i][lengths, :depth].tobytes() + context[i].tobytes() for i in long}
        kinds = {}
        for i in long:
            kinds.setdefault(keys[i], set()).add(kind[i])
        scored = [i for i in long if not flows.midstream[i]]
        found[depth] = float(np.mean([len(kinds[keys[i]]) > 1 for i in scored])) if scored else 0.0
    return found


def row(depth, rows, shared, decided):
    """The card's row of one depth."""
    count = sum(r[1] for r in rows)
    shares = [(sum(r[1] * r[i] for r in rows) / count, sum(r[i] for r in rows) / len(rows)) for i in (2, 3)]
    worst = max(rows, key=lambda r: (r[2], r[0]))
    return (depth, count, *(f"{v:.1%}" for both in shares for v in both), f"{worst[0]} {worst[2]:.0%} of {worst[1]}", f"{shared:.1%}", f"{decided:.1%}")


HEAD = ("depth", "flows", "named, p >= 0.8", "mean over labels", "named, confidence", "mean over labels", "worst, p >= 0.8",
        "same flow in another label", "known flows named, p >= 0.8")
