"""The figures of a bench: named, judged by their bars, printed as a table or as JSON."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

EX_USAGE = 64
EX_UNAVAILABLE = 69
ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Parser(argparse.ArgumentParser):
    """argparse with the exit status of sysexits."""

    def error(self, message):
        self.exit(EX_USAGE, f"{self.prog}: {message}\n")


class Failure(Exception):
    """What went wrong and what to do about it, in one line."""


class Skip(Exception):
    """What is not there, and where it comes from."""


def say(text):
    print(f"figures: {text}", file=sys.stderr, flush=True)


def output_of(*command, **options):
    run = subprocess.run(command, capture_output=True, text=True, **options)
    if run.returncode != 0:
        last = (run.stderr.strip() or "no message").splitlines()[-1]
        shown = " ".join(map(str, command[:6]))
        if run.returncode == EX_UNAVAILABLE:
            raise Skip(last)
        raise Failure(f"{shown} ended with code {run.returncode}: {last}")
    return run.stdout


def ratios(ours, theirs):
    """The ratios of pairs, which were measured in turn."""
    return [a / b for a, b in zip(ours, theirs)]


def ratio(ours, theirs):
    """Their median."""
    return statistics.median(ratios(ours, theirs))


def field(path, name):
    match = re.search(rf"^{name}\s*:\s*(.*)$", Path(path).read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def machine():
    return {
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int(field("/proc/meminfo", "MemTotal").split()[0]) // 1024,
        "kernel": os.uname().release,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


class Report:
    """The figures of one run, in the order in which they were taken."""

    def __init__(self, bench):
        # Before the bench itself loads the machine.
        self.bench, self.machine = bench, machine()
        self.results, self.versions, self.skipped = [], {}, {}

    def add(self, name, value, unit, bar=None, most=False, judged=True):
        """A value, or the median of a list of repetitions, with their spread. A bar is the least
        that passes, or with `most` the largest.
        """
        spread = {}
        if isinstance(value, list):
            least, greatest = round(min(value), 4), round(max(value), 4)
            spread = {"least": least, "greatest": greatest, "repetitions": len(value)}
            value = statistics.median(value)
        holds = (value <= bar if most else value >= bar) if bar is not None and judged else None
        told = {"name": name, "value": round(value, 4), "unit": unit, "bar": bar, "holds": holds}
        self.results.append(told | spread)

    def skip(self, name, why):
        self.skipped[name] = str(why)
        print(f"SKIPPED {name}: {why}", file=sys.stderr)

    def as_json(self):
        names = ("bench", "machine", "versions", "skipped", "results")
        return json.dumps({name: getattr(self, name) for name in names})

    def print(self):
        here = self.machine
        load = here["load_average"][0]
        print(f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, load {load} at start")
        print("  ".join(f"{name} {version}" for name, version in self.versions.items()))
        width = max((len(result["name"]) for result in self.results), default=0)
        for result in self.results:
            line = f"{result['name']:{width}}  {result['value']:>12,.2f} {result['unit']:16}"
            if "least" in result:
                line += f"({result['least']:,.2f} to {result['greatest']:,.2f}) "
            if result["bar"] is not None:
                verdict = {True: "holds", False: "missed", None: "not judged"}[result["holds"]]
                line += f"bar {result['bar']:g}: {verdict}"
            print(line.rstrip())
