"""The series' walk beside inference servers that batch, over loopback, with the same models."""

import contextlib
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..report import TARGET, Failure, Skip, output_of, ratio, say
from .environment import environment
from .inference import BATCH, Bundle, Mosec, Triton
from .sender import Sender, most

MODELS = ["app-id-k10", "protocol"]
GOAL_MS = 10
# Package, requirements, server.
SERVERS = [("nvidia-pytriton", "triton", Triton), ("mosec", "mosec", Mosec)]
# Side: its package, the series of a request at most, the pause in which the sender gathers them,
# and the rate from which the first search begins.
SIDES = {
    "Triton": ("nvidia-pytriton", 1, 1e-4, 1000.0),
    "Triton gathered": ("nvidia-pytriton", BATCH, 1e-3, 10_000.0),
    "mosec": ("mosec", 1, 1e-4, 2000.0),
    "mosec gathered": ("mosec", BATCH, 1e-3, 10_000.0),
}
# The engine, and ONNX Runtime as in the servers.
OURS = ["native", "cpu"]
OUR_START = 100_000


@dataclass
class Taken:
    """A round of a side: series/s, CPU time of server and sender in us per series."""

    rate: float
    server_us: float
    sender_us: float


def ask_server(server, sender, start, seconds):
    """The most series/s within the goal, and what they cost."""
    tried = {}

    def keeps(rate):
        before = server.cpu()
        series, late, sender_s = sender.run(rate, seconds, GOAL_MS / 1e3)
        server_s = server.cpu() - before
        tried[rate] = Taken(rate, server_s / series * 1e6, sender_s / series * 1e6)
        return late * 100 <= series

    return tried[most(start, keeps)]


def ask_ours(bundle, start, seconds):
    """The same of fenxi, by device."""
    program = TARGET / "release" / "fenxi-lab"
    if not program.exists():
        raise Failure(f"{program} is not there: make build")
    # Two devices, eight runs each.
    options = ["--goal-ms", GOAL_MS, "--rate", int(start), "--seconds", 16 * seconds, "--json"]
    command = [program, "bench", "latency", "--model", bundle.folder, *options]
    results = json.loads(output_of(*map(str, command)))["results"]
    values = {result["name"]: result["value"] for result in results}
    figures = ("most", "CPU of the worker", "CPU of the sender")
    taken = {}
    for device in OURS:
        name = f"{bundle.name}, {device}, p99 within {GOAL_MS} ms: "
        if name + figures[0] in values:
            taken[f"fenxi, {device}"] = Taken(*(values[name + figure] for figure in figures))
    if not all(it.rate for it in taken.values()):
        raise Skip("fenxi keeps the goal at no rate; is the machine busy?")
    return taken


def bench_servers(report, arguments):
    found = {}
    for package, requirements, server in SERVERS:
        try:
            python, report.versions[package] = environment(requirements, package)
            found[package] = lambda *more, python=python, server=server: server(python, *more)
        except Skip as skip:
            report.skip(package, skip)
    for name in MODELS:
        try:
            add_figures(report, name, bench_model(report, arguments, Bundle(name), found))
        except Skip as skip:
            report.skip(f"servers: {name}", skip)


def bench_model(report, arguments, bundle, found):
    """{side: what each round took}"""
    with contextlib.ExitStack() as stack:
        sides, servers = {}, {}
        for package, start in list(found.items()):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                servers[package] = start(folder, bundle)
                stack.callback(servers[package].close)
            except Skip as skip:
                report.skip(package, skip)
                del found[package]
        for side, (package, gathered, pause_s, rate) in SIDES.items():
            if server := servers.get(package):
                sender = Sender(server.port, server.request, gathered, pause_s)
                stack.callback(sender.close)
                bundle.check(sender)
                sides[side] = server, sender, rate
        return take_turns(arguments, bundle, sides)


def take_turns(arguments, bundle, sides):
    """A search begins at half the rate that the round before found."""
    seconds = 0.5 if arguments.quick else 1.0
    taken, our_start = {side: [] for side in sides}, OUR_START
    for number in range(1, arguments.rounds + 1):
        for side, (server, sender, start) in sides.items():
            start = taken[side][-1].rate / 2 if taken[side] else start
            taken[side].append(ask_server(server, sender, start, seconds))
        ours = ask_ours(bundle, our_start, seconds)
        our_start = min(it.rate for it in ours.values()) / 2
        for side, it in ours.items():
            taken.setdefault(side, []).append(it)
        told = ", ".join(f"{side} {rounds[-1].rate:,.0f}/s" for side, rounds in taken.items())
        say(f"round {number} of {arguments.rounds}, {bundle.name}: {told}")
    return taken


def add_figures(report, model, taken):
    for side, rounds in taken.items():
        for figure, unit, of in (
            (f"at p99 within {GOAL_MS} ms", "series/s", lambda it: it.rate),
            ("CPU of the server", "us per series", lambda it: it.server_us),
            ("CPU of the sender", "us per series", lambda it: it.sender_us),
        ):
            report.add(f"{model}: {side}, {figure}", statistics.median(map(of, rounds)), unit)
    for our in (side for side in taken if side not in SIDES):
        for side in (side for side in taken if side in SIDES):
            rates = ([it.rate for it in taken[which]] for which in (our, side))
            report.add(f"{model}: {our} by {side}, series/s", ratio(*rates), "times")
            costs = ([it.server_us for it in taken[which]] for which in (side, our))
            name = f"{model}: {our} by {side}, series per CPU-second"
            report.add(name, ratio(*costs), "times")
