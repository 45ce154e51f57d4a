"""Figures of Aquarius (Yao, Desmouceaux, Cordero-Fuertes, Townsley, Clausen, 2022)."""

import csv
import re
import shutil
import statistics
from datetime import date

from ..report import ROOT, Failure, Skip, output_of
from .run import Figure, Outcome, values

# Cycles of a data packet against a router that collects nothing (Table III).
PAPERS = {"default": 2.748, "all": 4.516}
MEMORY = "shared memory"
PROBED_US = 94.18  # longer than from shared memory, median (Fig. 13)
LEARNED, OTHERS = "score", ["ecmp", "static", "leastconn"]


def table3(run):
    if not shutil.which("valgrind"):
        raise Skip("the program valgrind")
    built = run.args.programs / "instructions"
    program = ["--program", built] if built.exists() else []
    text = output_of(ROOT / "scripts" / "measure" / "instructions", "--measure", *program)
    run.commands.append("scripts/measure/instructions --measure")
    pattern = r"([\d.]+) instructions per packet with (\w+) features measured, ([\d.]+) with none"
    found = re.findall(pattern, text)
    if len(found) != len(PAPERS):
        raise Failure(f"scripts/measure/instructions --measure printed {text!r}")
    rows = [["none", float(found[0][2]), 1.0, 1.0]]
    for on, name, off in found:
        rows.append([name, float(on), float(on) / float(off), PAPERS[name]])
    ratios = [f"{name} features {ratio:.2f} (paper: {of})" for name, _, ratio, of in rows[1:]]
    told = ", ".join(ratios)
    why = (
        f"Instructions per packet against none: {told}. The paper counts cycles of 11 and 73 "
        "features; its bars are of data packets."
    )
    columns = ["features", "instructions", "by_none", "paper_cycles_by_none"]
    bars = {name: instructions for name, instructions, *_ in rows}
    holds = all(ratio <= of for _, _, ratio, of in rows)
    return Outcome(columns, rows, holds, why, bars=bars, y="instructions per packet")


def fig13(run):
    told = run.lab("probes", 20)
    lines = {line: values(told, line) for line in told if not line.endswith(", p99")}
    rows = [
        [line, servers, us, told[f"{line}, p99"][servers]["value"]]
        for line, points in lines.items()
        for servers, us in points
    ]
    memory = dict(lines[MEMORY])
    longer = {
        line: [us - memory[servers] for servers, us in points]
        for line, points in lines.items()
        if line != MEMORY
    }
    listed = lambda numbers, digits: ", ".join(f"{it:.{digits}f}" for it in numbers)
    told_longer = "; ".join(f"{line} {listed(of, 0)}" for line, of in longer.items())
    why = (
        f"The figures of {listed(memory, 0)} servers take {listed(memory.values(), 1)} µs from "
        f"shared memory, median. Probes take so much longer, µs: {told_longer} (paper: at least "
        f"{PROBED_US}). The servers are idle threads behind loopback ports, so what a network or "
        "work would add is missing."
    )
    holds = all(us > 0 for of in longer.values() for us in of)
    columns = ["way", "servers", "us_p50", "us_p99"]
    axes = ("servers", "µs to get all figures, median")
    return Outcome(columns, rows, holds, why, lines, *axes)


def fig14(run):
    path = run.args.balance
    if path is None:
        raise Skip("--balance FILE, which `sudo examples/services/run balance` writes")
    with open(path, newline="") as file:
        told = list(csv.DictReader(file))
    run.commands.append("examples/services/run balance fenxi --loads 95    # writes the table")
    p90 = {}
    for row in told:
        p90.setdefault(row["balancer"], {})[row["run"]] = float(row["p90_ms"])
    shares = {
        name: statistics.median(p90[name][run] / ms for run, ms in p90[LEARNED].items())
        for name in OTHERS
    }
    told_ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in shares.items())
    why = (
        f"90th percentile of the completion time against `{LEARNED}`, which learns the servers' "
        f"speeds, median of {len(p90[LEARNED])} runs on an idle machine: {told_ratios} (paper, at "
        "its trace's peak: 18.2 for ECMP, 8.6 with weights)."
    )
    if shares["leastconn"] < 1:
        why += " `leastconn`, which sees each connection end, is still ahead."
    bars = {name: statistics.median(of.values()) for name, of in p90.items()}
    return Outcome(
        list(told[0]),
        [list(row.values()) for row in told],
        shares["ecmp"] > 1 and shares["static"] > 1,
        why,
        bars=bars,
        y="90th percentile of the completion time, ms, median of runs",
        day=date.fromtimestamp(path.stat().st_mtime),
    )


FIGURES = [
    Figure(
        "aquarius-table3",
        "Aquarius, Table III: cost of features per packet",
        "Collecting features of servers costs a few times as much per packet as collecting none, "
        "and more with more features.",
        "counts",
        table3,
    ),
    Figure(
        "aquarius-fig13",
        "Aquarius, Fig. 13: reading features, and probing for them",
        "Features in shared memory are read sooner than any probe answers.",
        "real time",
        fig13,
    ),
    Figure(
        "aquarius-fig14",
        "Aquarius, Fig. 14: completion times by balancer",
        "A balancer that learns from features in shared memory completes requests sooner than "
        "hashing and than fixed weights, most of all in the tail.",
        "earlier run",
        fig14,
    ),
]
