"""What stays as it is for long, or under a thousand changes: soak, reloads, swaps."""

import re
import signal
import statistics
import tempfile
import time

from ..report import ROOT, Failure, say
from .delay import half_load
from .lab import Lab, generate
from .speed import BLAST, CPU_LOAD, ROUNDS_PER_FLOW, Inline, load_capture, street

WARM_UP_S = 90
BUCKET = "fenxi_label_latency_seconds_bucket"
# Above T and what a batch takes.
GOAL_S = 0.025


# Flows end after 30 s; until then the table grows into its memory.
FLOWS_SETTLE_S = 45


def growth(rss):
    """Growth of resident memory, %, first fifth to last; single samples are noisy."""
    fifth = max(1, len(rss) // 5)
    first, last = statistics.median(rss[:fifth]), statistics.median(rss[-fifth:])
    return 100 * (last - first) / first


def imbalance(metrics):
    return max(abs(value) for name, value in metrics.items() if name.startswith("fenxi_balance"))


def new_labels(before, after):
    """[(bound in s, labels between two scrapes that took so long at most)], by bound."""
    sums = {}
    for metrics, sign in ((after, 1), (before, -1)):
        for name, value in metrics.items():
            if name.startswith(BUCKET):
                bound = float(re.search(r'le="([^"]+)"', name).group(1))
                sums[bound] = sums.get(bound, 0) + sign * value
    return sorted(sums.items())


def p99(labels):
    """In ms, interpolated within a bucket as by Prometheus' histogram_quantile."""
    wanted = 0.99 * labels[-1][1]
    lower, fewer = 0.0, 0
    for bound, count in labels:
        if count >= wanted and count > fewer:
            share = (wanted - fewer) / (count - fewer)
            return 1000 * (lower + share * (bound - lower)) if bound < float("inf") else bound
        lower, fewer = bound, count
    raise Failure("no labels in a minute")


def within_goal(labels):
    """Of the labels those not later than GOAL_S, %."""
    return 100 * dict(labels)[GOAL_S] / max(1, labels[-1][1])


def soak(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        half = half_load(lab, scratch)
        fenxi = Inline(lab, scratch, cpu=None)
        load = lab.start(
            "left", [BLAST, "g0", load_capture(), half, 86_400, ROUNDS_PER_FLOW], CPU_LOAD
        )
        say(
            f"soak at {half:,.0f} packets/s: {WARM_UP_S} s to warm up, then "
            f"{arguments.minutes:g} minutes"
        )
        time.sleep(WARM_UP_S)
        rss, late, in_time, off, before = [fenxi.rss_kib()], [], [], 0, fenxi.metrics()
        began, first = time.monotonic(), before
        while time.monotonic() < began + 60 * arguments.minutes:
            time.sleep(min(60, 60 * arguments.minutes))
            now = fenxi.metrics()
            labels = new_labels(before, now)
            late.append(p99(labels))
            in_time.append(within_goal(labels))
            off, before = max(off, imbalance(now)), now
            rss.append(fenxi.rss_kib())
            say(
                f"soak, minute {len(in_time)}: RSS {rss[-1] / 1024:.1f} MiB, labels p99 "
                f"{late[-1]:.1f} ms, within 25 ms {in_time[-1]:.3f} %, off balance {off:g}"
            )
        lab.stop(load, code=None, with_signal=signal.SIGKILL)
        packets = fenxi.sum("fenxi_port_packets_total", now) - fenxi.sum(
            "fenxi_port_packets_total", first
        )
        dropped = fenxi.sum("fenxi_port_dropped_packets_total", now) - fenxi.sum(
            "fenxi_port_dropped_packets_total", first
        )
        fenxi.end()
    report.add("soak: packets", packets, "packets")
    report.add("soak: dropped by the kernel", dropped, "packets")
    report.add("soak: RSS, growth", growth(rss), "%", 1.0, most=True)
    report.add("soak: balance, farthest from 0", off, "packets or flows", 0, most=True)
    report.add("soak: time to label, p99, median minute", statistics.median(late), "ms")
    report.add("soak: time to label, p99, worst minute", max(late), "ms")
    report.add("soak: labels within 25 ms, median minute", statistics.median(in_time), "%")
    report.add("soak: labels within 25 ms, worst minute", min(in_time), "%", 99.0)


def changes(report, arguments, what, request, config=None):
    """`request` makes the n-th request; `config` is the run's configuration file, if any."""
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        more = [] if config is None else ["--config", config]
        fenxi = Inline(lab, scratch, *more, cpu=None)
        load = generate(lab, "left", "g0", 20_000, 86_400)
        say(f"{what}: {FLOWS_SETTLE_S} s to warm up")
        time.sleep(FLOWS_SETTLE_S)
        rss, refused, slowest = [], [], 0.0
        for number in range(arguments.times):
            began = time.monotonic()
            reply = request(fenxi, number)
            slowest = max(slowest, time.monotonic() - began)
            if reply.get("code") != 200:
                refused.append(reply)
            rss.append(fenxi.rss_kib())
            if (number + 1) % max(1, arguments.times // 10) == 0:
                say(
                    f"{what}: {number + 1} of {arguments.times}, refused {len(refused)}, RSS "
                    f"{fenxi.rss_kib() / 1024:.1f} MiB"
                )
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
    report.add(
        f"{what}: series without a label",
        sum(value for name, value in metrics.items() if name.startswith("fenxi_series_lost_total")),
        "series",
        0,
        most=True,
    )
    report.add(f"{what}: balance, from 0", off, "packets or flows", 0, most=True)
    report.add(f"{what}: the slowest answer", 1000 * slowest, "ms")


def reloads(report, arguments):
    """Each one changes a timeout and a class's DSCP, to and fro."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:

        def write(number):
            file.seek(0)
            file.truncate()
            file.write(
                f"[flow]\nidle_timeout_s = {30 - number % 2}\n[tag.dscp]\nTLS = {10 + number % 2}\n"
            )
            file.flush()

        def reload(fenxi, number):
            write(number + 1)
            reply = fenxi.command(command="reload")
            applied = reply.get("reloaded", {}).get("applied", [])
            if reply.get("code") == 200 and not {"flow.idle_timeout_s", "tag.dscp.TLS"} <= {
                key["key"] for key in applied
            }:
                raise Failure(f"a reload did not apply what had changed: {reply}")
            return reply

        write(0)
        changes(report, arguments, "reloads", reload, file.name)


def swaps(report, arguments):
    model = str(ROOT / "models" / "app-id-k10")
    changes(
        report, arguments, "swaps", lambda fenxi, _: fenxi.command(command="model_load", dir=model)
    )
