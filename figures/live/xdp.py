"""What XDP saves: fenxi inline over both backends, beside forwarders that do nothing else."""

import tempfile

from ..report import TARGET, Failure, say
from .delay import LEFT, PINGS, RIGHT, Echo, addressed_street, ping, plain_wires
from .lab import Lab, quantile
from .speed import FORWARD, Inline, Nobody, Program, compare

XDP_FORWARD = TARGET / "release" / "examples" / "xdp_forward"
OVER = {"af_xdp": ["--set", "io.backend=af_xdp"], "af_packet": []}


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
        pairs = (
            ("fenxi, af_xdp", "bare, af_xdp", (0.9, 0.9)),
            ("ports, af_xdp", "bare, af_xdp", (None, None)),
            ("fenxi, af_xdp", "fenxi, af_packet", (None, 2.0)),
        )
        compare(report, arguments, lab, "xdp", sides(lab, scratch), pairs)
        idle_latency(report, lab, scratch)


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
            say(
                f"xdp, idle: {name}: one way p50 {found[name][0]:.0f} µs, p99 "
                f"{found[name][1]:.0f} µs"
            )
    finally:
        echo.end()
    for name, times in found.items():
        for share, value in zip(("p50", "p99"), times):
            report.add(f"xdp, idle: {name}, one way, {share}", value, "us")
    for name in OVER:
        added = found[f"fenxi, {name}"][0] - found["bridge"][0]
        bar = 100.0 if name == "af_xdp" else None
        report.add(
            f"xdp, idle: fenxi, {name}, added to the bridge's, p50", added, "us", bar, most=True
        )
