"""How long marks take; and pings, which time the way of a packet."""

import json
import os
import random
import re
import signal
import tempfile
import threading
import time

from ..report import ROOT, Failure, output_of, say
from .lab import FENXI, Fenxi, Lab, need, quantile
from .speed import Inline, blast, street

PINGS = 2000
LEFT, RIGHT = "10.90.0.1", "10.90.0.2"


def addressed_street(lab):
    street(lab)
    lab.run("left", f"ip addr add {LEFT}/24 dev g0")
    lab.run("right", f"ip addr add {RIGHT}/24 dev s0")


class Echo:
    """A process that sends back each datagram to where it came from."""

    def __init__(self, udp):
        self.pid = os.fork()
        if self.pid == 0:
            while True:
                data, sender = udp.recvfrom(2048)
                udp.sendto(data, sender)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def ping(udp, to, pings):
    """Round-trip times, µs, begun at random intervals so that no timer is met in step."""
    udp.settimeout(0.5)
    times, lost = [], 0
    for number in range(pings):
        time.sleep(random.uniform(0.0005, 0.0035))
        began = time.perf_counter_ns()
        udp.sendto(number.to_bytes(32, "big"), to)
        try:
            while udp.recv(2048) != number.to_bytes(32, "big"):
                pass
            times.append((time.perf_counter_ns() - began) / 1000)
        except TimeoutError:
            lost += 1
    if lost > pings // 100:
        raise Failure(f"{lost} of {pings} pings were lost")
    return times


def half_load(lab, scratch):
    """Half of what fenxi forwards at saturation here and now, packets/s."""
    fenxi = Inline(lab, scratch)
    blast(lab, 0, 1)
    before = lab.counted("right", "s0")[0]
    sent = blast(lab, 0, 2)
    rate = (lab.counted("right", "s0")[0] - before) / sent["wall_s"]
    fenxi.end()
    return rate / 2


def plain_wires(lab):
    """As XDP wants them, for all sides: nothing merges, nothing is left to a card."""
    for host, device in (("left", "g0"), ("middle", "m0"), ("middle", "m1"), ("right", "s0")):
        lab.run(host, f"ethtool -K {device} tx off tso off gso off gro off rxvlan off txvlan off")


# Marks.


POLICIES = {
    "carry-over, T = 10 ms": ["analytics.policy=carry-over", "analytics.timeout_ms=10.0"],
    "carry-over, T = 5 ms": ["analytics.policy=carry-over", "analytics.timeout_ms=5.0"],
    "carry-over, T = 2 ms": ["analytics.policy=carry-over", "analytics.timeout_ms=2.0"],
    "slo, 2 ms": ["analytics.policy=slo", "analytics.latency_goal_ms=2.0"],
    "none": ["analytics.policy=none"],
    "as configs/live-mark.toml": [],
    "as configs/live-mark-first.toml": [],
}
CLIENT, SERVER = "10.91.1.2", "10.91.2.2"
FLOWS = 1500
# Off its own port, so that the model and not the port decides: it knows QUIC by two packets.
SERVER_PORT, DECISIVE = 20_443, 2
QUIC_MARK = "mark.class.QUIC=0x0a000000"


def labelled_series(scratch):
    """The signed lengths of a QUIC flow up to the decision (positive: from the client)."""
    records = f"{scratch}/records"
    demo = str(ROOT / "demo" / "office.pcap")
    output_of(FENXI, "replay", demo, "--flows", records, "--series", "--json")
    for line in open(records):
        record = json.loads(line)
        if record["type"] == "flow" and record["label"] == "QUIC":
            return [max(-1500, min(1500, length)) for length in record["series"][:DECISIVE]]
    raise Failure("the demo has no flow of QUIC")


def router(lab):
    lab.host("client", "router", "server")
    for host, device, net in (("client", "in", 1), ("server", "out", 2)):
        lab.wire(host, "eth", "router", device)
        lab.run("router", f"ip addr add 10.91.{net}.1/24 dev {device}")
        lab.run(
            host, f"ip addr add 10.91.{net}.2/24 dev eth && ip route add default via 10.91.{net}.1"
        )
    lab.run("router", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    lab.run(
        "router",
        "nft add table inet t "
        "'{ chain c { type filter hook forward priority 0; ct state new accept; }; }'",
    )


class Marked:
    """When each connection had its mark, by the client's port, as the kernel told."""

    def __init__(self, lab):
        self.lab, self.times = lab, {}
        self.process = lab.start(
            "router",
            [
                "conntrack",
                "-E",
                "-e",
                "UPDATES",
                "-o",
                "timestamp",
                "-p",
                "udp",
                "--buffer-size",
                "8388608",
            ],
        )
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()
        time.sleep(0.3)

    def listen(self):
        event = re.compile(r"\[(\d+\.\d+)\s*\].*? sport=(\d+) dport=\d+ .*mark=(\d+)")
        for line in self.process.stdout:
            found = event.search(line)
            if found and found.group(3) != "0":
                self.times.setdefault(int(found.group(2)), float(found.group(1)))

    def end(self):
        # What it prints is read by the thread, to the end.
        self.process.terminate()
        self.thread.join()
        self.process.wait()
        self.lab.running.remove(self.process)
        return self.times


def play(series, client, server):
    """A new flow with these lengths; when its last packet was sent."""
    to, back = server.getsockname(), client.getsockname()
    for length in series:
        sender, receiver, receiver_at = (
            (client, server, to) if length > 0 else (server, client, back)
        )
        at = time.time()
        sender.sendto(bytes(abs(length) - 28), receiver_at)
        receiver.recv(2048)
    return at


def new_flows(lab, series, server):
    """Plays flows one after the other; by the client's port, when the last packet was sent."""
    sent = {}
    for _ in range(FLOWS):
        client = lab.udp("client", CLIENT)
        client.settimeout(2)
        port = client.getsockname()[1]
        if port not in sent:  # otherwise the connection has its mark
            sent[port] = play(series, client, server)
        client.close()
        time.sleep(random.expovariate(1000))
    return sent


def marks(report, arguments):
    need("conntrack", "conntrack")
    need("nft", "nftables")
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        series = labelled_series(scratch)
        router(lab)
        server = lab.udp("server", SERVER, SERVER_PORT)
        server.settimeout(2)
        for name, settings in POLICIES.items():
            sets = [
                word
                for setting in ['io.interfaces=["in"]', QUIC_MARK, *settings]
                for word in ("--set", setting)
            ]
            config = (
                name.removeprefix("as configs/") if name.startswith("as ") else "live-mark.toml"
            )
            fenxi = Fenxi(lab, "router", *sets, config=config, scratch=scratch)
            marked = Marked(lab)
            sent = new_flows(lab, series, server)
            time.sleep(0.5)
            times = marked.end()
            fenxi.summary()
            lab.run("router", "conntrack -F 2>/dev/null")
            took = [1000 * (times[port] - at) for port, at in sent.items() if port in times]
            missed = len(sent) - len(took)
            if len(took) < len(sent) * 0.95:
                raise Failure(f"{missed} of {len(sent)} connections got no mark")
            p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
            say(
                f"marks, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, without a mark {missed} "
                f"of {len(sent)}"
            )
            report.add(f"marks, {name}: p50", p50, "ms")
            report.add(
                f"marks, {name}: p99",
                p99,
                "ms",
                10.0 if name.startswith("as ") else None,
                most=True,
            )
            report.add(f"marks, {name}: connections without", missed, "connections")
