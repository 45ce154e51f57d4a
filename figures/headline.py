"""The headline: how many links one core and two carry, and ratios to what the machine can do.

All sections take turns, repetition by repetition; `dpdk`, `xdp` and `first` have turns of their
own. Each row is the median of the repetitions, with the least and the greatest. A section whose
tool, memory or rights are missing is skipped by name.
"""

import csv
import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from .peers.programs import capture_of
from .report import ROOT, TARGET, Failure, Parser, Skip, machine, output_of, say
from .report import field as line_of
from .results import FIGURES, page

RATIOS = ("ratio", "x", "times", "share")
# GiB that must be free, and what to do without.
LARGE, MIDDLE, LINKS = 14, 8, 7
# Links by which the search proceeds, and to which it goes at most.
STEP, QUICK_STEP, MOST = 0.05, 0.1, 8
CORES = {1: "one core", 2: "two cores"}
LINK_BARS = {1: 1.0, 2: 1.5}
LABEL_BAR_MS = 10
PROBE = 0.5  # links of each core
HALF = {1: "half a link", 2: "one link"}


@dataclass
class Row:
    unit: str
    bar: float | None
    values: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)

    def told(self, name):
        spread = {"least": min(self.values), "greatest": max(self.values)}
        spread["repetitions"] = len(self.values)
        return told(name, statistics.median(self.values), self.unit, self.bar, self.holds, spread)

    @property
    def holds(self):
        if self.bar is None:
            return None
        # Each repetition was judged, which shows whether the bar is the least or the most.
        is_least = (self.values[0] >= self.bar) == self.verdicts[0]
        median = statistics.median(self.values)
        return median >= self.bar if is_least else median <= self.bar


def told(name, value, unit, bar, holds, spread):
    row = {"name": name, "value": value, "unit": unit, "bar": bar, "holds": holds, **spread}
    return {key: float(f"{it:.4g}") if isinstance(it, float) else it for key, it in row.items()}


class Run:
    def __init__(self, args):
        self.args, self.rows, self.live, self.skipped, self.commands = args, {}, [], {}, []
        self.failed, self.first_losses, self.walk_options = [], {}, None

    def take(self, name):
        """A section once, unless it was skipped or has failed."""
        if name in self.skipped or name in self.failed:
            return
        try:
            SECTIONS[name](self)
        except Skip as skip:
            self.skipped[name] = str(skip)
        except Failure as failure:
            say(f"{name}: {failure}")
            self.failed.append(name)

    def report(self, here):
        return {
            "date": date.today().isoformat(),
            "machine": here,
            "quick": self.args.quick,
            "commands": self.commands,
            "skipped": self.skipped,
            "reason": reason(self.rows),
            "rows": [row.told(name) for name, row in self.rows.items()] + self.live,
        }

    def add(self, name, value, unit, bar=None, holds=None):
        row = self.rows.setdefault(name, Row(unit, bar))
        row.values.append(value)
        row.verdicts.append(holds)

    def lab(self, bench, options, more=(), shown=""):
        """Results of a bench, by name; `shown` stands for the options `more` in the command."""
        options = [*map(str, options)]
        self.show(" ".join(["fenxi-lab", "bench", bench, *options, shown]).rstrip())
        program = self.args.programs / "fenxi-lab"
        options += map(str, more)
        text = output_of(program, "bench", bench, "--json", *options, cwd=ROOT)
        return {result["name"]: result for result in json.loads(text)["results"]}

    def show(self, command):
        if command not in self.commands:
            self.commands.append(command)

    def capture(self):
        return capture_of(self.args.capture)


def free_gib():
    return int(line_of("/proc/meminfo", "MemAvailable").split()[0]) / (1 << 20)


# The walk.


def walk(run):
    # The same in all repetitions, however much memory is free then.
    run.walk_options = run.walk_options or walk_options(run)
    for name, result in run.lab("walk", run.walk_options).items():
        run.add(name, result["value"], result["unit"], result["bar"], result["holds"])


def walk_options(run):
    options, free = ["--seconds", 4], free_gib()
    if free < MIDDLE:
        run.skipped["4 and 12 M flows"] = f"needs {MIDDLE} GiB of free memory"
        return options
    options += ["--entries", 1 << 23]
    if free < LARGE:
        run.skipped["12 M flows"] = f"needs {LARGE} GiB of free memory"
        return options
    return [*options, "--flows", f"1024,{12 << 20}"]


def reason(rows):
    """Where the time of a packet goes, which says why the walk is where it is."""
    uniform = [name for name in rows if name.startswith("uniform, flows")]
    if not uniform:
        return ""
    flows = {int(name.rpartition(" ")[2]): statistics.median(rows[name].values) for name in uniform}
    ns = {count: 1e3 / mpps for count, mpps in flows.items()}
    names = ("in a cache", "bound, two lines each")
    cached, bound = (1e3 / statistics.median(rows[name].values) for name in names)
    few, *others = sorted(ns)
    half = others[0] if others else few
    shown = ", ".join(f"{ns[count]:.0f} with {count:,}" for count in sorted(ns))
    return (
        f"A packet takes {cached:.0f} ns with everything in a core's cache, which is the time of "
        f"its instructions, and by number of flows {shown}; its two lines alone could be read in "
        f"{bound:.1f} ns. So instructions are {cached / ns[half]:.0%} of the walk's time with "
        f"{half:,} flows, and even a walk that never waited for memory would reach "
        f"{bound / cached:.2f} of the bound."
    )


# Rules, and links.


def rules(run):
    options = ["--seconds", 4, "--entries", 1 << 20]
    options += ["--sizes", 500_000] if run.args.quick else []
    of_capture = (["--capture", run.capture()], "--capture MIX.pcap")
    for name, result in run.lab("policy-walk", options, *of_capture).items():
        if result["unit"] in RATIOS and "against none" in name:
            run.add(name, result["value"], result["unit"], result["bar"], result["holds"])


def of_links(run, workers, share):
    options = ["--workers", workers, "--model", "models/protocol", "--seconds", 4]
    more = ["--links", f"{share:g}", "--capture", run.capture()]
    return run.lab("headline", options, more, "--links LINKS --capture MIX.pcap")


def links(run):
    if free_gib() < LINKS:
        raise Skip(f"needs {LINKS} GiB of free memory")
    for workers, cores in CORES.items():
        if workers > len(os.sched_getaffinity(0)):
            run.skipped[cores] = "needs as many"
            continue
        found = of_links(run, workers, PROBE * workers)
        busy = found["flow worker, busy"]["value"]
        at = f"{cores}, {HALF[workers]}"
        run.add(f"{at}: busy, of a core", busy, "share")
        late = found["series to label, p99"]["value"]
        run.add(f"{at}: series to label, p99", late, "ms", LABEL_BAR_MS, late <= LABEL_BAR_MS)
        near = run.first_losses.setdefault(workers, [PROBE * workers / max(busy, 0.01)])
        loss, bar = first_loss(run, workers, statistics.median(near)), LINK_BARS[workers]
        near.append(loss)
        most = loss - step_of(run)
        run.add(f"{cores}: most without loss", most, "links", bar, most >= bar)


def step_of(run):
    return QUICK_STEP if run.args.quick else STEP


def first_loss(run, workers, near):
    """The least number of links, in steps, of which packets are lost."""
    step = step_of(run)

    def is_lossy(steps):
        lost = of_links(run, workers, steps * step)["packets lost, all turns"]["value"]
        say(f"{CORES[workers]}, {steps * step:.2f} links: {lost:,.0f} packets lost")
        return lost > 0

    steps = max(1, round(near / step))
    if is_lossy(steps):
        while steps > 1 and is_lossy(steps - 1):
            steps -= 1
    else:
        steps += 1
        while steps * step < MOST and not is_lossy(steps):
            steps += 1
    return steps * step


# Live, and DPDK.


def live(run, command, keep, more=()):
    """The ratios of another bench of ours that begin with `keep`."""
    rounds, seconds = (2, 1) if run.args.quick else (run.args.repetitions, 3)
    command = [*command, "--rounds", str(rounds), "--seconds", str(seconds)]
    run.show(f"python3 -m figures {' '.join(command)}")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(run.args.programs.parent)}
    command = [sys.executable, "-m", "figures", *command, *more, "--json"]
    report = json.loads(output_of(*command, cwd=ROOT, env=environment))
    run.skipped |= report["skipped"]
    for it in report["results"]:
        if "least" in it and it["name"].startswith(keep):
            run.live.append(it)


def dpdk(run):
    program = run.args.programs.parent / "dpdk" / "fenxi"
    if not shutil.which("dpdk-testpmd") or not program.exists():
        raise Skip("needs dpdk-testpmd (Debian: dpdk-dev) and `make dpdk`")
    live(run, ["dpdk"], "dpdk: fenxi by testpmd", ["--fenxi", str(program)])


def xdp(run):
    need_namespaces(run)
    live(run, ["live", "xdp"], "xdp: fenxi, af_xdp by bare, af_xdp")


def first(run):
    need_namespaces(run)
    if run.args.quick:
        raise Skip("--quick leaves it out")
    live(run, ["live", "first"], "first, flows of")


def need_namespaces(run):
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Skip("needs root and ip (Debian: iproute2)")
    if not (run.args.programs / "examples" / "xdp_forward").exists():
        raise Skip("needs cargo build --release -p packetio --examples")


IN_TURNS = {"walk": walk, "rules": rules, "links": links}
APART = {"dpdk": dpdk, "xdp": xdp, "first": first}
SECTIONS = IN_TURNS | APART


def parse(arguments):
    parser = Parser(prog="figures headline", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="in less than 5 minutes on two cores")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS)
    )
    parser.add_argument("--repetitions", type=int, metavar="N", help="5; with --quick 3, of links 1")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    parser.add_argument("--programs", type=Path, default=TARGET / "release", metavar="DIR")
    parser.add_argument("--capture", type=Path, metavar="FILE", help="other than the load mix")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="headline.json of another run to agree with"
    )
    args = parser.parse_args(arguments)
    if args.only and args.out == parser.get_default("out"):
        parser.error("--only needs --out DIR, because docs/results has whole runs")
    args.repetitions = args.repetitions or (3 if args.quick else 5)
    args.programs = args.programs.resolve()
    args.capture = args.capture and args.capture.resolve()
    return args


def main(arguments):
    args = parse(arguments)
    if not (args.programs / "fenxi-lab").exists():
        raise Failure(f"{args.programs / 'fenxi-lab'} is not there: make build")
    run, here = Run(args), machine()
    asked = [name for name in SECTIONS if not args.only or name in args.only]
    for number in range(args.repetitions):
        say(f"repetition {number + 1} of {args.repetitions}")
        for name in asked:
            # The longest section.
            is_enough = name == "links" and args.quick and number > 0
            if name in IN_TURNS and not is_enough:
                run.take(name)
        store(args.out, run.report(here))  # if what follows is cut off
    for name in asked:
        if name in APART:
            say(name)
            run.take(name)
    report = run.report(here)
    for row in report["rows"]:
        print(shown(row))
    for name, why in run.skipped.items():
        print(f"SKIPPED {name}: {why}")
    print(report["reason"])
    if args.against:
        compare(report["rows"], json.loads(args.against.read_text())["rows"])
    store(args.out, report)
    if run.failed:
        raise Failure(f"failed: {', '.join(run.failed)}")


def shown(row):
    spread = f"{row['least']:g} to {row['greatest']:g}, {row['repetitions']} times"
    line = f"{row['name']:56} {row['value']:>8g} {row['unit']:6} ({spread})"
    if row["bar"] is None:
        return line
    return f"{line}  bar {row['bar']:g}: {'holds' if row['holds'] else 'MISSED'}"


def compare(rows, others):
    """Whether medians lie within the spread of another run, where it has one."""
    repeated = [it for it in others if it["repetitions"] > 1]
    spreads = {it["name"]: (it["least"], it["greatest"]) for it in repeated}
    both = [row for row in rows if row["name"] in spreads]
    outside = [row for row in both if not is_within(row["value"], *spreads[row["name"]])]
    print(f"{len(both) - len(outside)} of {len(both)} medians lie within the other run's spread")
    for row in outside:
        least, greatest = spreads[row["name"]]
        print(f"outside: {row['name']}: {row['value']:g}, there {least:g} to {greatest:g}")


def is_within(value, least, greatest):
    return least <= value <= greatest


def store(out, report):
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "headline.csv", "w", newline="") as file:
        columns = ["name", "value", "least", "greatest", "repetitions", "unit", "bar", "holds"]
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(report["rows"])
    (out / "headline.json").write_text(json.dumps(report, indent=1) + "\n")
    page.write(out, FIGURES)
