"""Scales a service by predictions of its servers' CPU usage; see README.md."""

import collections
import contextlib
import csv
import pathlib
import random
import statistics
import sys
import time

import lab
import numpy as np
from features import Reader
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SCALERS = ("polling", "smoothed", "linear", "sequence", "oracle")
SERVERS_MIN, SERVERS_MAX, QUOTA_US = 2, 6, 2_000  # a server has a tenth of a processor
NETWORK = "192.168.2.0/24"
CPU_LOW, CPU_HIGH = 0.7, 0.8  # Algorithm 2, as are the next two lines
STEP_S, AHEAD = 0.25, 16  # how long a step is; steps that a prediction is ahead
COOL_DOWN = 8  # steps after a change
CAPACITY_S, PATIENCE_S, WARM_UP_S = 5.0, 10.0, 5.0
PHASES, PHASE_S = 14, 14  # of training
LEVELS = 5  # of load in a run
COLUMNS = ("run", "scaler", "requests", "unanswered", "mean_ms", "p50_ms", "p90_ms", "p95_ms",
           "p99_ms", "server_s", "changes")


class Servers:
    """The servers of the lab, of which the first `count` get requests."""

    def __init__(self, own, processes, files):
        self.own, self.reader, self.weights = own, Reader(files["web"]), lab.Weights(own, files)
        self.clocks = [pathlib.Path(f"/proc/{it.pid}/schedstat") for it in processes]
        self.shares = [it.quota for it in own.groups]
        self.histories = [collections.deque(maxlen=AHEAD) for _ in processes]
        self.polls = [collections.deque(maxlen=AHEAD) for _ in processes]
        self.read_clocks()

    def read_clocks(self):
        self.at = time.monotonic()
        self.used_ns = [int(it.read_text().split()[0]) for it in self.clocks]

    def use(self, count):
        self.count = count
        self.weights.give([float(at < count) for at in range(SERVERS_MAX)])

    def look(self):
        """Adds a step to the histories: features by fenxi, and CPU usage as polled."""
        at, used_ns = self.at, self.used_ns
        self.read_clocks()
        for polls, now, before, share in zip(self.polls, self.used_ns, used_ns, self.shares):
            polls.append((now - before) / 1e9 / (self.at - at) / share)
        seen = self.reader.look()
        for history, address in zip(self.histories, self.own.addresses):
            history.append(self.row_of(seen.get(address)))
        self.use(self.count)  # again, for fenxi counts on this program only while it hears of it

    def row_of(self, own):
        """A server's features in a step."""
        reader = self.reader
        if own is None:  # not used so far
            return [0.0] * (len(reader.counters) + len(reader.gauges) + 2 * len(reader.sampled))
        row = [own[name] / reader.passed_s for name in reader.counters]
        row += [np.log1p(own[name]) for name in reader.gauges]
        for name in reader.sampled:
            values_ms = own[name][:, 1] / 1e6 if len(own[name]) else np.zeros(1)
            row += [np.log1p(values_ms.mean()), np.log1p(values_ms.max())]
        return row


class Steps:
    """Waits for one step after the other, until the end."""

    def __init__(self, seconds):
        self.due, self.end = time.monotonic(), time.monotonic() + seconds

    def __iter__(self):
        while self.due < self.end:
            self.due += STEP_S
            time.sleep(max(self.due - time.monotonic(), 0))
            yield


def last_and_mean(history):
    """For a model that knows no order: the last step, and the mean of all."""
    return np.concatenate([history[-1], np.mean(history, axis=0)])


def sequence(history):
    """Means of four steps each, in order."""
    return np.reshape(history, (4, AHEAD // 4, -1)).mean(axis=1).ravel()


def plan_of(requests, rates, seconds, run):
    """Lines of a plan with one rate after the other, each for some time."""
    return [lab.line_of(at + number * seconds, lab.VIP, rounds)
            for number, rate in enumerate(rates)
            for at, rounds in lab.plan_of(requests, rate, seconds, run * len(rates) + number)]


@contextlib.contextmanager
def service(own, args, count):
    with own.servers() as processes:
        weights = [1] * SERVERS_MAX
        with own.fenxi(args.fenxi, {"web": NETWORK}, args.into, weights) as files:
            servers = Servers(own, processes, files)
            servers.use(count)
            yield servers


def examples(own, args, requests, capacity):
    """Histories of servers, and their mean CPU usage over the steps ahead."""
    chance = random.Random(1)
    counts = [chance.randint(SERVERS_MIN, SERVERS_MAX) for _ in range(PHASES)]
    rates = [count * capacity * chance.uniform(0.2, 1.4) for count in counts]
    histories, targets = [], []
    with service(own, args, counts[0]) as servers:
        asked = own.ask(plan_of(requests, rates, PHASE_S, 0), 0)
        for count in counts:
            servers.use(count)
            looks = []
            for _ in Steps(PHASE_S):
                servers.look()
                looks.append([(list(history), polls[-1])
                              for history, polls in zip(servers.histories, servers.polls)])
            for at in range(AHEAD, len(looks) - AHEAD):
                for server in range(count):
                    histories.append(looks[at][server][0])
                    ahead = looks[at + 1: at + 1 + AHEAD]
                    targets.append(statistics.fmean(it[server][1] for it in ahead))
        asked.result()
    return histories, targets


def trained(histories, targets):
    """Models with the form of their input. The last fifth of the examples tests them."""
    known = len(targets) * 4 // 5
    network = MLPRegressor(hidden_layer_sizes=(32,), alpha=1.0, early_stopping=True, max_iter=500,
                           random_state=0)
    models = {"linear": (last_and_mean, make_pipeline(StandardScaler(), Ridge(10.0))),
              "sequence": (sequence, make_pipeline(StandardScaler(), network))}
    for name, (form, model) in models.items():
        rows = [form(history) for history in histories]
        model.fit(rows[:known], targets[:known])
        error = np.abs(model.predict(rows[known:]) - targets[known:]).mean()
        print(f"autoscale: {name}: mean error {error:.3f}, {known} examples", file=sys.stderr)
    return models


def usage(name, models, servers):
    """What a scaler takes for the CPU usage of the servers in use."""
    polls = servers.polls[: servers.count]
    if name == "polling":
        return [own[-1] for own in polls]
    if name == "smoothed":
        return [statistics.fmean(own) for own in polls]
    form, model = models[name]
    return model.predict([form(own) for own in servers.histories[: servers.count]])


def change_of(cpu):
    """Algorithm 2: one server less (-1), one more (1) or as many (0)."""
    delta = sum(1 if own < CPU_LOW else -1 if own > CPU_HIGH else 0 for own in cpu)
    threshold = -(-len(cpu) // 3)
    if delta > threshold and len(cpu) > SERVERS_MIN:
        return -1
    if delta < -threshold and len(cpu) < SERVERS_MAX:
        return 1
    return 0


def try_one(own, args, name, models, plan, needed):
    """A row of results, and servers in use by step. `needed`: servers by level, for the oracle."""
    counts, changes, cool = [], 0, AHEAD
    with service(own, args, needed[0]) as servers:
        asked = own.ask(plan, PATIENCE_S)
        for _ in Steps(LEVELS * args.level_s):
            servers.look()
            level = int(len(counts) * STEP_S / args.level_s)
            counts.append(servers.count)
            if name == "oracle":
                change = needed[min(level, LEVELS - 1)] - servers.count
            else:
                cool -= 1
                change = 0 if cool >= 0 else change_of(usage(name, models, servers))
            if change:
                servers.use(servers.count + change)
                cool, changes = COOL_DOWN, changes + 1
        took_s = [took for _, at, took, _ in asked.result() if at >= WARM_UP_S]
    asked = sum(float(line.split()[0]) >= WARM_UP_S for line in plan)
    row = lab.percentiles(took_s, asked)
    row |= {"requests": asked, "unanswered": asked - len(took_s), "changes": changes,
            "mean_ms": round(statistics.fmean(took_s) * 1e3, 1), "server_s": sum(counts) * STEP_S}
    return row, counts


def draw(rows, series, file):
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for at, name in enumerate(SCALERS):
        own = [row for row in rows if row["scaler"] == name]
        left.plot([row["server_s"] for row in own], [row["p90_ms"] for row in own], "o",
                  color=f"C{at}", label=name)
        right.plot(np.arange(len(series[name])) * STEP_S, np.array(series[name]) + at * 0.05,
                   color=f"C{at}", label=name)
    left.set(xlabel="cost, server-seconds", ylabel="p90 of page time, ms", yscale="log")
    right.set(xlabel="s", ylabel="servers in use, in the last run")
    left.legend()
    figure.tight_layout()
    figure.savefig(file)


def table(rows):
    """Medians over the runs, and against polling."""
    shown = COLUMNS[3:]
    yield f"{'scaler':10}" + "".join(f"{column:>11}" for column in shown) + "   p90      cost"
    medians = {name: {column: statistics.median(row[column] for row in rows
                                                if row["scaler"] == name) for column in shown}
               for name in SCALERS}
    for name, own in medians.items():
        against = (f"{own[column] / medians['polling'][column] - 1:+9.1%}"
                   for column in ("p90_ms", "server_s"))
        yield f"{name:10}" + "".join(f"{own[it]:11g}" for it in shown) + "".join(against)


def main():
    parser = lab.parser_of(__doc__, 3)
    parser.add_argument("--arrivals", type=pathlib.Path, help="CSV of time and query (made up)")
    parser.add_argument("--level-s", type=float, default=12, help="seconds of each load (12)")
    args = parser.parse_args()
    args.into.mkdir(exist_ok=True)
    requests, rows, series = lab.arrivals(args.arrivals), [], {}
    with contextlib.ExitStack() as stack:
        own = lab.Lab(stack, {f"192.168.2.{at + 2}": QUOTA_US for at in range(SERVERS_MAX)})
        with own.servers():
            plan = [lab.line_of(0, own.addresses[0], lab.ROUNDS)] * 1000
            capacity = len(own.ask(plan, CAPACITY_S).result()) / CAPACITY_S
        print(f"autoscale: a server answers {capacity:.1f} requests per second", file=sys.stderr)
        models = trained(*examples(own, args, requests, capacity))
        file = stack.enter_context(open(args.into / "autoscale.csv", "w", newline=""))
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        for run in range(args.runs):
            chance = random.Random(run + 2)
            busy = [chance.uniform(SERVERS_MIN, SERVERS_MAX) for _ in range(LEVELS)]
            rates = [servers * capacity * (CPU_LOW + CPU_HIGH) / 2 for servers in busy]
            plan = plan_of(requests, rates, args.level_s, run + 1)
            for at in range(len(SCALERS)):  # another one begins in each run
                name = SCALERS[(at + run) % len(SCALERS)]
                row, series[name] = try_one(own, args, name, models, plan,
                                            [-int(-servers // 1) for servers in busy])
                row |= {"run": run + 1, "scaler": name}
                print("autoscale:", *(row[column] for column in COLUMNS), file=sys.stderr)
                rows.append(row)
                out.writerow(row)
                file.flush()
    draw(rows, series, args.into / "autoscale.svg")
    print(*table(rows), f"{args.into}: autoscale.csv, autoscale.svg", sep="\n")


if __name__ == "__main__":
    lab.run(main)
