"""Balances requests over unequal servers in several ways; see README.md."""

import contextlib
import csv
import os
import pathlib
import shutil
import signal
import statistics
import sys
import threading

import balancers
import lab
from features import Reader

BALANCERS = ("ecmp", "static", "oracle", "leastconn", "gradient", "score")
QUOTAS_US = 2_000, 4_000  # a slow server has a tenth of a processor
NETWORK = "192.168.2.0/24"
CAPACITY_S, PATIENCE_S, EVERY_S = 5.0, 10.0, 0.1
COLUMNS = ("run", "load", "balancer", "requests", "unanswered",
           "p50_ms", "p90_ms", "p95_ms", "p99_ms", "jain")

HAPROXY = f"""
defaults
 mode tcp
 timeout connect 30s
 timeout client 60s
 timeout server 60s
listen service
 bind {lab.VIP}:{lab.PORT}
 balance leastconn
"""


@contextlib.contextmanager
def leastconn(own, into):
    """HAProxy in front of the servers, at the address of the service."""
    servers = (f" server s{at} {it}:{lab.PORT}\n" for at, it in enumerate(own.addresses))
    config, pid_file = into / "haproxy.cfg", into / "haproxy.pid"
    config.write_text(HAPROXY + "".join(servers))
    own.run("r", f"haproxy -q -D -p {pid_file} -f {config}")  # returns once it listens
    pid = int(pid_file.read_text())
    try:
        own.others.add(pid)
        yield
    finally:
        os.kill(pid, signal.SIGTERM)


def capacities_of(own):
    """Requests per second that each server answers, if it always has some."""
    with own.servers():
        return [len(it.result()) / CAPACITY_S
                for it in [own.ask([lab.line_of(0, address, lab.ROUNDS)] * 1000, CAPACITY_S)
                           for address in own.addresses]]


@contextlib.contextmanager
def learning(own, files, balancer):
    """Weights by what fenxi sees, until the end."""
    reader, weights, over = Reader(files["web"]), lab.Weights(own, files), threading.Event()
    numbers = {address: number for number, address in enumerate(own.addresses)}

    def work():
        while not over.wait(EVERY_S):
            seen = {numbers[it]: features for it, features in reader.look().items()}
            weights.give(balancer(seen, reader.time_ns))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def row_of(answers, asked, capacities):
    """Of (server, seconds, rounds) of answered requests."""
    work = [0] * len(capacities)
    for server, _, rounds in answers:
        work[server] += rounds
    used = [done / capacity for done, capacity in zip(work, capacities)]
    jain = sum(used) ** 2 / (len(used) * sum(it * it for it in used)) if answers else 0
    return lab.percentiles([took for _, took, _ in answers], asked) | {
        "requests": asked, "unanswered": asked - len(answers), "jain": round(jain, 3)}


def try_one(own, args, name, plan, capacities):
    lines = [lab.line_of(at, lab.VIP, rounds) for at, rounds in plan]
    weights = balancers.STATIC.get(name, balancers.STATIC["ecmp"])(capacities)
    if name == "leastconn":
        weights = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(own.servers())
        files = stack.enter_context(own.fenxi(args.fenxi, {"web": NETWORK}, args.into, weights))
        if name == "leastconn":
            stack.enter_context(leastconn(own, args.into))
        elif name in balancers.LEARNING:
            balancer = balancers.LEARNING[name](len(capacities))
            stack.enter_context(learning(own, files, balancer))
        answers = own.ask(lines, PATIENCE_S).result()
    answers = [(server, took, rounds) for server, at, took, rounds in answers if at >= args.warm_up]
    return row_of(answers, sum(at >= args.warm_up for at, _ in plan), capacities)


def table(rows):
    """Medians over the runs."""
    shown = COLUMNS[4:]
    yield f"{'load':>4} {'balancer':10}" + "".join(f"{column:>11}" for column in shown)
    for load, name in dict.fromkeys((row["load"], row["balancer"]) for row in rows):
        own = [row for row in rows if (row["load"], row["balancer"]) == (load, name)]
        cells = (statistics.median(row[column] for row in own) for column in shown)
        yield f"{load:4} {name:10}" + "".join(f"{cell:11g}" for cell in cells)


def draw(rows, file):
    """p90 by load: the median of the runs, and all of them."""
    from matplotlib import pyplot
    for at, name in enumerate(dict.fromkeys(row["balancer"] for row in rows)):
        own = [row for row in rows if row["balancer"] == name]
        loads = sorted({row["load"] for row in own})
        p90 = [[row["p90_ms"] for row in own if row["load"] == load] for load in loads]
        colour = f"C{at}"
        pyplot.semilogy(loads, [statistics.median(it) for it in p90], color=colour, label=name)
        pyplot.semilogy([row["load"] for row in own], [row["p90_ms"] for row in own], ".",
                        color=colour)
    pyplot.xlabel("load, % of capacity")
    pyplot.ylabel("p90 of latency, ms")
    pyplot.legend()
    pyplot.savefig(file)


def main():
    parser = lab.parser_of(__doc__, 3)
    parser.add_argument("--arrivals", type=pathlib.Path, help="CSV of time and query (made up)")
    parser.add_argument("--loads", default="60,80,95,105", help="percent of capacity")
    parser.add_argument("--seconds", type=float, default=20, help="of requests, each time (20)")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds that do not count (5)")
    parser.add_argument("--balancers", default=",".join(BALANCERS))
    parser.add_argument("--servers", type=int, default=4, help="every second is a fast one (4)")
    args = parser.parse_args()
    names, loads = args.balancers.split(","), [int(load) for load in args.loads.split(",")]
    if not set(names) <= set(BALANCERS) or min(args.runs, args.servers, *loads) < 1:
        parser.error("unknown balancer, or none of something")
    if "leastconn" in names and not shutil.which("haproxy"):
        print("balance: leastconn is skipped: it needs haproxy", file=sys.stderr)
        names.remove("leastconn")
    requests = lab.arrivals(args.arrivals)
    args.into.mkdir(exist_ok=True)
    rows = []
    with contextlib.ExitStack() as stack:
        quotas = {f"192.168.2.{at + 2}": QUOTAS_US[at % 2] for at in range(args.servers)}
        own = lab.Lab(stack, quotas)
        capacities = capacities_of(own)
        print("balance: requests per second:", *(f"{it:.1f}" for it in capacities),
              file=sys.stderr)
        file = stack.enter_context(open(args.into / "balance.csv", "w", newline=""))
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        for run in range(args.runs):
            for load in loads:
                per_s, seconds = sum(capacities) * load / 100, args.warm_up + args.seconds
                plan = lab.plan_of(requests, per_s, seconds, run)
                for at in range(len(names)):  # another one begins in each run
                    name = names[(at + run) % len(names)]
                    row = {"run": run + 1, "load": load, "balancer": name}
                    row |= try_one(own, args, name, plan, capacities)
                    print("balance:", *row.values(), file=sys.stderr)
                    rows.append(row)
                    out.writerow(row)
                    file.flush()
    draw(rows, args.into / "balance.svg")
    print(*table(rows), f"{args.into}: balance.csv, balance.svg", sep="\n")


if __name__ == "__main__":
    lab.run(main)
