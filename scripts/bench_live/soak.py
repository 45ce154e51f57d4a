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


def growth(rss):
    """Of resident memory, %."""
    return 100 * (max(rss) - min(rss)) / min(rss)


def imbalance(metrics):
    return max(abs(value) for name, value in metrics.items() if name.startswith("fenxi_balance"))


def p99_ms(before, after):
    """Of the labels between two scrapes, by the bounds of the histogram."""
    counts = sorted((float(name.partition('le="')[2].partition('"')[0]), value - before.get(name, 0))
                    for name, value in after.items() if name.startswith(BUCKET))
    total = counts[-1][1] if counts else 0
    if not total:
        return 0.0
    lower, under = 0.0, 0.0
    for bound, count in counts:
        if count >= 0.99 * total:
            share = (0.99 * total - under) / (count - under) if count > under else 1
            return 1000 * (lower + (min(bound, 1e3) - lower) * share)
        lower, under = bound, count
    return 1000 * lower


def soak(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        half = half_load(lab, scratch)
        fenxi = Inline(lab, scratch, cpu=None)
        load = lab.start("left", [BLAST, "g0", load_capture(), half, 86_400, ROUNDS_PER_FLOW], CPU_LOAD)
        say(f"soak at {half:,.0f} packets/s: {WARM_UP_S} s to warm up, then {arguments.minutes:g} minutes")
        time.sleep(WARM_UP_S)
        rss, p99s, off, before = [fenxi.rss_kib()], [], 0, fenxi.metrics()
        began, first = time.monotonic(), before
        while time.monotonic() < began + 60 * arguments.minutes:
            time.sleep(min(60, 60 * arguments.minutes))
            now = fenxi.metrics()
            p99s.append(p99_ms(before, now))
            off, before = max(off, imbalance(now)), now
            rss.append(fenxi.rss_kib())
            say(f"soak, minute {len(p99s)}: RSS {rss[-1] / 1024:.1f} MiB, p99 of the time to label {p99s[-1]:.2f} ms, off balance {off:g}")
        lab.stop(load, code=None, with_signal=signal.SIGKILL)
        packets = fenxi.sum("fenxi_port_packets_total", now) - fenxi.sum("fenxi_port_packets_total", first)
        dropped = fenxi.sum("fenxi_port_kernel_dropped_total", now) - fenxi.sum("fenxi_port_kernel_dropped_total", first)
        fenxi.end()
    report.add("soak: packets", packets, "packets")
    report.add("soak: dropped by the kernel", dropped, "packets")
    report.add("soak: RSS, greatest change", growth(rss), "%", 1.0, most=True)
    report.add("soak: balance, farthest from 0", off, "packets or flows", 0, most=True)
    report.add("soak: p99 of the time to label, median minute", statistics.median(p99s), "ms")
    report.add("soak: p99 of the time to label, worst minute", max(p99s), "ms")


def changes(report, arguments, what, request):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        fenxi = Inline(lab, scratch, cpu=None)
        load = generate(lab, "left", "g0", 20_000, 86_400)
        time.sleep(arguments.seconds)
        rss, refused, slowest = [], [], 0.0
        for number in range(arguments.times):
            began = time.monotonic()
            reply = fenxi.command(**request)
            slowest = max(slowest, time.monotonic() - began)
            if reply.get("code") != 200:
                refused.append(reply)
            if number >= arguments.times // 5:
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
    report.add(f"{what}: RSS, from a fifth on, greatest change", growth(rss), "%", 1.0, most=True)
    report.add(f"{what}: packets not sent on", came - gone, "packets", 0, most=True)
    report.add(f"{what}: series without a label", sum(value for name, value in metrics.items()
               if name.startswith("fenxi_series_lost_total")), "series", 0, most=True)
    report.add(f"{what}: balance, from 0", off, "packets or flows", 0, most=True)
    report.add(f"{what}: the slowest answer", 1000 * slowest, "ms")


def reloads(report, arguments):
    changes(report, arguments, "reloads", {"command": "reload"})


def swaps(report, arguments):
    changes(report, arguments, "swaps", {"command": "model_load", "dir": str(ROOT / "models" / "app-id-k10")})
