"""Device time and delay of three models that share one core, by how their batches are planned.

Replays the beginning of CAPTURE (pcap, not compressed) with its own arrivals, so much of it and at
such a pace that all tasks together get --rate series a second (37,300, FENXI's rate) for --seconds
(8). All plans get the same packets. A capture of fenxi-lab generate has arrivals of a Poisson
process.

Tasks: protocol after 3 elements with data, device after 10, and large for what protocol is not sure
of; their goals are 2, 20 and 50 ms. Plans take turns: a goal for each task; the same with batches
all or nothing (on-off); and one policy for all tasks: the strictest goal, carry-over as a
configuration has it by default, a timeout of 1 ms, full batches, no batches. A plan that misses a
goal does not do the same work, so it has no bar.

Figures are medians over --rounds (5); ratios are medians of those within a round. Profiles of the
devices are measured once, before the clock starts. Close other programs.
"""

import array
import json
import pathlib
import shutil
import statistics
import struct
import tempfile

from .report import ROOT, TARGET, Failure, Parser, Report, output_of, ratio, say

GOALS_MS = {"protocol": 2, "device": 20, "large": 50}
CONFIG = """
[flow]
max_flows = 1000000
[accel]
profiles = "{profiles}"
[[task]]
name = "protocol"
model = "{root}/models/protocol"
depths = [3]
[[task]]
name = "device"
model = "{root}/models/iot-family"
depths = [10]
[[task]]
name = "large"
model = "{root}/models/app-id-k10"
when = "protocol.confidence < 0.9"
"""


def each(*settings):
    return [f"task.{task}.{setting}" for task in GOALS_MS for setting in settings]


def own_goals(policy):
    return each(f"policy={policy}") + [
        f"task.{task}.latency_goal_ms={goal}" for task, goal in GOALS_MS.items()
    ]


OWN = "a goal for each task"
PLANS = {
    OWN: own_goals("slo"),
    "a goal for each task, batches all or nothing": own_goals("on-off"),
    "the strictest goal for all": each("policy=slo", f"latency_goal_ms={min(GOALS_MS.values())}"),
    "carry-over for all, the default": each("policy=carry-over"),
    "a timeout of 1 ms for all": each("policy=timeout", "timeout_ms=1"),
    "full batches for all": each("policy=max"),
    "no batches": each("policy=none"),
}
GAIN = 1.5  # how many times the device time of a goal for each task the others take, at least
TRIES, NEAR = 8, 0.03  # to find the pace, and how near the rate has to be
BEHIND = 0.05  # how much longer than its packets a run may take, without its start
PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e9),
    b"\xa1\xb2\xc3\xd4": (">", 1e6),
    b"\xa1\xb2\x3c\x4d": (">", 1e9),
}


class Capture:
    """A capture file that can be cut after a time."""

    def __init__(self, path):
        self.path = path
        # For each packet: its time since the first, never decreasing, and where it begins.
        self.times, self.offsets = array.array("d"), array.array("Q")
        try:
            with open(path, "rb") as file:
                self.read(file)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        if not self.times or self.times[-1] <= 0:
            raise Failure(f"{path}: no packets, or all at one time")

    def read(self, file):
        kind = PCAP.get(file.read(24)[:4])
        if not kind:
            raise Failure(f"{self.path}: not a pcap file; editcap -F pcap converts others")
        order, per_s = kind
        record, offset, first = struct.Struct(f"{order}IIII"), 24, None
        while len(head := file.read(16)) == 16:
            seconds, part, length, _ = record.unpack(head)
            at = seconds + part / per_s
            first = at if first is None else first
            self.times.append(max(at - first, self.times[-1] if self.times else 0.0))
            self.offsets.append(offset)
            offset += 16 + length
            file.seek(length, 1)

    def cut(self, packets, into):
        """Writes the first packets into a file."""
        left = (
            self.offsets[packets]
            if packets < len(self.offsets)
            else pathlib.Path(self.path).stat().st_size
        )
        with open(self.path, "rb") as file, open(into, "wb") as out:
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                out.write(part)
                left -= len(part)


class Bench:
    """Runs of FENXI in a folder for what they need."""

    def __init__(self, args, folder):
        self.args, self.folder = args, pathlib.Path(folder)
        self.window, self.warm, self.profiles = (
            self.folder / "window.pcap",
            self.folder / "warm",
            self.folder / "profiles",
        )
        self.warm.mkdir()
        self.speed = self.packets = self.start_s = 0

    def replay(self, settings, *options):
        """The summary of a replay of the window with the profiles measured at the beginning."""
        shutil.rmtree(self.profiles, ignore_errors=True)
        shutil.copytree(self.warm, self.profiles)
        return self.replay_with(self.profiles, self.window, settings, *options)

    def replay_with(self, profiles, capture, settings, *options):
        config = self.folder / "config.toml"
        config.write_text(CONFIG.format(root=ROOT, profiles=profiles))
        command = [self.args.fenxi, "replay", capture, "--config", config, "--json", *options]
        command += [part for setting in settings for part in ("--set", setting)]
        return json.loads(output_of(*command))

    def measure_profiles(self, capture):
        """Stores a profile for each task, and finds out how long a start takes with these."""
        first = self.folder / "first.pcap"
        capture.cut(100, first)
        for _ in range(TRIES):
            self.replay_with(self.warm, first, PLANS[OWN])
            if len(list(self.warm.iterdir())) >= len(GOALS_MS):
                break
        else:
            raise Failure(
                "no line fits what batches take on a device (docs/devices.md), so each start "
                "would measure anew; close other programs"
            )
        self.start_s = min(
            self.replay_with(self.warm, first, PLANS[OWN])["wall_s"] for _ in range(3)
        )

    def find_window(self, capture):
        """Chooses how many packets are replayed, and their pace: as many as have the series."""
        wanted, self.packets = self.args.rate * self.args.seconds, len(capture.times)
        for _ in range(TRIES):
            capture.cut(self.packets, self.window)
            found = inferred(self.replay(PLANS["no batches"]))
            if abs(found / wanted - 1) < NEAR:
                return self.set_pace(capture.times[self.packets - 1], found)
            packets = int(self.packets * wanted / max(1, found))
            if not 0 < packets <= len(capture.times):
                break
            self.packets = packets
        raise Failure(
            f"{capture.path}: {found:,} series in {self.packets:,} packets, where "
            f"{wanted:,.0f} are wanted; give a capture with more flows, or another --rate"
        )

    def set_pace(self, length, series):
        self.speed = length / self.args.seconds
        rate = series / self.args.seconds
        pace = f"{length:.1f} s of the capture, at {self.speed:.2f} times its pace"
        say(f"{self.packets:,} packets, {pace}: {rate:,.0f} series/s")

    def run(self, plan):
        """One run of a plan at the pace; by task, with the device time in seconds."""
        summary = self.replay(PLANS[plan], "--speed", f"{self.speed:.6f}x")
        if summary["interrupted"] or summary["packets"] != self.packets:
            raise Failure(
                f"{plan}: {summary['packets']:,} of {self.packets:,} packets were replayed"
            )
        behind = summary["wall_s"] - self.start_s - self.args.seconds
        if behind > BEHIND * self.args.seconds:
            raise Failure(
                f"{plan}: took {behind:.1f} s longer than the packets; close other programs, "
                "or give a lower --rate"
            )
        return {task["name"]: task for task in summary["tasks"]}


def inferred(summary):
    return sum(task["series"]["inferred"] for task in summary["tasks"])


def device_us(run):
    """Device time for each series, µs."""
    busy = sum(device["busy_s"] for task in run.values() for device in task["devices"])
    return 1e6 * busy / max(1, sum(task["series"]["inferred"] for task in run.values()))


def times(rounds, plan):
    """The device time of a plan relative to a goal for each task."""
    return ratio(map(device_us, rounds[plan]), map(device_us, rounds[OWN]))


def p99_ms(runs, task):
    return statistics.median(run[task]["time_to_label_ms"]["p99"] for run in runs)


def missed(runs):
    """The tasks whose goals a plan misses."""
    return [task for task, goal in GOALS_MS.items() if p99_ms(runs, task) > goal]


def judge(report, rounds, seconds):
    for plan, runs in rounds.items():
        report.add(f"{plan}: device", statistics.median(map(device_us, runs)), "µs/series")
        for task, goal in GOALS_MS.items():
            bar = goal if plan == OWN else None
            report.add(f"{plan}, {task}: p99", p99_ms(runs, task), "ms", bar, most=True)
            for name, value, unit in shares(runs, task, seconds):
                report.add(f"{plan}, {task}: {name}", value, unit)
        is_rival = plan in list(PLANS)[2:] and not missed(runs)
        bar = GAIN if is_rival else None
        report.add(f"{plan}: device time by {OWN}", times(rounds, plan), "times", bar)


def shares(runs, task, seconds):
    def median(of):
        return statistics.median(of(run[task]) for run in runs)

    yield "rate", median(lambda it: it["series"]["inferred"]) / seconds, "series/s"
    yield "lost", median(lambda it: it["series"]["shed"] + it["series"]["failed"]), "series"
    batches = median(lambda it: sum(device["batches"] for device in it["devices"]))
    yield "batch", median(lambda it: it["series"]["inferred"]) / max(1, batches), "series"


def parse(arguments):
    parser = Parser(prog="figures tasks", description=__doc__)
    parser.add_argument("capture", metavar="CAPTURE")
    parser.add_argument("--fenxi", type=pathlib.Path, default=TARGET / "release" / "fenxi")
    parser.add_argument("--rate", type=float, default=37_300, help="series per second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(arguments)
    if not (args.rate > 0 and args.rounds > 0 and args.seconds > 0):
        parser.error("--rate, --rounds and --seconds must be above 0")
    return args


def main(arguments):
    args = parse(arguments)
    report, capture = Report("tasks"), Capture(args.capture)
    with tempfile.TemporaryDirectory(prefix="figures-tasks-") as folder:
        bench = Bench(args, folder)
        bench.measure_profiles(capture)
        bench.find_window(capture)
        rounds = {plan: [] for plan in PLANS}
        for _ in range(args.rounds):
            for plan, runs in rounds.items():
                runs.append(bench.run(plan))
    judge(report, rounds, args.seconds)
    print(report.as_json()) if args.json else report.print()
