"""Who gets how much. Those who learn are called with what fenxi saw of each server since the last
call, and with the time of it (ns), and return a weight for each server."""

import bisect
import math
import statistics

STEP, RANGE = 0.03, 16.0  # of a weight: its largest step (as a logarithm), and ratio to the average
KEPT, LOOKS = 0.98, 200  # of what was learned, with each look; looks that are remembered
FLOWS_MIN = 16  # to spread until the next look


# Who does not learn.
STATIC = {
    "ecmp": lambda capacities: [1.0] * len(capacities),
    "static": lambda capacities: [1.0 + server % 2 for server in range(len(capacities))],
    "oracle": lambda capacities: capacities,
}


class Gradient:
    """Lowers the weights of servers that answer later than the average, and raises the others."""

    def __init__(self, servers):
        self.logs = [0.0] * servers

    def __call__(self, seen, now_ns):
        took = {server: statistics.fmean(own["completion"][:, 1])
                for server, own in seen.items() if len(own["completion"])}
        for server, ns in took.items():
            away = ns / statistics.fmean(took.values()) - 1
            self.logs[server] -= max(-STEP, min(STEP, STEP * away))
        average, limit = statistics.fmean(self.logs), math.log(RANGE)
        self.logs = [max(-limit, min(limit, own - average)) for own in self.logs]
        return [math.exp(own) for own in self.logs]


class Score:
    """Gives each flow to the server with the lowest (flows in flight + 1) / speed, as RLB does.
    A server's speed is learned from completion times: a flow that finds others before it takes
    longer accordingly. Since slots of a hash get all flows until the next look, their weights are
    what the rule would give as many flows as came since the last."""

    def __init__(self, servers):
        self.looks = [(0, [0] * servers)]
        self.found, self.took_s = [0.0] * servers, [0.0] * servers

    def __call__(self, seen, now_ns):
        begun, flows = 0, list(self.looks[-1][1])
        for server, own in seen.items():
            begun += own["flows_begun"]
            flows[server] = own["flows_in_flight"]
            for at_ns, took_ns in own["completion"].tolist():
                look = bisect.bisect(self.looks, at_ns - took_ns, key=lambda it: it[0]) - 1
                self.found[server] += self.looks[max(look, 0)][1][server] + 1
                self.took_s[server] += took_ns / 1e9
            self.found[server] *= KEPT
            self.took_s[server] *= KEPT
        self.looks = self.looks[-LOOKS:] + [(now_ns, list(flows))]
        given = [0] * len(flows)
        if not all(self.took_s):
            return [1] * len(flows)
        for _ in range(max(begun, FLOWS_MIN)):
            to = min(range(len(flows)),
                     key=lambda at: (flows[at] + 1) * self.took_s[at] / self.found[at])
            flows[to] += 1
            given[to] += 1
        return given


LEARNING = {"gradient": Gradient, "score": Score}
