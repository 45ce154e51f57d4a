"""Has the traffic changed?  One knob: the hours between two false alarms.

Shares watches numbers of flows.  After every CHECK flows it compares how they spread over bins with
a reference, by the population stability index (PSI).  If flows were independent, PSI over
(1/n + 1/m), for n and m flows, would follow chi-square with one degree less than bins.  Flows come
in bursts, so it is larger by a factor, which is measured on the parts of the reference.

Loss watches how wrong answers are, by Page-Hinkley: each mean loss of PART answers is a step, its
distance above the reference less a tolerance; steps are summed, and the sum never falls below 0.
Let t be the number for which the mean of exp(t * step) is 1: by chance the sum takes at least
exp(t * bound) steps on average to pass a bound (Lorden 1971).

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
ERRORS = 2.0  # standard errors by which the reference's mean may be too low
TRUE_MIN = 1e-3  # probability of the true label, at least
HOUR_US = 3_600_000_000


class Shares:
    """PSI of several numbers of each flow; `hours` between false alarms of all of them."""

    def __init__(self, names, hours):
        self.names, self.hours = names, hours
        self.restart()

    def restart(self):
        self.rows, self.bounds = [], None

    def add(self, numbers, weight, now_us):
        """One flow; the alarms that it completes, as (name, PSI, bound)."""
        self.rows.append((now_us, weight, *numbers))
        if len(self.rows) < CHECK * (1 if self.bounds else CHECKS):
            return []
        rows, self.rows = np.array(self.rows, float), []
        if self.bounds is None:
            self.take_reference(rows)
            return []
        found = [
            (name, *self.psi(i, rows))
            for i, name in enumerate(self.names)
            if self.edges[i] is not None
        ]
        alarms = [alarm for alarm in found if alarm[1] > alarm[2]]
        if alarms:
            self.restart()
        return alarms

    def take_reference(self, rows):
        from scipy.stats import chi2

        hours = max(rows[-1, 0] - rows[0, 0], 1) / HOUR_US
        chance = min(hours / CHECKS / self.hours / len(self.names), 0.5)  # of a check of one number
        self.edges, self.reference, self.bounds = [], [], []
        self.flows = effective(rows[:, 1])
        for i in range(len(self.names)):
            edges = edges_of(rows[:, 2 + i], rows[:, 1])
            self.edges.append(edges)
            whole = None if edges is None else shares(rows[:, 2 + i], rows[:, 1], edges)
            self.reference.append(whole)
            if edges is None:  # always the same
                self.bounds.append(0.0)
                continue
            parts = np.split(rows, CHECKS)
            apart = [
                psi(shares(p[:, 2 + i], p[:, 1], edges), whole) * effective(p[:, 1]) for p in parts
            ]
            # A part is in the reference, too, which takes 1 / CHECKS of its distance.
            factor = np.mean(apart) / len(edges) / (1 - 1 / CHECKS)
            error = math.sqrt(2 / len(edges) / CHECKS)
            self.bounds.append(max(factor * (1 + ERRORS * error), 1) * chi2.isf(chance, len(edges)))

    def psi(self, i, rows):
        """PSI of a check, and its bound."""
        now = shares(rows[:, 2 + i], rows[:, 1], self.edges[i])
        return psi(now, self.reference[i]), self.bounds[i] * (
            1 / effective(rows[:, 1]) + 1 / self.flows
        )


def effective(weights):
    """How many flows of the same weight say as much."""
    return weights.sum() ** 2 / (weights**2).sum()


def edges_of(values, weights):
    """What begins the second and later bins, none too small; None if there is one bin only."""
    unique, place = np.unique(values, return_inverse=True)
    share = np.bincount(place, weights) / weights.sum()
    edges, held, left = [], 0.0, 1.0
    for value, own in zip(unique, share):
        if held >= 1 / BINS and left >= SHARE_MIN:
            edges.append(value)
            held = 0.0
        held, left = held + own, left - own
    return np.array(edges) if edges else None


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

    def add(self, loss, now_us):
        """One answer; the alarms that it completes, as (name, sum, bound)."""
        self.began_us = now_us if self.began_us is None else self.began_us
        self.part.append(loss)
        if len(self.part) < PART:
            return []
        mean, self.part = float(np.mean(self.part)), []
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
        self.bound = spread * math.log(max(self.hours * per_hour, 2)) * factor / rate


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
        lengths, weight = (
            [float(element[0]) for element in sample["elements"]],
            float(sample.get("weight", 1)),
        )
        known = float((sample.get("context") or {}).get("server_volume", 0))
        numbers = (
            sample["proto"],
            sample["server_port"],
            lengths[0],
            lengths[-1],
            sum(map(abs, lengths)),
            known,
        )
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
            alarms += self.loss.add(-math.log(max(true, TRUE_MIN)), now_us)
        return alarms
