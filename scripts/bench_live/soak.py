"""What stays as it is for long, or under a thousand changes: soak, reloads, swaps."""

import signal
import statistics
import tempfile
import time

from .delay import half_load
from .lab import ROOT, Lab, generate, say
from .speed import BLAST, CPU_LOAD, ROUNDS_PER_FLOW, Inline, load_capture, street

WARM_UP_S = 90
BUCKET = "fenxi_label_latency_seconds_bucket"
# Above T and what a batch takes.
GOAL_S = 0.025


# Flows end after 30 s; until then the table grows into its memory.
FLOWS_SETTLE_S = 45


def growth(rss):
    """Of resident memory, from the first fifth to the last, %: single samples differ by what is being given back."""
    fifth = max(1, len(rss) // 5)
    first, last = statistics.median(rss[:fifth]), statistics.median(rss[-fifth:])
    return 100 * (last - first) / first


def imbalance(metrics):
    return max(abs(value) for name, value in metrics.items() if name.startswith("fenxi_balance"))


def within_goal(before, after):
    """Of the labels between two scrapes, those not later than GOAL_S, %."""
    def labels(metrics, bound):
        return sum(value for name, value in metrics.items() if name.startswith(BUCKET) and f'le="{bound}"' in name)
    total = labels(after, "+Inf") - labels(before, "+Inf")
    return 100 * (labels(after, GOAL_S) - labels(before, GOAL_S)) / max(1, total)


def soak(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        half = half_load(lab, scratch)
        fenxi = Inline(lab, scratch, cpu=None)
        load = lab.start("left", [BLAST, "g0", load_capture(), half, 86_400, ROUNDS_PER_FLOW], CPU_LOAD)
        say(f"soak at {half:,.0f} packets/s: {WARM_UP_S} s to warm up, then {arguments.minutes:g} minutes")
        time.sleep(WARM_UP_S)
        rss, in_time, off, before = [fenxi.rss_kib()], [], 0, fenxi.metrics()
        began, first = time.monotonic(), before
        while time.monotonic() < began + 60 * arguments.minutes:
            time.sleep(min(60, 60 * arguments.minutes))
            now = fenxi.metrics()
            in_time.append(within_goal(before, now))
            off, before = max(off, imbalance(now)), now
            rss.append(fenxi.rss_kib())
            say(f"soak, minute {len(in_time)}: RSS {rss[-1] / 1024:.1f} MiB, labels within 25 ms {in_time[-1]:.3f} %, off balance {off:g}")
        lab.stop(load, code=None, with_signal=signal.SIGKILL)
        packets = fenxi.sum("fenxi_port_packets_total", now) - fenxi.sum("fenxi_port_packets_total", first)
        dropped = fenxi.sum("fenxi_port_dropped_packets_total", now) - fenxi.sum("fenxi_port_dropped_packets_total", first)
        fenxi.end()
    report.add("soak: packets", packets, "packets")
    report.add("soak: dropped by the kernel", dropped, "packets")
    report.add("soak: RSS, growth", growth(rss), "%", 1.0, most=True)
    report.add("soak: balance, farthest from 0", off, "packets or flows", 0, most=True)
    report.add("soak: labels within 25 ms, median minute", statistics.median(in_time), "%")
    report.add("soak: labels within 25 ms, worst minute", min(in_time), "%", 99.0)


def changes(report, arguments, what, request):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        fenxi = Inline(lab, scratch, cpu=None)
        load = generate(lab, "left", "g0", 20_000, 86_400)
        say(f"{what}: {FLOWS_SETTLE_S} s to warm up")
        time.sleep(FLOWS_SETTLE_S)
        rss, refused, slowest = [], [], 0.0
        for number in range(arguments.times):
            began = time.monotonic()
            reply = fenxi.command(**request)
            slowest = max(slowest, time.monotonic() - began)
            if reply.get("code") != 200:
                refused.append(reply)
            rss.append(fenxi.rss_kib())
            if (number + 1) % max(1, arguments.times // 10) == 0:
                say(f"{what}: {number + 1} of {arguments.times}, refused {len(refused)}, RSS {fenxi.rss_kib() / 1024:.1f} MiB")
        lab.stop(load, code=None, with_signal=signal.SIGKILL)
        time.sleep(1)
        metrics = fenxi.metrics()
        came, gone = lab.counted("middle", "m0")[0], lab.counted("middle", "m1")[1]
        fenxi.end()
    if refused:
        say(f"{what}: first refusal {refused[0]}")
    off = imbalance(metrics)
    report.add(f"{what}: done", arguments.times - len(refused), what, arguments.times)
    report.add(f"{what}: RSS, growth", growth(rss), "%", 1.0, most=True)
    report.add(f"{what}: packets not sent on", came - gone, "packets", 0, most=True)
    report.add(f"{what}: series without a label", sum(value for name, value in metrics.items()
               if name.startswith("fenxi_series_lost_total")), "series", 0, most=True)
    report.add(f"{what}: balance, from 0", off, "packets or flows", 0, most=True)
    report.add(f"{what}: the slowest answer", 1000 * slowest, "ms")


def reloads(report, arguments):
    changes(report, arguments, "reloads", {"command": "reload"})


def swaps(report, arguments):
    changes(report, arguments, "swaps", {"command": "model_load", "dir": str(ROOT / "models" / "app-id-k10")})
