"""Our flow table beside hashbrown's maps and DPDK's rte_hash."""

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
from pathlib import Path

from ..report import ROOT, TARGET, Failure, Skip, field, output_of, ratio, say
from .environment import PEERS

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
BARS = {"ahash": 2.5, "rte_hash": 2.8}
# Below this share of a side's memory on huge pages the bars of the tables are not judged.
HUGE_SHARE = 0.8
HUGE_MALLOC = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


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
