"""Ports that name a flow with its first packet, and answers that contradict them.

A table of ports abstains: it has a port only where groups of flows agree on a class.  A group weighs the root of its flows, so that
a large one does not speak for all, and a registration of the port is a group more.  The table of a bundle is made of all flows; what is measured is the same rule applied to the other folds.
"""

import collections
import dataclasses

import numpy as np

from . import registered

FLOWS_MIN, GROUPS_MIN = 2, 2
REGISTERED_FLOWS = 9  # what a registration weighs
CONTRADICTED_MAX = 0.003  # share of right port labels that answers may contradict
NEVER = 1.0


def table(flows, threshold):
    """(protocol, port) -> class, precision and flows, of the ports whose precision reaches the threshold."""
    own = collections.defaultdict(list)
    for i in np.where(~flows.midstream)[0]:
        own[tuple(map(int, flows.ports[i]))].append(i)
    found = {}
    for port, rows in sorted(own.items()):
        parts = by_group(flows, rows)
        shares = [np.bincount(flows.classes[of], minlength=len(flows.names)) / len(of) for of in parts]
        sizes = [len(of) for of in parts]
        name = registered.PORTS.get(port)
        if name in flows.names:
            shares.append(np.eye(len(flows.names))[flows.names.index(name)])
            sizes.append(REGISTERED_FLOWS)
        mean = np.average(shares, axis=0, weights=np.sqrt(sizes))
        label, agreeing = int(mean.argmax()), sum(s.argmax() == mean.argmax() for s in shares)
        if port[0] in (6, 17) and label != flows.outlier and len(rows) >= FLOWS_MIN and agreeing >= GROUPS_MIN and mean[label] >= threshold:
            found[port] = label, float(mean[label]), len(rows)
    return found


def by_group(flows, rows):
    """These rows, parted by their group."""
    rows = np.array(rows)
    return [rows[flows.groups[rows] == g] for g in np.unique(flows.groups[rows])]


def guesses(flows, found):
    """The class of each flow by a table of ports; -1 for none, and where the beginning was not seen."""
    guess = np.array([found.get(tuple(map(int, port)), (-1,))[0] for port in flows.ports])
    return np.where(flows.midstream, -1, guess)


def held_out(flows, folds, threshold):
    """The class of each flow by the table of the other folds."""
    guess = np.full(len(flows.classes), -1)
    for fold in set(folds):
        test = folds == fold
        guess[test] = guesses(flows.take(test), table(flows.take(~test), threshold))
    return guess


def rows(flows, found):
    """A table as a bundle and its card list it."""
    return [{"protocol": "tcp" if protocol == 6 else "udp", "port": port, "label": flows.names[label], "precision": round(precision, 4), "flows": count}
            for (protocol, port), (label, precision, count) in found.items()]


def hidden(flows, guess):
    """These flows as a model is asked about them where ports come first: without the port that named them."""
    if "server_port" not in flows.input.context:
        return flows
    context = flows.context.copy()
    context[guess >= 0, flows.input.context.index("server_port")] = 0
    return dataclasses.replace(flows, context=context)


def contradictions(flows, probabilities, guess, least):
    """For each depth the least level, from `least` up, at which an answer of another class contradicts the port, so that at most
    a share CONTRADICTED_MAX of the right port labels is contradicted, spread over the depths.  NEVER where no answer speaks against a wrong port."""
    right, open_, levels, spent = guess == flows.classes, guess >= 0, [], 0
    budget = CONTRADICTED_MAX * right.sum() / len(flows.input.depths)
    for place, depth in enumerate(flows.input.depths, 1):
        top, answer = probabilities[depth].max(axis=1), probabilities[depth].argmax(axis=1)
        against = open_ & (flows.counts >= depth) & (answer != guess)
        allowed = int(budget * place) - spent
        tops = np.sort(top[against & right])[::-1]
        level = least if len(tops) <= allowed else max(least, np.ceil(tops[allowed] * 1e4 + 1) / 1e4)
        contradicted = against & (top >= level)
        if level >= NEVER or not (contradicted & ~right).any():
            level, contradicted = NEVER, against & False
        levels.append(float(round(level, 4)))
        spent, open_ = spent + int((contradicted & right).sum()), open_ & ~contradicted
    return levels
