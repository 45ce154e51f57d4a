"""Compares fenxi with what one would use instead, in one run, the sides taking turns.

table: our flow table and hashbrown.  rte_hash: our flow table and DPDK's.  programs: `fenxi
replay`, with the model in fp32 and in int8, and ndpiReader, nfstream, tcpdump on a load capture.
docs/peers.md says what is compared with what. Peers that are not installed are skipped by name.
Needs Linux, cargo, and `make build` for the programs.
"""

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from .report import ROOT, TARGET, Failure, Parser, Report, Skip, field, output_of, ratio, say

PEERS = ROOT / "benches" / "peers"
VENV = TARGET / "peers-venv"
MAKE_MIX = ROOT.parent / "shared" / "data" / "mix" / "make_mix.py"

SEED = 1
LOOK_UPS = 1 << 22
# (table, burst); hashbrown's maps take one key at a time. See benches/peers.
OUR_BURST = 128  # the default of io.burst
TABLES = [
    ("ours", 128),
    ("ours", 64),
    ("ours", 32),
    ("ahash", 1),
    ("foldhash", 1),
    ("ahash-bursts", 64),
    ("foldhash-bursts", 64),
]
RTE_HASH = [("rte_hash", 32), ("rte_hash-padded", 32)]
# How many times slower than ours, at least.
BARS = {"ahash": 2.5, "rte_hash": 2.8, "ndpiReader": 12, "nfstream": 55, "tcpdump": 0.9}
# Below this share of a side's memory on huge pages the bars of the tables are not judged.
HUGE_SHARE = 0.8
HUGE_MALLOC = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


# The tables.


class Worker:
    """A program that holds tables and makes one round of look-ups per line."""

    def __init__(self, name, command, **options):
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        try:
            self.checksum = self.line().removeprefix("ready ")
        except BaseException:
            self.close()
            raise

    def line(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise Failure(f"the worker of {self.name} ended; what it said stands above")
        return line

    def round(self, table, burst):
        """ns per look-up."""
        self.process.stdin.write(f"{table} {burst}\n")
        self.process.stdin.flush()
        ns, found = map(int, self.line().split())
        if found != LOOK_UPS:
            raise Failure(f"{table} found {found} of {LOOK_UPS} flows")
        return ns / LOOK_UPS

    def huge_share(self):
        """Share of the worker's memory that lies on huge pages."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        kib = {
            name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
        }
        hugetlb = kib["Private_Hugetlb"] + kib["Shared_Hugetlb"]
        return (kib["AnonHugePages"] + hugetlb) / (kib["Rss"] + hugetlb)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def table_worker(sizes):
    """Our worker. glibc 2.36 now and then gives a process no huge pages (its malloc compares a
    string that it does not end), so such a process is started again.
    """
    say("building the tables (cargo bench --no-run)")
    messages = output_of(
        "cargo",
        "bench",
        "--locked",
        "-p",
        "fenxi-benches",
        "--bench",
        "peers",
        "--no-run",
        "--message-format",
        "json",
        cwd=ROOT,
    )
    built = (json.loads(line) for line in messages.splitlines())
    program = next(message["executable"] for message in built if message.get("executable"))
    for attempt in range(20):
        worker = Worker("ours", [program, *sizes], env=HUGE_MALLOC)
        if worker.huge_share() >= HUGE_SHARE:
            break
        if attempt < 19:
            worker.close()
    return worker


def take_turns(sides, rounds):
    """{(table, burst): ns per look-up of each round}; the first round fills tables, uncounted."""
    taken = {(table, burst): [] for _, table, burst in sides}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}")
        for worker, table, burst in sides:
            ns = worker.round(table, burst)
            if number > 0:
                taken[table, burst].append(ns)
    return taken


def report_tables(report, section, taken, workers):
    shares = {worker.name: worker.huge_share() for worker in workers}
    for name, share in shares.items():
        report.add(f"{section}: memory of {name} on huge pages", 100 * share, "%")
    judged = min(shares.values()) >= HUGE_SHARE
    for (table, burst), rounds in taken.items():
        report.add(
            f"{section}: {table}, burst {burst}", statistics.median(rounds), "ns per look-up"
        )
    ours = {burst: rounds for (table, burst), rounds in taken.items() if table == "ours"}
    for (table, burst), rounds in taken.items():
        if table == "ours":
            continue
        for our_burst, our_rounds in ours.items():
            bar = BARS.get(table) if our_burst == OUR_BURST else None
            name = f"{section}: {table} by ours, burst {our_burst}"
            report.add(name, ratio(rounds, our_rounds), "times", bar, judged=judged)


def locked_version(crate):
    """The newest version of a dependency of the workspace, which the tables use."""
    versions = re.findall(
        rf'^name = "{crate}"\nversion = "(.*)"$', (ROOT / "Cargo.lock").read_text(), re.MULTILINE
    )
    return max(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def bench_table(report, arguments):
    with contextlib.closing(table_worker(arguments.sizes)) as worker:
        taken = take_turns([(worker, table, burst) for table, burst in TABLES], arguments.rounds)
        report_tables(report, "table", taken, [worker])
    report.versions.update(
        {crate: locked_version(crate) for crate in ("hashbrown", "ahash", "foldhash")}
    )


def compile_rte_hash():
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        raise Skip("no cc or no pkg-config (Debian: gcc, pkg-config)")
    if subprocess.run(["pkg-config", "--exists", "libdpdk"]).returncode != 0:
        raise Skip("no libdpdk (Debian: libdpdk-dev)")
    flags = output_of("pkg-config", "--cflags", "--libs", "libdpdk").split()
    program = TARGET / "peers-rte_hash"
    TARGET.mkdir(parents=True, exist_ok=True)
    output_of("cc", "-O3", "-o", program, PEERS / "rte_hash.c", *flags)
    return program


@contextlib.contextmanager
def huge_page_pool(mib):
    """Yields whether the pool of huge pages has room, growing it meanwhile if permitted."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    before = int(pool.read_text())
    wanted = -(-mib * 1024 // int(field("/proc/meminfo", "Hugepagesize").split()[0]))

    def missing():
        return max(0, wanted - int(field("/proc/meminfo", "HugePages_Free")))

    try:
        if missing() and os.geteuid() == 0:
            with contextlib.suppress(OSError):
                pool.write_text(f"{before + missing()}\n")
        yield not missing()
    finally:
        if int(pool.read_text()) != before:
            pool.write_text(f"{before}\n")


def bench_rte_hash(report, arguments):
    program = compile_rte_hash()
    report.versions["libdpdk"] = output_of("pkg-config", "--modversion", "libdpdk").strip()
    # Both tables: slots of 112 bytes, buckets, rings of free slots; then what is counted.
    mib = 64 + (arguments.entries * 160 + arguments.flows * 16 >> 20)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    eal = [
        "--lcores",
        f"0@({cores})",
        "--no-pci",
        "--no-telemetry",
        "--log-level",
        "4",
        "-m",
        str(mib),
    ]
    with huge_page_pool(mib) as is_there, contextlib.ExitStack() as workers:
        if not is_there:
            say(f"no {mib} MiB of huge pages for rte_hash (root can have them); it gets plain ones")
        eal.append("--in-memory" if is_there else "--no-huge")
        theirs = Worker("rte_hash", [program, *eal, "--", *arguments.sizes], env=HUGE_MALLOC)
        workers.enter_context(contextlib.closing(theirs))
        ours = workers.enter_context(contextlib.closing(table_worker(arguments.sizes)))
        if ours.checksum != theirs.checksum:
            raise Failure("rte_hash.c and traffic.rs make different look-ups")
        sides = [
            (ours, "ours", 128),
            (ours, "ours", 64),
            (ours, "ours", 32),
            *((theirs, table, burst) for table, burst in RTE_HASH),
        ]
        taken = take_turns(sides, arguments.rounds)
        report_tables(report, "rte_hash", taken, [ours, theirs])


# The programs.


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
    return program, re.search(r"[\d.]+", usage).group()


def nfstream():
    pinned = PEERS / "nfstream.txt"
    stamp = VENV / pinned.name
    if not stamp.exists() or stamp.read_text() != pinned.read_text():
        say("installing nfstream")
        try:
            output_of(sys.executable, "-m", "venv", "--clear", VENV)
            output_of(
                VENV / "bin" / "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "-r",
                pinned,
            )
        except Failure as failure:
            raise Skip(failure) from None
        shutil.copy(pinned, stamp)
    return VENV / "bin" / "python", re.search(
        r"^nfstream==(.*)$", pinned.read_text(), re.MULTILINE
    ).group(1)


def replay(capture, *more):
    return ["replay", capture, "--speed", "max", "--json", *more]


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
    "nfstream": (nfstream, lambda capture: [PEERS / "nfstream_flows.py", capture]),
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


SECTIONS = {"table": bench_table, "rte_hash": bench_rte_hash, "programs": bench_programs}


def parse(arguments):
    parser = Parser(prog="figures peers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument("--capture", type=Path, metavar="FILE", help="Ethernet, for the programs")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="5")
    parser.add_argument(
        "--entries", type=int, default=1 << 22, metavar="N", help="of a table: 2^22"
    )
    parser.add_argument("--flows", type=int, metavar="N", help="in it: half of the entries")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args(arguments)
    if arguments.flows is None:
        arguments.flows = arguments.entries // 2
    if arguments.rounds < 1 or not 0 < arguments.flows <= arguments.entries:
        parser.error("--rounds takes 1 or more, --flows 1 to the entries")
    if arguments.entries < 64 or arguments.entries & arguments.entries - 1:
        parser.error("--entries takes a power of two from 64")
    sizes = (arguments.entries, arguments.flows, LOOK_UPS, SEED)
    arguments.sizes = [str(number) for number in sizes]
    return arguments


def main(arguments):
    arguments = parse(arguments)
    report = Report("peers")
    for name, bench in SECTIONS.items():
        if arguments.only in (None, name):
            try:
                bench(report, arguments)
            except Skip as skip:
                report.skip(name, skip)
    print(report.as_json()) if arguments.json else report.print()
