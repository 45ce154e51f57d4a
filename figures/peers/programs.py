"""`fenxi replay` beside other programs that read a capture, by CPU time."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from ..report import ROOT, TARGET, Failure, Skip, output_of, ratio, say
from .environment import PEERS, environment

MAKE_MIX = ROOT.parent / "shared" / "data" / "mix" / "make_mix.py"
# How many times ours, at least.
BARS = {"ndpiReader": 12, "nfstream": 55, "tcpdump": 0.9}


def capture_of(path):
    if path is not None:
        if not path.is_file():
            raise Failure(f"{path}: no such file")
        return path
    path = TARGET / "peers-load.pcap"
    if not path.exists():
        if not MAKE_MIX.exists():
            raise Skip("no load capture; --capture takes any")
        say("making the load capture")
        scratch = path.with_suffix(".part")
        output_of(sys.executable, MAKE_MIX, scratch)
        scratch.replace(path)
    return path


def fenxi():
    program = TARGET / "release" / "fenxi"
    if not program.exists():
        raise Failure(f"{program} is not there: make build")
    return program, output_of(program, "--version").split()[-1]


def installed(program, package):
    if not shutil.which(program):
        raise Skip(f"not installed (Debian: {package})")
    usage = subprocess.run(
        [program, "-h"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout
    return program, re.search(r"\d[\d.]*\d", usage).group()


def replay(capture, *more):
    return ["replay", capture, "--speed", "max", "--json", *more]


FLOWS_MOST = 1 << 20  # of softflowd: more than there are, so that none is forced out

# Name: what finds the program and its version, and what its arguments are. Ours are the first.
# The first runs the shipped model, which answers each flow up to five times; the others one that
# answers once, after ten packets.
OURS = ["fenxi", "fenxi k10", "fenxi k10 int8"]
PROGRAMS = {
    "fenxi": (fenxi, replay),
    "fenxi k10": (
        fenxi,
        lambda capture: replay(capture, "--model", ROOT / "models" / "app-id-k10"),
    ),
    "fenxi k10 int8": (
        fenxi,
        lambda capture: replay(capture, "--model", ROOT / "models" / "app-id-k10-int8"),
    ),
    "ndpiReader": (lambda: installed("ndpiReader", "libndpi-bin"), lambda capture: ["-i", capture]),
    "softflowd": (
        lambda: installed("softflowd", "softflowd"),
        lambda capture: ["-r", capture, "-d", "-6", "-m", str(FLOWS_MOST)],
    ),
    "nfstream": (
        lambda: environment("nfstream", "nfstream"),
        lambda capture: [PEERS / "nfstream_flows.py", capture],
    ),
    "tcpdump": (
        lambda: installed("tcpdump", "tcpdump"),
        lambda capture: ["-r", capture, "-w", "/dev/null"],
    ),
}


def timed(name, command):
    """Wall seconds, and CPU seconds of the process and the children it waited for."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        raise
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failure(f"{name} ended with code {process.returncode}: {' '.join(map(str, command))}")
    return wall, usage.ru_utime + usage.ru_stime


def bench_programs(report, arguments):
    capture = capture_of(arguments.capture)
    commands = {}
    for name, (find, arguments_of) in PROGRAMS.items():
        try:
            program, report.versions[name] = find()
            commands[name] = [program, *arguments_of(capture)]
        except Skip as skip:
            report.skip(name, skip)
    packets = json.loads(output_of(*commands["fenxi"]))[
        "packets"
    ]  # and the capture is in the page cache
    report.add("programs: capture", packets, "packets")
    taken = {name: [] for name in commands}
    for number in range(1, arguments.rounds + 1):
        for name, command in commands.items():
            say(f"round {number} of {arguments.rounds}: {name}")
            taken[name].append(timed(name, command))
    for name, rounds in taken.items():
        report.add(f"programs: {name}, wall", statistics.median(wall for wall, _ in rounds), "s")
        cpu = statistics.median(cpu for _, cpu in rounds)
        report.add(f"programs: {name}, CPU", cpu, "s")
        report.add(f"programs: {name}", packets / cpu / 1e6, "M packets/CPU-s")
    for name, rounds in taken.items():
        for our in (
            OURS[: OURS.index(name)] if name in OURS else OURS
        ):  # ours once, with those before
            times = ratio(*([cpu for _, cpu in side] for side in (rounds, taken[our])))
            bar = BARS.get(name) if our == "fenxi" else None
            report.add(f"programs: {name} by {our}, CPU", times, "times", bar)
