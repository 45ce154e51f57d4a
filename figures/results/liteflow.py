"""Figures of LiteFlow (Zhang et al., SIGCOMM 2022)."""

import csv
import json
import resource
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from ..report import ROOT, TARGET, Skip, output_of, ratio
from .batching import mix
from .run import Figure, Outcome

LEARNS, STATIC = "learning", ["static, memory learns", "static, memory stands", "static, no memory"]
PYTHON = TARGET / "train-venv" / "bin" / "python"
VOLUME = ROOT / "scripts" / "measure" / "volume"
FLOWS_PER_S, SAMPLED_PER_S, SPEED = 2000, 8000, "2x"  # flows/s, before the speed
INTERVALS_MS = [100, 300, 1000]
SHARES = [0.1, 1.0]
DEARER = 1.12  # CPU time against no samples; the paper's 14.1 % against 12.6 %
SWAPS_MS = [1000, 100]
LATER = 1.1  # time to label, against no swaps
PAPER = (2.0, 3.7)  # times the latency in the kernel: a character device, netlink


def fig12(run):
    if run.args.volume is None:
        raise Skip("--volume FLOWS.jsonl.gz, the table of flows of scripts/measure/volume")
    if not PYTHON.exists():
        raise Skip("target/train-venv, which models/train/run.sh --help makes")
    text = output_of(PYTHON, VOLUME, run.args.volume, "hours")
    run.commands.append("scripts/measure/volume FLOWS hours")
    columns, *rows = csv.reader(text.splitlines())
    scores = {name: [float(row[at]) for row in rows] for at, name in enumerate(columns) if at > 2}
    means = {name: statistics.mean(of) for name, of in scores.items()}
    hours = [float(row[0]) for row in rows]
    places = [row[1] for row in rows]
    moved = [at for at in range(1, len(rows)) if places[at] != places[at - 1]]
    later = {name: statistics.mean(of[moved[0] if moved else 0 :]) for name, of in scores.items()}
    told = lambda shares: "; ".join(f"{it} {shares[it]:.2f}" for it in [LEARNS, *STATIC])
    why = (
        "Share of the bytes to come in the 5 % of flows that are ranked highest, mean of windows "
        f"of 10 captures over {hours[-1]:.0f} hours: {told(means)}. From the first of "
        f"{len(moved)} changes of the place on: {told(later)}. A simulation: the trainer's own "
        "features, memory of servers and tuner take the flows of a public set of captures by their "
        "times."
    )
    lines = {name: list(zip(hours, scores[name])) for name in [LEARNS, *STATIC]}
    axes = ("hours of traffic", "share of the bytes to come, 5 % of flows marked")
    holds = all(later[LEARNS] > later[name] for name in STATIC[1:])
    table = [[float(cell) if at != 1 else cell for at, cell in enumerate(row)] for row in rows]
    return Outcome(columns, table, holds, why, lines, *axes, is_log=False)


def read(path, frames):
    """Reads all samples of a replay; notes the length of each frame."""
    with socket.socket(socket.AF_UNIX) as stream:
        while True:
            try:
                stream.connect(str(path))
                break
            except OSError:
                time.sleep(0.02)
        file = stream.makefile("rb")
        while len(head := file.read(4)) == 4:
            frames.append(len(file.read(int.from_bytes(head, "little"))))


def sampled(run, capture, folder, every_ms=None, share=0.0):
    """CPU time of a replay, s, its p99 of the time to label, ms, and frames of samples."""
    keys = {"model.path": "tests/bundles/signed-volume", "flow.idle_timeout_s": 2}
    path, frames, reader = Path(folder) / "learn.sock", [], None
    if every_ms:
        keys |= {"learn.socket": path, "learn.every_ms": every_ms, "learn.share": share}
        reader = threading.Thread(target=read, args=(path, frames), daemon=True)
        reader.start()
    options = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    options = ["replay", "--json", "--speed", SPEED, *options]
    shown = " ".join(["fenxi", *map(str, options), "MIX"]).replace(str(path), "SOCKET")
    run.commands += [shown] if shown not in run.commands else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(output_of(run.args.programs / "fenxi", *options, capture, cwd=ROOT))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if reader:
        reader.join()
        path.unlink(missing_ok=True)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, told["time_to_label_ms"]["p99"], len(frames)


def fig14(run):
    ways = {(share, ms): [] for share in SHARES for ms in INTERVALS_MS}
    none = []
    with mix(run, SAMPLED_PER_S) as capture, tempfile.TemporaryDirectory() as folder:
        for _ in range(2 if run.is_quick else 5):
            none.append(sampled(run, capture, folder))
            for (share, ms), of in ways.items():
                of.append(sampled(run, capture, folder, ms, share))
    rows, lines = [], {f"{share:.0%} of flows": [] for share in SHARES}
    for (share, ms), of in {(0, 0): none, **ways}.items():
        cpu_s, p99_ms, frames = ([it[at] for it in of] for at in range(3))
        against = ratio(cpu_s, [it[0] for it in none])
        rows.append([share, ms, *map(statistics.median, (cpu_s, p99_ms, frames)), against])
        if ms:
            lines[f"{share:.0%} of flows"].append((ms, against))
    columns = ["share", "every_ms", "cpu_s", "p99_ms", "frames", "cpu_against_none"]
    told = "; ".join(
        f"{name}, every {', '.join(str(ms) for ms, _ in of)} ms: "
        + ", ".join(f"{times:.2f}" for _, times in of)
        for name, of in lines.items()
    )
    most = max(times for _, times in next(iter(lines.values())))
    why = (
        f"CPU time of the process against no samples, medians of {len(none)} rounds: {told} (bar "
        f"{DEARER}, the paper's share of soft interrupts against none; fenxi takes no other "
        "intervals). A reader takes all samples of a replay at twice the speed."
    )
    axes = ("learn.every_ms", "CPU time, against no samples")
    return Outcome(columns, rows, most <= DEARER, why, lines, *axes)


def swapped(run, capture, every_ms=None):
    """Swaps of a replay, series that got no label, and the time to label, ms."""
    model = "models/app-id-k10"
    options = ["replay", "--json", "--speed", SPEED, "--model", model]
    options += ["--swap-model", model, "--swap-every", str(every_ms)] if every_ms else []
    shown = " ".join(["fenxi", *options, "MIX"])
    run.commands += [shown] if shown not in run.commands else []
    told = json.loads(output_of(run.args.programs / "fenxi", *options, capture, cwd=ROOT))
    times, series = told["time_to_label_ms"], told["series"]
    lost = series["shed"] + series["failed"]
    return told["swaps"]["done"], series["emitted"], lost, times["p50"], times["p99"], times["max"]


def fig9(run):
    ways = {every_ms: [] for every_ms in [None, *SWAPS_MS]}
    with mix(run, FLOWS_PER_S) as capture:
        for _ in range(3 if run.is_quick else 5):
            for every_ms, of in ways.items():
                of.append(swapped(run, capture, every_ms))
    columns = ["every_ms", "swaps", "series", "unlabelled", "p50_ms", "p99_ms", "max_ms"]
    rows, later = [], {}
    for every_ms, of in ways.items():
        counts = [sum(it[at] for it in of) for at in range(3)]
        times = [statistics.median(it[at] for it in of) for at in range(3, 6)]
        rows.append([every_ms or "none", *counts, *times])
        if every_ms:
            later[every_ms] = ratio([it[4] for it in of], [it[4] for it in ways[None]])
    swaps, lost = (sum(row[at] for row in rows) for at in (1, 3))
    told = ", ".join(f"every {ms} ms {times:.2f}" for ms, times in later.items())
    why = (
        f"In {swaps} swaps of the model under traffic at twice its speed, {lost} of "
        f"{sum(row[2] for row in rows)} series stay without a label. The 99th percentile of the "
        f"time to label against none: {told} (bar {LATER}). `figures live swaps` does it live, as "
        "root."
    )
    bars = {f"swaps every {row[0]} ms": row[5] for row in rows[1:]} | {"no swaps": rows[0][5]}
    holds = not lost and swaps > 0 and max(later.values()) <= LATER
    return Outcome(columns, rows, holds, why, bars=bars, y="time to label, p99, ms")


def fig15(run):
    """Each model in the engine, in the kernel, and in another process that is asked."""
    told = run.lab("inference", 20)
    us = lambda line: told[line][None]["value"] / 1e3 if line in told else None
    ending = ", times the engine"
    lines = [line.removesuffix(ending) for line in told if line.endswith(ending)]
    rows = [[*line.split(", "), us(line), us(f"{line}, p99")] for line in lines]
    means = {(model, place): mean for model, place, mean, _ in rows}
    asked = {key: mean for key, mean in means.items() if key[1].startswith("other process")}
    places = [place for place in ("kernel", "engine") if place in {it for _, it in means}]
    against = {
        place: [mean / means[model, place] for (model, _), mean in asked.items()]
        for place in places
    }
    ratios = "; ".join(
        f"{place} {min(of):.1f} to {max(of):.1f}" for place, of in against.items()
    )
    why = (
        "Latency in another process, which sleeps or polls until it is asked over a Unix socket, "
        f"against that in the {ratios} times (paper: kernel "
        f"{PAPER[0]} and {PAPER[1]}, by a character device and by netlink)."
    )
    why += "" if "kernel" in places else " The kernel takes a network from root only."
    bars = {f"{model}, {place}": mean for (model, place), mean in means.items()}
    columns = ["model", "place", "us_mean", "us_p99"]
    holds = all(min(of) > 1 for of in against.values())
    return Outcome(columns, rows, holds, why, bars=bars, y="µs an inference, mean")


FIGURES = [
    Figure(
        "liteflow-fig9",
        "LiteFlow, Fig. 9: swaps of the network",
        "A new network is made ready beside the old one, so that a swap interrupts nothing.",
        "real time",
        fig9,
    ),
    Figure(
        "liteflow-fig12",
        "LiteFlow, Fig. 12: learning over hours",
        "A model that stays as it was trained falls off when its environment changes; one that "
        "learns on adapts.",
        "virtual time",
        fig12,
    ),
    Figure(
        "liteflow-fig14",
        "LiteFlow, Fig. 14: overhead by interval of batches",
        "With a batch of samples every 100 to 1,000 ms, learning costs hardly more CPU time than "
        "none.",
        "real time",
        fig14,
    ),
    Figure(
        "liteflow-fig15",
        "LiteFlow, Fig. 15: latency of one inference",
        "A small network that runs where its input arises answers sooner than one that is asked "
        "in another place.",
        "real time",
        fig15,
    ),
]
