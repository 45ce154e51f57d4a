"""What each sink takes from the flow worker: sinks."""

import contextlib
import os
import shlex
import signal
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

from ..report import Failure, say
from .lab import Fenxi, Lab, generate_replay, generated

FLOWS_PER_S = 50_000
# A packet there and one back.
PACKETS_PER_FLOW = 2
# Flows end this long after they began, as many per second as begin.
WARM_UP_S = 2.5
BATCHES = [
    "--set",
    "flow.idle_timeout_s=1",
    "--set",
    "flow.max_flows=524288",
    "--set",
    "analytics.timeout_ms=10",
]


def short_flows(path, seconds):
    """A capture of flows of two packets over UDP, each with addresses of its own."""
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number in range(FLOWS_PER_S * seconds):
            client, server = struct.pack(">I", 0x0A000000 + number), struct.pack(">I", 0xC6336401)
            port = 1024 + number % 60_000
            for source, target, ports, length in (
                (client, server, (port, 53), 40),
                (server, client, (53, port), 120),
            ):
                ip = (
                    struct.pack(">BBHHHBBH", 0x45, 0, 28 + length, 0, 0, 64, 17, 0)
                    + source
                    + target
                )
                frame = (
                    bytes(12)
                    + b"\x08\x00"
                    + ip
                    + struct.pack(">HHHH", *ports, 8 + length, 0)
                    + bytes(length)
                )
                microseconds = int(number / FLOWS_PER_S * 1e6)
                out.write(
                    struct.pack(
                        "<IIII",
                        microseconds // 1_000_000,
                        microseconds % 1_000_000,
                        len(frame),
                        len(frame),
                    )
                )
                out.write(frame)


@contextlib.contextmanager
def reading(work):
    """A process that takes what comes."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def collect(udp):
    while udp.recv(65536):
        pass


def follow(path):
    with socket.socket(socket.AF_UNIX) as stream:
        while not os.path.exists(path):
            time.sleep(0.05)
        stream.connect(path)
        while stream.recv(1 << 20):
            pass


def sides(lab, scratch):
    records, messages, sock = (
        Path(scratch) / name for name in ("flows.jsonl", "flows.ipfix", "records.sock")
    )
    collector = lab.udp("middle", "127.0.0.1", 4739)
    # The kernel tracks none of these connections, so marks and labels are written in vain; the
    # flow worker hands them over as ever.
    clients = (
        "add table ip bench; add set ip bench clients "
        "{ type ipv4_addr; flags timeout; size 16777216; }"
    )
    lab.run("middle", f"nft {shlex.quote(clients)}")
    nftset = [
        "--set",
        "nftset.clients.set=ip bench clients",
        "--set",
        'nftset.clients.key=["originator_address"]',
        "--set",
        'nftset.clients.labels=["DNS"]',
    ]
    return {
        "none": ([], lambda: None),
        "records.path": (["--flows", str(records)], lambda: None),
        "records.socket": (["--set", f"records.socket={sock}"], lambda: follow(str(sock))),
        "ipfix udp": (["--ipfix", "udp://127.0.0.1:4739"], lambda: collect(collector)),
        "ipfix file": (["--ipfix", f"file:{messages}"], lambda: None),
        "mark": (
            [
                "--set",
                "io.mode=mark",
                "--set",
                "io.capture=all",
                "--set",
                "analytics.policy=carry-over",
            ],
            lambda: None,
        ),
        "connlabel": (["--set", 'connlabel.class={ DNS = "1" }'], lambda: None),
        "nftset": (nftset, lambda: None),
    }


def cost(lab, scratch, capture, arguments, work):
    """Packets per CPU-second of the flow worker, while flows begin and end at the full rate."""
    with reading(work):
        fenxi = Fenxi(
            lab,
            "middle",
            "--set",
            'io.interfaces=["m0"]',
            *BATCHES,
            *arguments,
            config="live-tap.toml",
            scratch=scratch,
        )
        sending = generate_replay(lab, "left", "g0", capture, FLOWS_PER_S * PACKETS_PER_FLOW)
        time.sleep(WARM_UP_S)
        cpu, packets = fenxi.thread_cpu("flow-0.0"), lab.counted("middle", "m0")[0]
        sent = generated(sending)
        cpu, packets = fenxi.thread_cpu("flow-0.0") - cpu, lab.counted("middle", "m0")[0] - packets
        summary = fenxi.summary()
        if sent["interface"]["dropped"]:
            raise Failure("the generator lost packets; stop other programs")
    for name in ("flows.jsonl", "flows.ipfix"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{scratch}/{name}")
    live = summary["live"]
    lost = summary.get("records_dropped", 0) + summary.get("ipfix_lost", 0)
    lost += sum(live.get(f"{sink}_dropped", 0) for sink in ("marks", "connlabels", "nftset"))
    return packets / cpu, lost


def sinks(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        lab.host("left", "middle")
        lab.wire("left", "g0", "middle", "m0")
        lab.run("middle", "ip link set lo up")
        capture = f"{scratch}/short.pcap"
        short_flows(capture, int(arguments.seconds + WARM_UP_S))
        found = sides(lab, scratch)
        taken = {name: [] for name in found}
        for number in range(1, arguments.rounds + 1):
            for name, (options, work) in found.items():
                rate, lost = cost(lab, scratch, capture, options, work)
                say(
                    f"sinks, round {number} of {arguments.rounds}: {name}: {rate:.0f} "
                    f"packets/CPU-s, {lost} records lost"
                )
                taken[name].append(rate)
        for name, rounds in taken.items():
            report.add(f"sinks: {name}", statistics.median(rounds), "packets/CPU-s")
        for name, rounds in taken.items():
            if name != "none":
                ratio = statistics.median(
                    ours / without for ours, without in zip(rounds, taken["none"])
                )
                report.add(f"sinks: {name} by none", ratio, "times", 0.97)
