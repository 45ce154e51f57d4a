"""Packets per second of a core of fenxi over DPDK, inline with the int8 model, beside dpdk-testpmd,
which only passes packets on.

Both read the same capture over and over (net_pcap, infinite_rx) and send to nothing (net_null), on
one core, in turns; pairs are compared. A second is one of the CPU time of the thread that
forwards, so that others on the machine matter less; both threads poll and never sleep. The capture
is the load capture (../shared/data/mix) as far as the packets fit into buffers: 50,000 packets,
those above 1,514 bytes left out. As it repeats, so do its flows, and the model sees the same series
again. fenxi's analytics have the other core. Without --huge neither side has huge pages. Needs
root, dpdk-testpmd and `make dpdk`.
"""

import json
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .report import ROOT, Failure, Parser, Report, Skip, ratios, say

PACKETS = 50_000
LONGEST = 1514  # what is sent with an MTU of 1500
BUFFERS = 1 << 16  # the capture, and what is on its way
MEMORY = 512  # MiB
BAR = 0.5
WARM_S = 1.5


def load_capture(folder):
    """The load capture, with packets that fit a buffer only."""
    maker = ROOT.parent / "shared/data/mix/make_mix.py"
    if not maker.exists():
        raise Skip(f"{maker}: not there; name a capture with --capture")
    whole, short = folder / "whole.pcap", folder / "mix.pcap"
    subprocess.run(
        [sys.executable, maker, "--packets", str(PACKETS), whole],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    data = whole.read_bytes()
    at, kept = 24, [data[:24]]
    while at < len(data):
        captured = struct.unpack_from("<I", data, at + 8)[0]
        if captured <= LONGEST:
            kept.append(data[at : at + 16 + captured])
        at += 16 + captured
    short.write_bytes(b"".join(kept))
    say(f"{len(kept) - 1} packets")
    return short


def devices(arguments, capture):
    memory = [] if arguments.huge else ["--no-huge"]
    return memory + [
        "-m",
        str(MEMORY),
        "--no-pci",
        f"--vdev=net_pcap0,rx_pcap={capture},infinite_rx=1",
        "--vdev=net_null0,no-rx=1",
    ]


def cpu_s(pid, thread):
    """CPU time of a thread of a process so far."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if re.fullmatch(thread, name):
            fields = rest.split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    raise Failure(f"no thread {thread} among {', '.join(names)}")


def testpmd(arguments, capture):
    """Packets per second that testpmd's core sends."""
    private = ["--in-memory"] if arguments.huge else ["--no-shconf"]
    command = [
        "dpdk-testpmd",
        "-l",
        "0,1",
        "--no-telemetry",
        *private,
        *devices(arguments, capture),
        "--",
        "--interactive",
        "--forward-mode=io",
        f"--total-num-mbufs={BUFFERS}",
        f"--burst={arguments.testpmd_burst}",
    ]
    run = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = b""

    def tell(line):
        run.stdin.write(line + b"\n")
        run.stdin.flush()

    while not said.endswith(b"testpmd> "):
        part = os.read(run.stdout.fileno(), 4096)
        if not part:
            raise Failure(f"dpdk-testpmd: {said.decode()[-2000:]}")
        said += part
    tell(b"start")
    time.sleep(WARM_S)
    times = []
    for _ in range(2):
        tell(b"show port stats 1")
        times.append(cpu_s(run.pid, "(lcore|rte)-worker-1"))
        time.sleep(arguments.seconds)
    tell(b"stop")
    said = run.communicate(b"quit\n", timeout=60)[0].decode()
    sent = [int(count) for count in re.findall(r"TX-packets:\s+(\d+)\s+TX-errors", said)]
    if run.returncode != 0 or len(sent) < 2:
        raise Failure(f"dpdk-testpmd: {said[-2000:]}")
    return (sent[1] - sent[0]) / (times[1] - times[0])


class Fenxi:
    """A run, inline between the two devices."""

    def __init__(self, arguments, capture, folder):
        self.program, self.socket = arguments.fenxi, folder / "control"
        sets = {
            "io.backend": "dpdk",
            "io.mode": "inline",
            "io.interfaces": '["net_pcap0", "net_null0"]',
            "io.burst": arguments.burst,
            "dpdk.args": json.dumps(devices(arguments, capture)),
            "dpdk.mbufs": BUFFERS,
            "pipeline.cores": "[1, 0]",
            "model.path": ROOT / "models/protocol-int8",
            "control.http": "",
            "control.socket": self.socket,
            "accel.library": ROOT / "target/onnxruntime/libonnxruntime.so",
        }
        command = [self.program, "run", "--json"]
        for key, value in sets.items():
            command += ["--set", f"{key}={value}"]
        self.run = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 30
        while not self.socket.exists():
            if self.run.poll() is not None or time.monotonic() > deadline:
                self.run.kill()
                raise Failure(f"fenxi: {self.run.communicate()[1]}")
            time.sleep(0.1)

    def counted(self):
        """CPU time of the flow worker, and the counters by then."""
        command = [self.program, "ctl", "metrics", "--socket", self.socket]
        page = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        total = {}
        for line in page.splitlines():
            name, _, value = line.rpartition(" ")
            if not line.startswith("#"):
                name = name.split("{")[0]
                total[name] = total.get(name, 0) + float(value)
        return cpu_s(self.run.pid, "flow-0.0"), total

    def end(self):
        self.run.send_signal(signal.SIGTERM)
        out, err = self.run.communicate(timeout=60)
        if self.run.returncode != 0:
            raise Failure(f"fenxi: {err}")
        return json.loads(out)


def fenxi(arguments, capture, folder):
    """Packets per second that fenxi's flow core sends."""
    run = Fenxi(arguments, capture, folder)
    time.sleep(WARM_S)
    began, before = run.counted()
    time.sleep(arguments.seconds)
    ended, after = run.counted()
    name = "fenxi_packets_total"
    rate = (after[name] - before[name]) / (ended - began)
    live = run.end()["live"]
    if live["received"] != live["sent"] or live["kernel_dropped"]:
        raise Failure(f"packets are lost: {live}")
    return rate


def parse(arguments):
    parser = Parser(prog="figures dpdk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each side, 5")
    parser.add_argument("--seconds", type=float, default=3, help="of a round, 3")
    parser.add_argument("--burst", type=int, default=128, help="of fenxi, 128, its default")
    parser.add_argument("--testpmd-burst", type=int, default=32, help="32, its default")
    parser.add_argument(
        "--huge", action="store_true", help="use huge pages, of which 450 are there"
    )
    parser.add_argument("--capture", type=Path, help="other than the load capture")
    parser.add_argument("--fenxi", type=Path, default=ROOT / "target/dpdk/fenxi")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(arguments)


def main(arguments):
    arguments = parse(arguments)
    if not shutil.which("dpdk-testpmd") or not arguments.fenxi.exists():
        raise Skip("needs dpdk-testpmd (Debian: dpdk-dev) and `make dpdk`")
    report, rates = Report("dpdk"), {"testpmd": [], "fenxi": []}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        capture = arguments.capture or load_capture(folder)
        for number in range(arguments.rounds):
            rates["testpmd"].append(testpmd(arguments, capture))
            rates["fenxi"].append(fenxi(arguments, capture, folder))
            shown = ", ".join(f"{side} {of[-1] / 1e6:.2f}" for side, of in rates.items())
            say(f"round {number + 1}: {shown} Mpps, load {os.getloadavg()[0]:.1f}")
    for side, of in rates.items():
        report.add(f"dpdk: {side}", statistics.median(of) / 1e6, "M packets/CPU-s")
    report.add("dpdk: fenxi by testpmd", ratios(rates["fenxi"], rates["testpmd"]), "times", BAR)
    print(report.as_json()) if arguments.json else report.print()
