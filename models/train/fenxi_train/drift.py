"""Has the traffic changed?  One knob: the hours between two false alarms.

Shares watches numbers of flows.  After every CHECK flows it compares how they spread over bins with
a reference, by the population stability index (PSI).  If flows were independent, PSI over
(1/n + 1/m), for n and m flows, would follow chi-square with one degree less than bins.  Flows come
in bursts, so it is larger by a factor, which is measured on the parts of the reference.

Loss watches how wrong answers are, by Page-Hinkley: each mean loss of PART answers is a step, its
distance above the reference less a tolerance; steps are summed, and the sum never falls below 0.
Let t be the number for which the mean of exp(t * step) is 1: by chance the sum takes at least
exp(t * bound) steps on average to pass a bound (Lorden 1971), and RARER times as many on made-up
traffic, because a sum goes past the bound by part of a step.

Each detector's share of the knob, and the pace of the reference, give its bound.  After an alarm a
detector takes a new reference, so a lasting change is told once.  A reference is one stretch of
time: where day and night differ, their change is a change, too.
"""

import math

import numpy as np

CHECK, CHECKS = 200, 12  # flows of a check; checks of a reference
BINS, SHARE_MIN = 8, 0.05  # at most, and the smallest share of a bin
PART, PARTS = 25, 96  # answers of a step of the loss; steps of a reference
TOLERANCE = 0.5  # of a step's standard deviation
ERRORS = 1.0  # standard errors by which the reference's mean may be too low
RARER = 2.5  # alarms than the least number of steps says
TRUE_MIN = 1e-3  # probability of the true label, at least
HOUR_US = 3_600_000_000


class Shares:
    """PSI of several numbers of each flow; `hours` between false alarms of all of them."""

    def __init__(self, names, hours):
        self.names, self.hours = names, hours
        self.restart()

    def restart(self):
        self.rows, self.watched = [], None  # by name: column, edges, shares of the reference, bound

    def add(self, numbers, weight, now_us):
        """One flow; the alarms that it completes, as (name, PSI, bound)."""
        self.rows.append((*numbers, weight, now_us))
        if len(self.rows) < CHECK * (CHECKS if self.watched is None else 1):
            return []
        columns, self.rows = np.array(self.rows, float).T, []
        if self.watched is None:
            self.take_reference(columns)
            return []
        *numbers, weights, _ = columns
        apart, alarms = 1 / effective(weights) + 1 / self.flows, []
        for name, (i, edges, reference, bound) in self.watched.items():
            found = psi(shares(numbers[i], weights, edges), reference)
            if found > bound * apart:
                alarms.append((name, found, bound * apart))
        if alarms:
            self.restart()
        return alarms

    def take_reference(self, columns):
        from scipy.stats import chi2

        *numbers, weights, times_us = columns
        hours = max(times_us[-1] - times_us[0], 1) / HOUR_US
        chance = min(hours / CHECKS / self.hours / len(numbers), 0.5)  # of a check of one number
        self.flows, self.watched = effective(weights), {}
        for i, name in enumerate(self.names):
            edges = edges_of(numbers[i], weights)
            if not len(edges):
                continue
            whole = shares(numbers[i], weights, edges)
            parts = zip(np.split(numbers[i], CHECKS), np.split(weights, CHECKS))
            apart = [psi(shares(part, own, edges), whole) * effective(own) for part, own in parts]
            # A part is in the reference, too, which takes 1 / CHECKS of its distance.
            factor = np.mean(apart) / len(edges) / (1 - 1 / CHECKS)
            error = math.sqrt(2 / len(edges) / CHECKS)
            bound = max(factor * (1 + ERRORS * error), 1) * chi2.isf(chance, len(edges))
            self.watched[name] = i, edges, whole, float(bound)


def effective(weights):
    """How many flows of the same weight say as much."""
    return weights.sum() ** 2 / (weights**2).sum()


def edges_of(values, weights):
    """What begins the second and later bins, none of them small; empty if nearly all values are the
    same."""
    unique, place = np.unique(values, return_inverse=True)
    share = np.bincount(place, weights) / weights.sum()
    edges, held, left = [], 0.0, 1.0
    for value, own in zip(unique, share):
        if held >= 1 / BINS and left >= SHARE_MIN:
            edges.append(value)
            held = 0.0
        held, left = held + own, left - own
    return np.array(edges)


def shares(values, weights, edges):
    found = np.bincount(np.searchsorted(edges, values, side="right"), weights, len(edges) + 1)
    found = found + 0.5 * weights.mean()  # no bin is empty
    return found / found.sum()


def psi(shares, reference):
    return float(((shares - reference) * np.log(shares / reference)).sum())


class Loss:
    """Page-Hinkley on the loss of answers; `hours` between false alarms."""

    def __init__(self, hours):
        self.hours = hours
        self.restart()

    def restart(self):
        self.part, self.reference, self.bound, self.sum, self.began_us = [], [], None, 0.0, None

    def add(self, loss, weight, now_us):
        """One answer; the alarms that it completes, as (name, sum, bound)."""
        self.began_us = now_us if self.began_us is None else self.began_us
        self.part.append((loss, weight))
        if len(self.part) < PART:
            return []
        losses, weights = zip(*self.part)
        mean, self.part = float(np.average(losses, weights=weights)), []
        if self.bound is None:
            self.reference.append(mean)
            if len(self.reference) == PARTS:
                self.take_reference(np.array(self.reference), now_us)
            return []
        self.sum = max(self.sum + mean - self.usual, 0.0)
        found = [("loss", self.sum, self.bound)] if self.sum > self.bound else []
        if found:
            self.restart()
        return found

    def take_reference(self, means, now_us):
        from scipy.optimize import brentq

        spread = max(means.std(ddof=1), 1e-6)
        apart = (means - means.mean()) / spread
        # Neighbours are alike where flows come in bursts, so a sum varies more by this factor.
        factor = 1 + 2 * max(float(np.mean(apart[1:] * apart[:-1])), 0)
        self.usual = means.mean() + (TOLERANCE + ERRORS * math.sqrt(factor / PARTS)) * spread
        steps = (means - self.usual) / spread
        grows = lambda t: np.log(np.mean(np.exp(t * steps)))
        top = 1.0
        while grows(top) < 0 and top < 64:
            top *= 2
        rate = brentq(grows, 1e-6, top) if grows(top) > 0 else top
        per_hour = PARTS / (max(now_us - self.began_us, 1) / HOUR_US)
        least = max(self.hours * per_hour / RARER, 2)
        self.bound = spread * math.log(least) * factor / rate


class Drift:
    """Inputs, outputs and loss of the model in use, from the samples of fenxi."""

    INPUTS = ("protocol", "server_port", "first_length", "last_length", "bytes", "server_volume")
    OUTPUTS = ("label", "confidence")

    def __init__(self, hours):
        share = 3 * hours  # three detectors
        self.inputs, self.outputs = Shares(self.INPUTS, share), Shares(self.OUTPUTS, share)
        self.loss, self.generation = Loss(share), None

    def add(self, sample, labels, now_us):
        """One flow; alarms as (name, value, bound).  KeyError, ValueError and the like if it is no
        sample."""
        lengths = [float(element[0]) for element in sample["elements"]]
        weight, size = float(sample.get("weight", 1)), sum(map(abs, lengths))
        known = float((sample.get("context") or {}).get("server_volume", 0))
        flow = sample["proto"], sample["server_port"]
        numbers = *flow, lengths[0], lengths[-1], size, known
        output = sample.get("output")
        confidence = float(output["confidence"]) if output else 0.0
        if not (np.isfinite(numbers).all() and 0 <= confidence <= 1):
            raise ValueError("a number is out of range")
        alarms = self.inputs.add(numbers, weight, now_us)
        if not output or output["label"] not in labels:
            return alarms
        if output["generation"] != self.generation:  # another model answers
            self.generation = output["generation"]
            self.outputs.restart()
            self.loss.restart()
        alarms += self.outputs.add((labels.index(output["label"]), confidence), weight, now_us)
        truth = (sample.get("truth") or {}).get("label")
        if truth in labels:
            others = (1 - confidence) / max(len(labels) - 1, 1)
            true = confidence if truth == output["label"] else others
            alarms += self.loss.add(-math.log(max(true, TRUE_MIN)), weight, now_us)
        return alarms
