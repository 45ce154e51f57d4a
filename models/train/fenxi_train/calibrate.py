"""Probabilities that mean what they say, when an answer is sure, and what a flow is called in the end.

All of it is measured on held-out flows: `scores` come from networks that have not seen a flow's fold.
"""

import numpy as np

from . import baselines, ports
from .network import softmax

TEMPERATURES = np.exp(np.linspace(np.log(0.5), np.log(6), 80))
CONFIDENCE_MAX = 0.95
SURE_FLOWS_MIN = 20  # fewer sure flows say nothing of a precision
FIRST_FLOWS = (1, 5, 20)  # of a host


def log_loss(probabilities, classes, weights=None):
    """The mean of -log of the true class's probability."""
    return float(np.average(log_losses(probabilities, classes), weights=weights))


def log_losses(probabilities, classes):
    return -np.log(probabilities[np.arange(len(classes)), classes] + 1e-12)


def temperature(scores, classes, weights=None):
    """The divisor of the scores under which the true classes are likeliest."""
    if not len(scores):
        return 1.0
    loss = [log_loss(softmax(scores / t), classes, weights) for t in TEMPERATURES]
    return float(round(TEMPERATURES[int(np.argmin(loss))], 4))


def by_count(depths, temperatures, k):
    """The temperature for each number of elements, 0 to k: the greatest reached depth's."""
    made = np.full(k + 1, temperatures[0])
    for depth, t in zip(depths, temperatures):
        made[depth:] = t
    return made


def confidences(flows, probabilities, depths, target, least, named_before):
    """For each depth the least level from `least` up at which the share right of the flows that are named reaches
    the target, among flows whose earlier answers were not sure and that nothing named before;
    CONFIDENCE_MAX where none does, or too few are."""
    open_, levels = ~flows.midstream & ~named_before, []
    for depth in depths:
        asked = open_ & (flows.counts >= depth)
        top, guess = probabilities[depth].max(axis=1), probabilities[depth].argmax(axis=1)
        named, right = asked & (guess != outlier(flows)), guess == flows.classes
        level = CONFIDENCE_MAX
        for candidate in np.arange(least, CONFIDENCE_MAX, 0.01):
            sure = named & (top >= candidate)
            if sure.sum() < SURE_FLOWS_MIN:
                break
            if right[sure].mean() >= target:
                level = candidate
                break
        levels.append(float(round(level, 2)))
        open_ &= ~(named & (top >= level))
    return levels


def outlier(flows):
    """The class of everything else, which is never sure; -1 for none."""
    return -1 if flows.outlier is None else flows.outlier


def walk(flows, probabilities, depths, confidences, min_confidence, port_guess, contradiction=None):
    """What a flow is called and when, as fenxi has it: class and kind for each flow.  `probabilities` are by depth;
    with levels of contradiction ports come first."""
    answer, kind = np.full(len(flows.classes), -1), np.full(len(flows.classes), "nothing", object)
    if contradiction is not None:
        by_port = port_guess >= 0
        answer[by_port], kind[by_port] = port_guess[by_port], "port"
        for depth, level in zip(depths, contradiction):
            top, guess = probabilities[depth].max(axis=1), probabilities[depth].argmax(axis=1)
            against = (kind == "port") & (flows.counts >= depth) & (guess != port_guess) & (top >= level) & (level < ports.NEVER)
            answer[against], kind[against] = np.where(guess == outlier(flows), -1, guess)[against], "contradiction"
    last = np.full(len(flows.classes), outlier(flows))
    last_top = np.zeros(len(flows.classes))
    for depth, level in zip(depths, confidences):
        found, open_ = probabilities[depth], kind == "nothing"
        top, guess = found.max(axis=1), found.argmax(axis=1)
        asked = open_ & (flows.counts >= depth)
        last, last_top = np.where(asked, guess, last), np.where(asked, top, last_top)
        # An answer below min_confidence is unknown, which is never sure.
        sure = asked & (top >= max(level, min_confidence)) & (guess != outlier(flows))
        answer[sure], kind[sure] = guess[sure], f"depth {depth}"
    weak = (kind == "nothing") & (last != outlier(flows)) & (last_top >= min_confidence)
    # The last answer stands against a port, unless it is unknown; with a single depth even that stands. A port says nothing of a flow
    # without an element.
    whole = flows.counts >= depths[-1]
    by_port = (kind == "nothing") & (port_guess >= 0) & (flows.counts > 0) & ~(whole & (weak | (len(depths) == 1)))
    answer[weak], kind[weak] = last[weak], "not sure"
    answer[by_port], kind[by_port] = port_guess[by_port], "port"
    return answer, kind


def coverage(flows, answer, kind):
    """Rows of (kind, share of flows, share right of those named), and the sum over everything that is named."""
    named, right = answer >= 0, answer == flows.classes
    rows = []
    for name in sorted(set(kind), key=lambda n: (n == "nothing", n == "not sure", n in ("port", "contradiction"), len(n), n)):
        own = kind == name
        some = own & named
        rows.append((name, float(own.mean()), float(some.mean()), float(right[some].mean()) if some.any() else 0.0))
    return rows, float(named.mean()), float(right[named].mean()) if named.any() else 0.0



def hosts(flows, probabilities, depths, first):
    """Share of hosts whose class is right by the sum of log p over their first flows, each at the greatest depth
    that it reached; and the number of hosts.  The outlier class does not count."""
    best = np.zeros_like(next(iter(probabilities.values())))
    for depth in depths:
        reached = flows.counts >= depth
        best[reached] = probabilities[depth][reached]
    usable = (flows.counts >= depths[0]) & ~flows.midstream
    keys = np.array([f"{g}\0{h}" for g, h in zip(flows.groups, flows.hosts)])
    classes = [c for c in range(len(flows.names)) if c != flows.outlier]
    right = []
    for key in sorted(set(keys[usable])):
        own = np.where((keys == key) & usable)[0][:first]
        total = np.log(best[own][:, classes] + 1e-4).sum(axis=0)
        right.append(classes[int(total.argmax())] == baselines.commonest(flows.classes[own]))
    return float(np.mean(right)) if right else 0.0, len(right)
