"""What the engine's integers (reference.py) change in a network's answers."""

import numpy as np

from . import calibrate, card, graph, ranges, reference
from .errors import Refusal

SURE = 0.85  # from here on no answer may change
TEXT = ("Accuracy / macro-F1 in fp32 and in the integers that the engine computes with, and how far"
        " both give the same answers")
HEAD = ("depth", "flows", "fp32", "integers", "same class", f"same class of those with p >= {SURE}",
        "same side of the confidence")


def of_model(model, found):
    """The integers of a model given as bytes; none if its graph has none."""
    try:
        return reference.compiled(reference.read(model), found)
    except Refusal:
        return None


def probabilities(made, series, context):
    """Probabilities from integers, float [rows, classes]."""
    classes, _, weights = reference.run(made, series, context)
    p = weights / weights.sum(axis=1, keepdims=True)
    # Of classes that round to one probability the likeliest counts.
    p[np.arange(len(p)), classes] += 1e-7
    return p


def row(truth, fp32, own, level, plain_score):
    """Of the flows at one depth, whose confidence is `level`: their number, both scores, and how
    far the answers are the same."""
    top, guess, own_guess = fp32.max(axis=1), fp32.argmax(axis=1), own.argmax(axis=1)
    same, sure = guess == own_guess, top >= SURE
    side = (top >= level) == (own.max(axis=1) >= level)
    scores = [card.pair(plain_score(truth, g, fp32.shape[1])) for g in (guess, own_guess)]
    return (len(truth), *scores, f"{same.mean():.2%}", f"{same[sure].sum()} of {sure.sum()}",
            f"{side.mean():.2%}")


class Comparison:
    """Each fold's network in integers, on flows that it has not seen."""

    def __init__(self, flows, foreign):
        self.flows, self.foreign, self.folds = flows, foreign, []

    def add(self, net, train, test):
        """One fold: its network, and the rows of its training and of its held-out flows."""
        self.folds.append((net, train, test))

    def integers(self, net, train, temperatures):
        """The ranges of one fold's network; none if such graphs have none."""
        input, taught = self.flows.input, self.flows.take(train)
        by_count = calibrate.by_count(input.depths, temperatures, input.k)
        model = graph.model(net.nets, by_count, "fold")
        if self.foreign:
            taught = taught.beside(self.foreign)
        return of_model(model, ranges.measured(model, *ranges.rows_of(taught)))

    def probabilities(self, temperatures):
        """Probabilities by depth; none if such graphs have no integers."""
        flows, input = self.flows, self.flows.input
        found = {d: np.zeros((len(flows.classes), len(flows.names))) for d in input.depths}
        for net, train, test in self.folds:
            made, context = self.integers(net, train, temperatures), flows.seen_context()[test]
            if made is None:
                return None
            for depth in input.depths:
                series = input.cut(flows.series[test], depth)
                found[depth][test] = probabilities(made, series, context)
        return found


def report(flows, fp32, own, confidences, walk, plain_score):
    """Rows by depth, and a line on the names that flows end with; `fp32` and `own` are
    probabilities by depth, and `walk` names flows by such."""
    seen, rows = ~flows.midstream, []
    for depth, level in zip(flows.input.depths, confidences):
        long = seen & (flows.counts >= depth)
        if long.any():
            given = flows.classes[long], fp32[depth][long], own[depth][long]
            rows.append((depth, *row(*given, level, plain_score)))
    names, own_names = (walk(p)[0][seen] for p in (fp32, own))
    changed = (names != own_names).sum()
    return rows, f"{changed} of {len(names):,} flows end with another name than in fp32."
