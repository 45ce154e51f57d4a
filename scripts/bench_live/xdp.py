"""What XDP saves: fenxi inline over both backends, beside forwarders that do nothing else."""

import statistics
import tempfile
import time

from .delay import LEFT, RIGHT, Echo, PINGS, addressed_street, ping, plain_wires
from .lab import TARGET, Failure, Lab, cpu_of, quantile, say
from .speed import CPU_FORWARDER, FORWARD, SETTLE_S, Inline, Nobody, pass_through

XDP_FORWARD = TARGET / "release" / "examples" / "xdp_forward"
OVER = {"af_xdp": ["--set", "io.backend=af_xdp"], "af_packet": []}


class Program:
    def __init__(self, lab, *command):
        self.lab, self.process = lab, lab.start("middle", command, CPU_FORWARDER)
        time.sleep(SETTLE_S)
        if self.process.poll() is not None:
            raise Failure(f"{command[0]} has ended")

    def cpu(self):
        return cpu_of(self.process.pid)

    def end(self):
        self.lab.stop(self.process, code=None)
        time.sleep(SETTLE_S)  # the kernel closes XDP sockets in its own time


def sides(lab, scratch):
    return {
        "bare, af_xdp": lambda: Program(lab, XDP_FORWARD, "m0", "m1"),
        "ports, af_xdp": lambda: Program(lab, FORWARD, "m0", "m1", "af_xdp"),
        "fenxi, af_xdp": lambda: Inline(lab, scratch, *OVER["af_xdp"]),
        "fenxi, af_packet": lambda: Inline(lab, scratch, *OVER["af_packet"]),
    }


def xdp(report, arguments):
    if not XDP_FORWARD.exists():
        raise Failure(f"{XDP_FORWARD} is not there: cargo build --release -p packetio --examples")
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        addressed_street(lab)
        plain_wires(lab)
        throughput(report, arguments, lab, scratch)
        idle_latency(report, lab, scratch)


def throughput(report, arguments, lab, scratch):
    taken = {name: [] for name in sides(lab, scratch)}
    for number in range(arguments.rounds + 1):  # the first does not count
        for name, start in sides(lab, scratch).items():
            side = start()
            figures = pass_through(lab, side, 0, arguments.seconds)
            side.end()
            say(f"xdp, round {number} of {arguments.rounds}: {name}: offered {figures[0]:,.0f}/s, "
                f"forwarded {figures[1]:,.0f}/s, CPU {figures[2]:.2f}")
            if number:
                taken[name].append(figures)
    for name, rounds in taken.items():
        report.add(f"xdp: {name}, offered", statistics.median(one[0] for one in rounds), "packets/s")
        report.add(f"xdp: {name}", statistics.median(one[1] for one in rounds), "packets/s")
        report.add(f"xdp: {name}, per CPU-second", statistics.median(one[1] / one[2] for one in rounds), "packets")
    for name, other, bars in (
            ("fenxi, af_xdp", "bare, af_xdp", (0.9, 0.9)), ("ports, af_xdp", "bare, af_xdp", (None, None)),
            ("fenxi, af_xdp", "fenxi, af_packet", (None, 2.0))):
        pairs = list(zip(taken[name], taken[other]))
        report.add(f"xdp: {name} by {other}", statistics.median(a[1] / b[1] for a, b in pairs), "times", bars[0])
        per_cpu = statistics.median(a[1] / a[2] * b[2] / b[1] for a, b in pairs)
        report.add(f"xdp: {name} by {other}, per CPU-second", per_cpu, "times", bars[1])


def idle_latency(report, lab, scratch):
    """Half of the time there and back, without any other traffic."""
    left, right = lab.udp("left", LEFT), lab.udp("right", RIGHT)
    echo = Echo(right)
    found = {}
    try:
        for name, start in {"bridge": lambda: Nobody(lab), **sides(lab, scratch)}.items():
            side = start()
            ping(left, right.getsockname(), 50)
            times = ping(left, right.getsockname(), PINGS)
            side.end()
            found[name] = [quantile(times, 0.5) / 2, quantile(times, 0.99) / 2]
            say(f"xdp, idle: {name}: one way p50 {found[name][0]:.0f} µs, p99 {found[name][1]:.0f} µs")
    finally:
        echo.end()
    for name, times in found.items():
        for share, value in zip(("p50", "p99"), times):
            report.add(f"xdp, idle: {name}, one way, {share}", value, "us")
    for name in OVER:
        added = found[f"fenxi, {name}"][0] - found["bridge"][0]
        bar = 100.0 if name == "af_xdp" else None
        report.add(f"xdp, idle: fenxi, {name}, added to the bridge's, p50", added, "us", bar, most=True)
