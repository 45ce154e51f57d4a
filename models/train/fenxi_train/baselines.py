"""What a model has to beat: tables and plain classifiers on the same numbers."""

import collections

import numpy as np


def commonest(values):
    return collections.Counter(values).most_common(1)[0][0]


def constant(flows, train, test, depth):
    return np.full(len(test), commonest(flows.classes[train]))


def port_table(flows, train, test, depth):
    """The commonest class of (protocol, destination port of the first packet); new ports get the outlier class or the
    commonest of all."""
    votes = collections.defaultdict(list)
    for i in train:
        votes[tuple(flows.ports[i])].append(flows.classes[i])
    table = {port: commonest(found) for port, found in votes.items()}
    spare = flows.outlier if flows.outlier is not None else commonest(flows.classes[train])
    return np.array([table.get(tuple(flows.ports[i]), spare) for i in test])


def prefix_table(flows, train, test, depth):
    """The commonest class of the longest series seen in training."""
    votes = collections.defaultdict(list)
    for i in train:
        for n in range(depth + 1):
            votes[flows.series[i, :, :n].tobytes()].append(flows.classes[i])
    table = {prefix: commonest(found) for prefix, found in votes.items()}
    guess = []
    for i in test:
        prefixes = (flows.series[i, :, :n].tobytes() for n in range(depth, -1, -1))
        guess.append(next(table[p] for p in prefixes if p in table))
    return np.array(guess)


def numbers(flows, depth):
    """Series and context as one row; times as their logarithm."""
    rows = flows.series[:, :, :depth].copy()
    if "inter_arrival_us" in flows.input.features:
        channel = flows.input.channel("inter_arrival_us")
        rows[:, channel] = np.log1p(rows[:, channel])
    return np.concatenate([rows.reshape(len(rows), -1), flows.context], axis=1)


def nearest(flows, train, test, depth):
    """The class of the nearest flow: lengths and ports as their logarithm with the sign."""
    from sklearn.neighbors import KNeighborsClassifier

    rows = numbers(flows, depth)
    rows = np.sign(rows) * np.log1p(np.abs(rows))
    return KNeighborsClassifier(1, algorithm="brute").fit(rows[train], flows.classes[train]).predict(rows[test])


def forest(flows, train, test, depth):
    from sklearn.ensemble import RandomForestClassifier

    rows = numbers(flows, depth)
    return RandomForestClassifier(200, random_state=1).fit(rows[train], flows.classes[train]).predict(rows[test])


ALL = {
    "constant": constant,
    "port table": port_table,
    "prefix table": prefix_table,
    "1-NN": nearest,
    "forest": forest,
}


def folded(flows, folds, method, depth):
    """The guess for each flow with `depth` elements, by a model that has not seen its fold; others get -1."""
    guess = np.full(len(flows.classes), -1)
    long = flows.counts >= depth
    for fold in sorted(set(folds)):
        # Ports are known of flows of any length, so their table learns from all of them.
        usable = folds != fold if method is port_table else long & (folds != fold)
        train, test = np.where(usable)[0], np.where(long & (folds == fold))[0]
        if len(train) and len(test):
            guess[test] = method(flows, train, test, depth)
    return guess
