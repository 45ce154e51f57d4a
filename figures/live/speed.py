"""How many packets, and what they cost: forward, tap, scrape, idle."""

import json
import re
import signal
import statistics
import tempfile
import time

from ..report import TARGET, Failure, Skip, output_of, ratios, say
from .lab import FENXI_LAB, FORWARD, Fenxi, Lab, cpu_of, generate, generated, need

BLAST = TARGET / "release" / "examples" / "blast"
LOAD_FLOWS = 400
# So often a flow of the load is sent before there is another: 230 packets per flow, as in FENXI's
# trace.
ROUNDS_PER_FLOW = 17
# The generator, and with it the kernel's receiving side, has the first CPU; who forwards has the
# second.
CPU_LOAD, CPU_FORWARDER = 0, 1
INLINE = [
    "--set",
    "io.mode=inline",
    "--set",
    'io.interfaces=["m0", "m1"]',
    "--set",
    "flow.end_on_fin_rst=false",
]
SETTLE_S = 0.5


def load_capture():
    path = TARGET / "live-load.pcap"
    if not path.exists():
        scratch = path.with_suffix(".part")
        output_of(
            FENXI_LAB,
            "generate",
            "--flows",
            str(LOAD_FLOWS),
            "--pps",
            "100000",
            "--to",
            str(scratch),
        )
        scratch.replace(path)
    return path


def street(lab):
    """left:g0 - middle:m0, middle:m1 - right:s0"""
    lab.host("left", "middle", "right")
    lab.wire("left", "g0", "middle", "m0")
    lab.wire("middle", "m1", "right", "s0")


class Nobody:
    """In the place of a program where the kernel does the work."""

    def __init__(self, lab):
        self.lab = lab
        # Both directions of a flow come from the left, so the bridge must not learn that its
        # destination is there, too.
        lab.run(
            "middle",
            "ip link add br0 type bridge forward_delay 0 && ip link set br0 up && for port in "
            "m0 m1; do "
            "ip link set $port master br0 && ip link set $port type bridge_slave learning "
            "off; done",
        )
        time.sleep(SETTLE_S)

    def cpu(self):
        return 0.0

    def end(self):
        self.lab.run("middle", "ip link del br0")


class Program:
    """A forwarder on the second CPU."""

    def __init__(self, lab, *command):
        self.lab, self.process = lab, lab.start("middle", command, CPU_FORWARDER)
        time.sleep(SETTLE_S)
        if self.process.poll() is not None:
            raise Failure(f"{command[0]} has ended")

    def cpu(self):
        return cpu_of(self.process.pid)

    def end(self):
        self.lab.stop(self.process, code=None)
        time.sleep(SETTLE_S)  # the kernel closes XDP sockets in its own time


class Inline(Fenxi):
    def __init__(self, lab, scratch, *more, cpu=CPU_FORWARDER, **options):
        super().__init__(lab, "middle", *INLINE, *more, cpu=cpu, scratch=scratch, **options)

    def end(self):
        summary = self.summary()
        live = summary["live"]
        if (
            live["received"] != sum(summary["verdicts"].values())
            or live["received"] != live["sent"] + live["unsent"]
        ):
            raise Failure(f"the sums of fenxi do not close: {live}")


def blast(lab, pps, seconds):
    process = lab.start(
        "left", [BLAST, "g0", load_capture(), pps, seconds, ROUNDS_PER_FLOW], CPU_LOAD
    )
    out, _ = process.communicate()
    if process.returncode != 0:
        raise Failure("the load generator failed")
    return json.loads(out)


def pass_through(lab, forwarder, pps, seconds):
    """(offered, forwarded) packets per second, and seconds of CPU per second of the forwarder."""
    before, cpu = lab.counted("right", "s0")[0], forwarder.cpu()
    began = time.monotonic()
    sent = blast(lab, pps, seconds)
    wall = time.monotonic() - began
    time.sleep(0.1)
    forwarded = lab.counted("right", "s0")[0] - before
    return sent["sent"] / sent["wall_s"], forwarded / sent["wall_s"], (forwarder.cpu() - cpu) / wall


def compare(report, arguments, lab, what, sides, pairs):
    """Measures all sides in turn at saturation. `pairs`: two sides, and the bars of the first by
    the second for packets per second and per CPU-second.
    """
    taken = {name: [] for name in sides}
    for number in range(arguments.rounds + 1):  # the first does not count
        for name, start in sides.items():
            side = start()
            offered, forwarded, cpu = pass_through(lab, side, 0, arguments.seconds)
            side.end()
            say(
                f"{what}, round {number} of {arguments.rounds}: {name}: offered {offered:,.0f}/s, "
                f"forwarded {forwarded:,.0f}/s, CPU {cpu:.2f}"
            )
            if number:
                # The bridge works in the sender's own system call.
                taken[name].append((offered, forwarded, forwarded / cpu if cpu else 0.0))
    names = (("offered", "packets/s"), ("forwarded", "packets/s"), ("per CPU-second", "packets"))
    for name, rounds in taken.items():
        for (figure, unit), values in zip(names, zip(*rounds)):
            report.add(f"{what}: {name}, {figure}", statistics.median(values), unit)
    for name, other, bars in pairs:
        for at, (figure, _), bar in zip((1, 2), names[1:], bars):
            ours, theirs = ([figures[at] for figures in taken[side]] for side in (name, other))
            if all(theirs):
                report.add(
                    f"{what}: {name} by {other}, {figure}", ratios(ours, theirs), "times", bar
                )


def forward(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        sides = {
            "bridge": lambda: Nobody(lab),
            "forwarder": lambda: Program(lab, FORWARD, "m0", "m1"),
            "fenxi": lambda: Inline(lab, scratch),
        }
        pairs = ("fenxi", "forwarder", (0.9, 0.9)), ("fenxi", "bridge", (None, None))
        compare(report, arguments, lab, "forward", sides, pairs)


# Tap.


class Peer:
    """A program that watches an interface."""

    def __init__(self, lab, name, command, signal=2):
        self.lab, self.name, self.signal = lab, name, signal
        self.process = lab.start("middle", command)
        time.sleep(1.5)

    def cpu(self):
        return cpu_of(self.process.pid)

    def end(self):
        """Packets that it saw, if it says so."""
        out = self.lab.stop(self.process, code=None, with_signal=self.signal)
        found = re.search(
            r"(?:IP packets|Packets received by libpcap|Packets processed):\s*(\d+)", out or ""
        )
        return int(found.group(1)) if found else None


class Tap(Fenxi):
    def __init__(self, lab, scratch):
        super().__init__(
            lab, "middle", "--set", 'io.interfaces=["m0"]', config="live-tap.toml", scratch=scratch
        )
        time.sleep(SETTLE_S)

    def end(self):
        summary = self.summary()
        if summary["live"]["kernel_dropped"]:
            raise Failure("fenxi lost packets; ask for fewer with --pps")
        return summary["live"]["received"]


def watchers(lab, scratch):
    sides = {"fenxi": lambda: Tap(lab, scratch)}
    for name, package, command in (
        ("ndpiReader", "libndpi-bin", ["ndpiReader", "-i", "m0"]),
        (
            "softflowd",
            "softflowd",
            [
                "softflowd",
                "-i",
                "m0",
                "-d",
                "-6",
                "-c",
                f"{scratch}/sf.ctl",
                "-p",
                f"{scratch}/sf.pid",
            ],
        ),
    ):
        try:
            need(name, package)
            sides[name] = lambda name=name, command=command: Peer(lab, name, command)
        except Skip as skip:
            yield name, skip
    yield "", sides


def tap(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        lab.host("left", "middle")
        lab.wire("left", "g0", "middle", "m0")
        for name, sides in watchers(lab, scratch):
            if name:
                report.skip(name, sides)
        for pps in arguments.pps or (50_000, 200_000):
            taken = {name: [] for name in sides}
            for number in range(1, arguments.rounds + 1):
                for name, start in sides.items():
                    side = start()
                    cpu, before = side.cpu(), lab.counted("middle", "m0")[0]
                    sent = generated(
                        generate(lab, "left", "g0", pps, arguments.seconds, "--payload", "copy")
                    )
                    time.sleep(0.3)
                    cpu, came = side.cpu() - cpu, lab.counted("middle", "m0")[0] - before
                    seen = side.end()
                    say(
                        f"tap at {pps}/s, round {number} of {arguments.rounds}: {name}: {came} "
                        f"packets, saw {seen}, CPU {cpu:.3f} s"
                    )
                    taken[name].append(came / cpu)
                    if sent["interface"]["dropped"]:
                        raise Failure("the generator lost packets; ask for fewer with --pps")
            for name, rounds in taken.items():
                report.add(f"tap at {pps}/s: {name}", statistics.median(rounds), "packets/CPU-s")
            for name, rounds in taken.items():
                if name != "fenxi":
                    times = ratios(taken["fenxi"], rounds)
                    report.add(f"tap at {pps}/s: fenxi by {name}", times, "times", 1.0)


# What watching costs, and nothing at all.

# Pairs of a second with and one without a scrape.
WINDOWS_PER_ROUND = 12
# In the seconds with scrapes; far enough apart for each to ask the data path anew.
SCRAPE_EVERY_S = 0.05


def scraping(fenxi, seconds):
    """Reads /metrics some 20 times a second and counts; without a fenxi it only waits."""
    until, reads = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        if fenxi:
            fenxi.get("/metrics")
            reads += 1
        time.sleep(max(0.0, min(until - time.monotonic(), SCRAPE_EVERY_S)))
    return reads


def scrape(report, arguments):
    """One fenxi forwards at saturation, with many scrapes in every other second, so that their
    cost stands out from what seconds differ by anyway; one scrape a second costs its part.
    """
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        street(lab)
        fenxi = Inline(lab, scratch)
        pairs = WINDOWS_PER_ROUND * arguments.rounds
        load = lab.start(
            "left", [BLAST, "g0", load_capture(), 0, 3 * pairs, ROUNDS_PER_FLOW], CPU_LOAD
        )
        time.sleep(2)
        costs, reads = [], 0
        for number in range(pairs):
            taken = {}
            for scraped in (
                number % 2 == 1,
                number % 2 == 0,
            ):  # the order changes, so that a drift hits both
                began, before, cpu = time.monotonic(), lab.counted("right", "s0")[0], fenxi.cpu()
                reads += scraping(fenxi if scraped else None, 1.0)
                forwarded, cpu = lab.counted("right", "s0")[0] - before, fenxi.cpu() - cpu
                taken[scraped] = forwarded / (time.monotonic() - began), forwarded / cpu
            costs.append(
                [
                    100 * (1 - with_it / without)
                    for with_it, without in zip(taken[True], taken[False])
                ]
            )
        lab.stop(load, code=None, with_signal=signal.SIGKILL)
        fenxi.end()
    for name, of_pairs in zip(("throughput", "packets per CPU-second"), zip(*costs)):
        median = statistics.median(of_pairs) * pairs / reads
        error = (
            1.25 * statistics.stdev(of_pairs) / len(of_pairs) ** 0.5 * pairs / reads
        )  # of a median
        say(f"scrape: each second, {name} lost {median:.2f} %, standard error {error:.2f} %")
        report.add(f"scrape: each second, {name} lost", median, "%", 1.0, most=True)
        report.add("scrape: standard error of this", error, "%")


def idle(report, arguments):
    for mode, interfaces in (("tap", '["m0"]'), ("inline", '["m0", "m1"]')):
        with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
            street(lab)
            fenxi = Fenxi(
                lab,
                "middle",
                "--set",
                f"io.mode={mode}",
                "--set",
                f"io.interfaces={interfaces}",
                scratch=scratch,
            )
            time.sleep(1)
            before = fenxi.cpu()
            time.sleep(arguments.idle_seconds)
            share = (fenxi.cpu() - before) / arguments.idle_seconds
            fenxi.summary()
        say(f"idle, {mode}: {100 * share:.2f} % of a core")
        report.add(f"idle: {mode}", 100 * share, "% of a core", 2.0, most=True)
