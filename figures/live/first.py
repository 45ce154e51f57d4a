"""What fenxi costs a router that forwards: all packets up to it, the first of each flow, or
none where the kernel labels."""

import json
import resource
import statistics
import struct
import tempfile
import time
from pathlib import Path

from ..report import Failure, ratios, say
from .delay import router
from .lab import Fenxi, Lab, cpu_of, need
from .speed import BLAST

CAPTURES = {
    "all": "live-mark.toml",
    "first": "live-mark-first.toml",
    "kernel": "live-mark-kernel.toml",
    "kernel, records": "live-mark-kernel.toml",
}
# Packets of a flow, and how many times less than `all` the others are to cost.
BARS = {240: {"first": 4, "kernel": 4}, 40: {"first": 2, "kernel": 4}, 10: {"kernel": 4}}
# CPU per flow beyond counting, in us.
FLOW_BARS = {"kernel": 5, "kernel, records": 15}
THREADS = ("flow-0.0", "analytics-0.0", "marks")
# Before each measurement.
WARM_S = 2
# Flows that are under way at a time.
ACTIVE = 1000
SERVER = "10.91.2.77"
# The first packet of QUIC (RFC 9000 §14.1), by which the shipped model knows it.
QUIC, INITIAL = 443, 1200


def mac(lab, host, device):
    return bytes.fromhex(
        lab.run(host, f"cat /sys/class/net/{device}/address").strip().replace(":", "")
    )


def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def capture(path, ethernet, per_flow, packets, host=2):
    """QUIC flows of `per_flow` packets of 100 to 1,300 bytes, client to server, interleaved."""
    source, server = bytes((10, 91, 1, host)), bytes(map(int, SERVER.split(".")))
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        flows, begun = [], 0
        for number in range(packets):
            while len(flows) < min(ACTIVE, max(1, packets // per_flow)):
                # The first ones end one after the other, and so do those that follow them.
                flows.append(
                    [begun % 60000 + 1024, 1, min(per_flow, 1 + per_flow * begun // ACTIVE)]
                )
                begun += 1
            flow = flows[number % len(flows)]
            size = INITIAL if flow[1] == 1 else 100 + (flow[0] * 37 + flow[1] * 211) % 1200
            udp = struct.pack("!HHHH", flow[0], QUIC, 8 + size, 0)
            header = struct.pack(
                "!BBHHHBBH4s4s", 0x45, 0, 28 + size, 0, 0, 64, 17, 0, source, server
            )
            header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
            frame = ethernet + header + udp + bytes(size)
            out.write(
                struct.pack(
                    "<IIII", number // 1_000_000, number % 1_000_000, len(frame), len(frame)
                )
                + frame
            )
            flow[1] += 1
            if flow[1] > flow[2]:
                flows.remove(flow)


def kernel_threads():
    """Those that forward where the sender's own thread does not."""
    names = (
        (int(it.parent.name), it.read_text().strip()) for it in Path("/proc").glob("[0-9]*/comm")
    )
    return [pid for pid, name in names if name.startswith("ksoftirqd/")]


def blast(lab, path, pps, seconds, rounds=1_000_000):
    """Packets sent, and CPU seconds of the sender, on whose thread the kernel also forwards."""

    def used():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    process = lab.start("client", [BLAST, "eth", path, pps, seconds, rounds], cpu=0)
    out, _ = process.communicate()
    lab.running.remove(process)
    if process.returncode != 0:
        raise Failure("the sender failed")
    return json.loads(out)["sent"], used() - before


def marking(lab, name, scratch):
    """fenxi with the shipped configuration of a capture, on the second CPU; nobody without one."""
    records = ("--flows", f"{scratch}/flows.jsonl") if name and "records" in name else ()
    return name and Fenxi(
        lab,
        "router",
        "--set",
        'io.interfaces=["in"]',
        *records,
        cpu=1,
        config=CAPTURES[name],
        scratch=scratch,
    )


def saturated(report, arguments):
    """What the kernel forwards at most, without fenxi and beside it."""
    rates = {name: [] for name in (None, *CAPTURES)}
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        router(lab)
        lab.run(
            "router", f"ip neigh add {SERVER} lladdr {mac(lab, 'server', 'eth').hex(':')} dev out"
        )
        ethernet = mac(lab, "router", "in") + mac(lab, "client", "eth") + b"\x08\x00"
        capture(f"{scratch}/flows.pcap", ethernet, 240, 300_000)
        for number in range(1, arguments.rounds + 1):
            for name in rates:
                lab.run("router", "conntrack -F 2>/dev/null || true")
                fenxi = marking(lab, name, scratch)
                before, began = lab.counted("router", "out")[1], time.monotonic()
                # Each time through the capture with other addresses.
                blast(lab, f"{scratch}/flows.pcap", 0, arguments.seconds, rounds=1)
                rates[name].append(
                    (lab.counted("router", "out")[1] - before) / (time.monotonic() - began)
                )
                if fenxi:
                    fenxi.summary()
            say(
                f"forwarded, round {number} of {arguments.rounds}: "
                + ", ".join(f"{name or 'alone'} {of[-1]:,.0f}/s" for name, of in rates.items())
            )
    for name in CAPTURES:
        report.add(
            f"first: packets/s that the kernel forwards with capture {name}, by without fenxi",
            ratios(rates[name], rates[None]),
            "share",
            None if name == "all" else 0.97,
        )


def first(report, arguments):
    need("nft", "nftables")
    saturated(report, arguments)
    pps, softirqs = (arguments.pps or [100_000])[0], kernel_threads()
    by_length = {}
    for per_flow, bars in BARS.items():
        with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
            router(lab)
            lab.run(
                "router",
                f"ip neigh add {SERVER} lladdr {mac(lab, 'server', 'eth').hex(':')} dev out",
            )
            ethernet = mac(lab, "router", "in") + mac(lab, "client", "eth") + b"\x08\x00"
            # No flow is sent twice.
            capture(
                f"{scratch}/flows.pcap", ethernet, per_flow, int(1.01 * pps * arguments.seconds)
            )
            capture(f"{scratch}/warm.pcap", ethernet, per_flow, int(1.01 * pps * WARM_S), host=3)
            costs = {name: [] for name in CAPTURES}
            for number in range(1, arguments.rounds + 1):
                spent = {}
                for name in (None, *CAPTURES):
                    lab.run("router", "conntrack -F 2>/dev/null || true")
                    fenxi = marking(lab, name, scratch)
                    # Memory of the tables is there once it was touched.
                    blast(lab, f"{scratch}/warm.pcap", pps, WARM_S)
                    before = sum(map(cpu_of, softirqs))
                    mine = fenxi.cpu() if fenxi else 0
                    mine_by = {it: fenxi.thread_cpu(it) for it in THREADS} if fenxi else {}
                    forwarded = lab.counted("router", "out")[1]
                    sent, sending = blast(lab, f"{scratch}/flows.pcap", pps, arguments.seconds)
                    time.sleep(0.1)
                    own = fenxi.cpu() - mine if fenxi else 0
                    threads = fenxi and ", ".join(
                        f"{it} {fenxi.thread_cpu(it) - mine_by[it]:.3f} s" for it in THREADS
                    )
                    used = sending + sum(map(cpu_of, softirqs)) - before + own
                    forwarded = lab.counted("router", "out")[1] - forwarded
                    if forwarded < sent * 0.95:
                        raise Failure(
                            f"{forwarded} of {sent} packets were forwarded; ask for fewer with "
                            "--pps"
                        )
                    spent[name] = 1e9 * used / forwarded
                    if fenxi:
                        summary = fenxi.summary()
                        seen = {verdict: n for verdict, n in summary["verdicts"].items() if n}
                        say(
                            f"  {name}: fenxi {1e9 * own / forwarded:.0f} ns ({threads}), "
                            f"{seen}, {summary['series']['emitted']} series"
                        )
                for name in CAPTURES:
                    costs[name].append(spent[name] - spent[None])
                say(
                    f"flows of {per_flow}, round {number} of {arguments.rounds}: alone "
                    f"{spent[None]:.0f} ns a packet, "
                    + ", ".join(f"{name} {spent[name]:.0f}" for name in CAPTURES)
                )
            for name in CAPTURES:
                report.add(
                    f"first, flows of {per_flow}: capture {name}",
                    statistics.median(costs[name]),
                    "ns of CPU a packet",
                )
            by_length[per_flow] = costs
            for name, bar in bars.items():
                times = [a / max(f, 1) for a, f in zip(costs["all"], costs[name])]
                report.add(f"first, flows of {per_flow}: all by {name}", times, "times", bar)
    # What a flow costs is in short flows once more than in long ones.
    for name in CAPTURES:
        pairs = zip(by_length[10][name], by_length[240][name])
        per_flow = statistics.median((short - long) / (1 / 10 - 1 / 240) for short, long in pairs)
        report.add(
            f"first: CPU per flow beyond counting, capture {name}",
            per_flow / 1000,
            "us",
            FLOW_BARS.get(name),
            most=True,
        )
