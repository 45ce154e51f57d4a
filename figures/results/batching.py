"""Figures of FENXI about batches: replays at the pace of the traffic, with a simulated device.

The device takes 100 µs and 2 µs a series, in batches of 8 to 256 only. A link's rates are scaled
down, so that two cores can replay them. For the use of the device, everything runs as much slower,
and the device does what the paper says of its own: 50 thousand series/s in batches of 64.
"""

import json
import struct
import subprocess
import tempfile
from contextlib import contextmanager

from ..report import ROOT, Failure
from .run import Figure, Outcome

RATES = [500, 1000, 2500]  # flows/s
LOW, PEAK = 500, 3500
SCALE = 40  # about 840 series/s, of a link's 37 thousand
T0_US, T1_US = 640, 10
POLICIES = ["none", "timeout", "carry-over"]
TIMEOUTS_MS = [5, 20, 50]
PHI = 0.2
BUSY = 0.9  # of the time
CALMLY = 1.5  # times as long


@contextmanager
def mix(run, flows_per_s):
    """A capture of so much traffic, cut after its last second."""
    seconds = 6 if run.is_quick else 30
    options = ["--flows-per-s", str(flows_per_s), "--seconds", str(seconds), "--to", "-"]
    shown = f"fenxi-lab generate CAPTURES {' '.join(options)}    # cut after {seconds} s"
    run.commands += [shown] if shown not in run.commands else []
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        command = [run.args.programs / "fenxi-lab", "generate", *run.captures(), *options]
        source = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with source:
            copied = copy(source.stdout, file, seconds)
            source.kill()
        if not copied:
            raise Failure("fenxi-lab generate made no packets")
        file.flush()
        yield file.name


def copy(source, target, seconds):
    """Copies packets of a capture in nanoseconds; returns how many."""
    target.write(source.read(24))
    first, copied = None, 0
    while len(header := source.read(16)) == 16:
        s, ns, length, _ = struct.unpack("<IIII", header)
        first = first or s + ns / 1e9
        if s + ns / 1e9 > first + seconds:
            break
        target.write(header + source.read(length))
        copied += 1
    return copied


def replay(run, capture, policy, timeout_ms, *more):
    settings = [f'analytics.policy="{policy}"', f"analytics.timeout_ms={timeout_ms}", *more]
    fixed = ['accel.devices=["simulated"]', "accel.fixed_sizes=true", f"analytics.phi={PHI}"]
    options = [part for setting in [*settings, *fixed] for part in ("--set", setting)]
    options = ["--json", "--speed", "real", *options]
    shown = f"fenxi replay {' '.join(options)} --model models/app-id-k10 MIX"
    model = ["--model", ROOT / "models" / "app-id-k10"]
    told = json.loads(run.output("fenxi", "replay", *options, *model, capture, shown=shown))
    device, series = told["devices"][0], told["series"]
    rows = device["series"] + device["padding"]
    return {
        "p50_ms": told["time_to_label_ms"]["p50"],
        "p99_ms": told["time_to_label_ms"]["p99"],
        "padding": device["padding"] / rows,
        "batch": rows / device["batches"],
        "device_use": device["busy_s"] / told["wall_s"],
        "post_mortem": series["post_mortem"] / series["emitted"],
        "cached": series["cached"] / series["emitted"],
    }


def table(names, measured):
    """Columns and rows, of figures by what they were measured with."""
    columns = [*names, *next(iter(measured.values()))]
    return columns, [[*key, *of.values()] for key, of in measured.items()]


def lines_of(measured, what, policies):
    """Points by policy, of figures by policy and by a number."""
    of_policy = lambda it: [(x, of[what]) for (own, x), of in measured.items() if own == it]
    return {it: of_policy(it) for it in policies}


def fig8(run):
    measured = {}
    times = {"simulated_t0_us": SCALE * T0_US, "simulated_t1_us": SCALE * T1_US}
    device = [f"accel.{key}={us}" for key, us in times.items()]
    device.append(f"analytics.max_wait_ms={SCALE * 50}")
    for rate in RATES:
        with mix(run, rate) as capture:
            for policy in POLICIES:
                measured[policy, rate] = replay(run, capture, policy, SCALE * 10, *device)
    at_once, waiting, carried = (measured[policy, RATES[0]] for policy in POLICIES)
    least = min(measured["timeout", rate]["padding"] for rate in RATES)
    most = max(measured["carry-over", rate]["padding"] for rate in RATES)
    saved = at_once["device_use"] / waiting["device_use"]
    is_busy = at_once["device_use"] >= BUSY
    why = (
        f"At {RATES[0]} flows/s the device is busy {saved:.1f} times as long without a "
        f"timeout as with one of 10 ms; everything ran {SCALE} times slower. Padding takes at least {least:.0%} of the rows with a timeout alone "
        f"and at most {most:.0%} with carry-over (Φ = {PHI}); at {RATES[0]} flows/s "
        f"{at_once['padding']:.0%}, {waiting['padding']:.0%} and {carried['padding']:.0%}."
    )
    if not is_busy:
        why += f" Missed: without a timeout it is busy {at_once['device_use']:.0%} of the time (90)."
    lines = lines_of(measured, "device_use", POLICIES)
    axes = ("flows/s", "share of time that the device is busy")
    columns, rows = table(["policy", "flows_per_s"], measured)
    holds = is_busy and saved > 1 and most < least
    return Outcome(columns, rows, holds, why, lines, *axes, is_log=False)


def fig10(run):
    policies = POLICIES[1:]
    with mix(run, RATES[-1]) as capture:
        measured = {
            (policy, ms): replay(run, capture, policy, ms)
            for ms in TIMEOUTS_MS
            for policy in policies
        }
    p50 = {it: [measured[it, ms]["p50_ms"] for ms in TIMEOUTS_MS] for it in policies}
    padding = {it: [measured[it, ms]["padding"] for ms in TIMEOUTS_MS] for it in policies}
    is_less = all(ours < theirs for theirs, ours in zip(*padding.values()))
    times = {it: ", ".join(f"{ms:.0f}" for ms in of) for it, of in p50.items()}
    told = "; ".join(f"{it}: {of} ms" for it, of in times.items())
    shares = "; ".join(f"{it}: {min(of):.0%} to {max(of):.0%}" for it, of in padding.items())
    by = ", ".join(map(str, TIMEOUTS_MS))
    why = f"Median time to label by timeout ({by} ms), {told}. Share of padding, {shares}."
    lines = lines_of(measured, "p50_ms", policies)
    axes = ("timeout, ms", "median time to label, ms")
    holds = is_less and all(of == sorted(of) for of in p50.values())
    columns, rows = table(["policy", "timeout_ms"], measured)
    return Outcome(columns, rows, holds, why, lines, *axes, is_log=False)


def fig11(run):
    policies = POLICIES[1:]
    caches = {"no cache": ["cache.prefix=0"], "cache": ["cache.prefix=6", "cache.entries=256"]}
    with mix(run, RATES[-1]) as capture:
        measured = {
            (policy, name): replay(run, capture, policy, 10, *settings)
            for policy in policies
            for name, settings in caches.items()
        }
    p50 = {key: of["p50_ms"] for key, of in measured.items()}
    ratios = {it: p50[it, "cache"] / p50[it, "no cache"] for it in policies}
    told = ", ".join(f"{it} {ratio:.2f}" for it, ratio in ratios.items())
    why = (
        f"Median time to label with a cache by prefixes of 6 against none: {told}; it finds "
        f"{measured['carry-over', 'cache']['cached']:.0%} of the series (paper: 30 %)."
    )
    bars = {", ".join(key): ms for key, ms in p50.items()}
    holds = all(ratio < 1 for ratio in ratios.values())
    columns, rows = table(["policy", "cache"], measured)
    return Outcome(columns, rows, holds, why, bars=bars, y="median time to label, ms")


def fig12(run):
    policies = POLICIES[1:]
    measured = {}
    for phase, rate in enumerate([LOW, PEAK, LOW], 1):
        with mix(run, rate) as capture:
            for policy in policies:
                measured[policy, phase] = replay(run, capture, policy, 10)
    low, peak = ([measured[it, phase] for it in policies] for phase in (1, 2))
    growth = [high["batch"] / of["batch"] for of, high in zip(low, peak)]
    slower = [high["p50_ms"] / of["p50_ms"] for of, high in zip(low, peak)]
    theirs, ours = peak
    why = (
        f"With {PEAK / LOW:g} times the flows, batches are {growth[0]:.1f} (timeout) and "
        f"{growth[1]:.1f} times (carry-over) as large, and the median time to label is "
        f"{slower[0]:.2f} and {slower[1]:.2f} times as long (bar {CALMLY}); padding at the peak is "
        f"{theirs['padding']:.0%} and {ours['padding']:.0%}. Each phase is a replay of its own."
    )
    lines = lines_of(measured, "batch", policies)
    axes = (f"phase: {LOW}, {PEAK}, {LOW} flows/s", "mean batch, with padding")
    holds = min(growth) > 1 and max(slower) <= CALMLY and ours["padding"] < theirs["padding"]
    columns, rows = table(["policy", "phase"], measured)
    return Outcome(columns, rows, holds, why, lines, *axes, is_log=False)


FIGURES = [
    Figure(
        "fenxi-fig8",
        "FENXI, Fig. 8: use of the device by policy",
        "A device that gets batches whenever it is free is nearly always busy, even with few flows, "
        "to a large part with padding; a timeout uses it less; carry-over keeps padding small.",
        "real time",
        fig8,
    ),
    Figure(
        "fenxi-fig10",
        "FENXI, Fig. 10: timeout and carry-over",
        "Shorter timeouts give labels sooner; carry-over has less padding than a timeout alone.",
        "real time",
        fig10,
    ),
    Figure(
        "fenxi-fig11",
        "FENXI, Fig. 11: batches with a cache",
        "With a cache, labels come sooner under either policy.",
        "real time",
        fig11,
    ),
    Figure(
        "fenxi-fig12",
        "FENXI, Fig. 12: a crowd that comes and goes",
        "When seven times the flows arrive, batches grow, the time to label hardly does, and "
        "carry-over still wastes less on padding.",
        "real time",
        fig12,
    ),
]
