"""What hosts are called by the labels of their first flows, as fenxi adds them up; docs/model.md defines the sum.

A label carries the probability of its own class only.  The rest is shared as held-out flows with that label that were wrong are
distributed: the confusions, which go into the bundle.
"""

import collections

import numpy as np

from . import baselines, calibrate

FLOWS, MIN_FLOWS, CONFIDENCE = 20, 1, 0.9
FLOOR = 1e-4  # added to each probability
PAIR_FLOWS_MIN, PAIR_SHARE_MIN = 2, 0.02  # fewer flows say nothing of a confusion


def labels(flows, probabilities, confidences, min_confidence, ports, port_guess):
    """The class that fenxi gives each flow in the end, -1 for none, and its probability."""
    count = len(flows.classes)
    found, open_, sure = np.zeros_like(next(iter(probabilities.values()))), np.ones(count, bool), np.zeros(count, bool)
    for depth, level in zip(flows.input.depths, confidences):
        asked = open_ & (flows.counts >= depth)
        found[asked] = probabilities[depth][asked]
        now = asked & (found.max(axis=1) >= level) & (found.argmax(axis=1) != calibrate.outlier(flows))
        sure, open_ = sure | now, open_ & ~now
    top, guess = found.max(axis=1), found.argmax(axis=1)
    given = np.where((guess != calibrate.outlier(flows)) & (sure | (top >= min_confidence)), guess, -1)
    precision = {(6 if p["protocol"] == "tcp" else 17, p["port"]): p["precision"] for p in ports}
    by_port = np.array([precision.get(tuple(map(int, p)), 0.0) for p in flows.ports])
    # The last answer stands against a port, unless it is unknown.
    whole = flows.counts >= flows.input.depths[-1]
    named_by_port = ~sure & (port_guess >= 0) & (by_port > 0) & (~whole | (given < 0))
    usable = (flows.counts >= flows.input.depths[0]) & ~flows.midstream
    given = np.where(named_by_port, port_guess, given)
    return np.where(usable, given, -1), np.where(named_by_port, by_port, top)


def confusions(truth, given):
    """For each class that flows get, the classes of those that get it wrongly, with their shares."""
    wrong = collections.defaultdict(collections.Counter)
    for true, named in zip(truth, given):
        if named >= 0 and true != named:
            wrong[int(named)][int(true)] += 1
    found = {}
    for named, by_class in sorted(wrong.items()):
        count = by_class.total()
        # One more, for what has not been seen.
        shares = {c: round(n / (count + 1), 3) for c, n in by_class.most_common() if n >= PAIR_FLOWS_MIN and n / (count + 1) >= PAIR_SHARE_MIN}
        if shares:
            found[named] = shares
    return found


def log_row(named, p, classes, shares):
    """The logarithms that a label adds for each class."""
    others = len(classes) - 1 - len(shares)
    row = np.full(len(classes), (1 - p) * max(1 - sum(shares.values()), 0.0) / max(others, 1))
    for other, share in shares.items():
        row[classes.index(other)] = (1 - p) * share
    row[classes.index(named)] = p
    return np.log(row + FLOOR)


def held_out(flows, folds, given, p, with_confusions):
    """The logarithms of each flow with a label; confusions come from the other folds."""
    classes = [c for c in range(len(flows.names)) if c != calibrate.outlier(flows)]
    rows = np.zeros((len(given), len(classes)))
    for fold in sorted(set(folds)):
        own = folds == fold
        known = confusions(flows.classes[~own], given[~own]) if with_confusions else {}
        for i in np.where(own & (given >= 0))[0]:
            rows[i] = log_row(int(given[i]), p[i], classes, known.get(int(given[i]), {}))
    return classes, rows


def named(flows, classes, rows, given):
    """How many hosts there are, how many get a name, and how many of the names are right in the end."""
    keys = np.array([f"{g}\0{h}" for g, h in zip(flows.groups, flows.hosts)])
    usable = (flows.counts >= flows.input.depths[0]) & ~flows.midstream
    hosts, names, right = sorted(set(keys[usable])), 0, 0
    for key in hosts:
        own = np.where((keys == key) & usable)[0]
        truth, total, name = baselines.commonest(flows.classes[own]), np.zeros(len(classes)), None
        for seen, i in enumerate(own[given[own] >= 0][:FLOWS], 1):
            total += rows[i]
            p = np.exp(total - total.max())
            if seen >= MIN_FLOWS and 1 / p.sum() >= CONFIDENCE:
                name = classes[int(total.argmax())]
        names += name is not None
        right += name == truth
    return len(hosts), names, right


def measured(flows, folds, probabilities, confidences, min_confidence, ports, port_guess):
    """The table for a bundle, and rows of (what is added up, hosts, named, right)."""
    given, p = labels(flows, probabilities, confidences, min_confidence, ports, port_guess)
    rows = []
    for what, with_confusions in (("the rest shared equally", False), ("the rest shared by confusions", True)):
        classes, logs = held_out(flows, folds, given, p, with_confusions)
        rows.append((what, *named(flows, classes, logs, given)))
    found = confusions(flows.classes, given)
    pairs = [(flows.names[n], flows.names[c], share) for n, shares in found.items() for c, share in shares.items()]
    return {"flows": FLOWS, "min_flows": MIN_FLOWS, "confidence": CONFIDENCE, "confusions": pairs}, rows
