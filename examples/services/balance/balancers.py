"""Who gets how much: each balancer gives a weight for each server, whenever it is asked.

A balancer is made from the servers' capacities, in requests per second, and told of each answer.
"""

import math
import threading

STEP, RANGE = 0.2, 16.0  # of a weight: its largest step (as a logarithm), and ratio to the average


class Fixed:
    """Weights that stay."""

    def __init__(self, weights):
        self.fixed = weights

    def weights(self):
        return self.fixed

    def answered(self, server, seconds):
        pass


class Gradient:
    """Lowers the weights of servers that answer later than the average, and raises the others."""

    def __init__(self, capacities):
        self.logs = [0.0] * len(capacities)
        self.recent = [[] for _ in capacities]
        self.lock = threading.Lock()

    def answered(self, server, seconds):
        with self.lock:
            self.recent[server].append(seconds)

    def weights(self):
        with self.lock:
            recent, self.recent = self.recent, [[] for _ in self.recent]
        took = [sum(own) / len(own) if own else None for own in recent]
        known = [seconds for seconds in took if seconds is not None]
        for server, seconds in enumerate(took):
            if seconds is not None:
                away = seconds / (sum(known) / len(known)) - 1
                self.logs[server] -= max(-STEP, min(STEP, STEP * away))
        average = sum(self.logs) / len(self.logs)
        limit = math.log(RANGE)
        self.logs = [max(-limit, min(limit, own - average)) for own in self.logs]
        return [math.exp(own) for own in self.logs]


def ecmp(capacities):
    return Fixed([1.0] * len(capacities))


def static(capacities):
    """1:2, as somebody configured it."""
    return Fixed([1.0 + server % 2 for server in range(len(capacities))])


NFT = {"ecmp": ecmp, "static": static, "oracle": Fixed, "weights": Gradient}
