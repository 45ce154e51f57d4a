"""Who gets how much: each balancer is made from the servers' capacities, and called with the latest
answers, (server, seconds) each; it returns a weight for each server."""

import math
import statistics

STEP, RANGE = 0.2, 16.0  # of a weight: its largest step (as a logarithm), and ratio to the average


def ecmp(capacities):
    return lambda answers: [1.0] * len(capacities)


def static(capacities):
    """1:2, as somebody configured it."""
    return lambda answers: [1.0 + server % 2 for server in range(len(capacities))]


def oracle(capacities):
    return lambda answers: capacities


class Gradient:
    """Lowers the weights of servers that answer later than the average, and raises the others."""

    def __init__(self, capacities):
        self.logs = [0.0] * len(capacities)

    def __call__(self, answers):
        took = {}
        for server, seconds in answers:
            took.setdefault(server, []).append(seconds)
        took = {server: statistics.fmean(own) for server, own in took.items()}
        for server, seconds in took.items():
            away = seconds / statistics.fmean(took.values()) - 1
            self.logs[server] -= max(-STEP, min(STEP, STEP * away))
        average, limit = statistics.fmean(self.logs), math.log(RANGE)
        self.logs = [max(-limit, min(limit, own - average)) for own in self.logs]
        return [math.exp(own) for own in self.logs]


NFT = {"ecmp": ecmp, "static": static, "oracle": oracle, "weights": Gradient}
