"""How long packets and marks take: latency, restart, marks; and what a mark costs: mark-cost."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import struct
import tempfile
import threading
import time

from .lab import FENXI, ROOT, Failure, Fenxi, Lab, need, quantile, say
from .speed import BLAST, CPU_LOAD, ROUNDS_PER_FLOW, Inline, blast, forwarders, load_capture, street

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
    """Times there and back, µs. They begin at random distances, so that they meet no timer in step."""
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


def latency(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        addressed_street(lab)
        half = half_load(lab, scratch)
        left, right = lab.udp("left", LEFT), lab.udp("right", RIGHT)
        echo = Echo(right)
        try:
            for load, pps in (("idle", 0), ("half load", half)):
                found = {}
                for name, start in forwarders(lab, scratch).items():
                    forwarder = start()
                    ping(left, right.getsockname(), 50)
                    if pps:
                        load_process = lab.start("left", [BLAST, "g0", load_capture(), pps, 3600, ROUNDS_PER_FLOW], CPU_LOAD)
                        time.sleep(0.5)
                    times = ping(left, right.getsockname(), PINGS)
                    if pps:
                        lab.stop(load_process, code=None, with_signal=signal.SIGKILL)
                    forwarder.end()
                    found[name] = [quantile(times, 0.5) / 2, quantile(times, 0.99) / 2]
                    say(f"latency, {load}: {name}: one way p50 {found[name][0]:.0f} µs, p99 {found[name][1]:.0f} µs")
                if pps:
                    report.add("latency: half load is", pps, "packets/s")
                for name, times in found.items():
                    for share, value in zip(("p50", "p99"), times):
                        report.add(f"latency, {load}: {name}, one way, {share}", value, "us")
                for i, share in enumerate(("p50", "p99")):
                    added = found["fenxi"][i] - found["bridge"][i]
                    report.add(f"latency, {load}: added to the bridge's, {share}", added, "us")
        finally:
            echo.end()


# Restart.


class Arrivals:
    """A probe each millisecond, and when those arrived."""

    def __init__(self, sender, receiver):
        self.sent, self.times, self.delays, self.over = 0, {}, [], threading.Event()
        self.sender, self.receiver = sender, receiver
        receiver.settimeout(0.2)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        self.threads = [threading.Thread(target=self.send), threading.Thread(target=self.receive)]
        for thread in self.threads:
            thread.start()

    def send(self):
        to = self.receiver.getsockname()
        while not self.over.wait(0.001):
            self.sender.sendto(PROBE.pack(self.sent, time.perf_counter()), to)
            self.sent += 1

    def receive(self):
        while True:
            try:
                number, at = PROBE.unpack(self.receiver.recv(64))
                now = time.perf_counter()
                self.times.setdefault(number, now)
                self.delays.append(now - at)
            except TimeoutError:
                if self.over.is_set():
                    return

    def end(self):
        """The longest time without one, s; probes lost; the longest delay of one, s."""
        self.over.set()
        for thread in self.threads:
            thread.join()
        times = sorted(self.times.values())
        gap = max(later - earlier for earlier, later in zip(times, times[1:]))
        return gap, self.sent - len(times), max(self.delays)


PROBE = struct.Struct("!Id")
SO_RCVBUFFORCE = 33


class Manager:
    """A service manager: it keeps descriptors, unless `keeps` is false, and passes them to the next process."""

    def __init__(self, scratch, keeps):
        self.path, self.keeps, self.stored = f"{scratch}/notify", keeps, {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def listen(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                text, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 4)
                fields = dict(line.partition("=")[::2] for line in text.decode().splitlines())
                name = fields.get("FDNAME")
                for old in [self.stored.pop(name)] if "FDSTOREREMOVE" in fields and name in self.stored else []:
                    os.close(old)
                for descriptor in descriptors:
                    if self.keeps:
                        self.stored[name] = descriptor
                    else:
                        os.close(descriptor)

    def start(self, lab, scratch, *settings):
        """The next fenxi, ready."""
        names, descriptors = list(self.stored), list(self.stored.values())

        def pass_on():
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, 100 + number)
            for number in range(len(descriptors)):
                os.dup2(100 + number, 3 + number, inheritable=True)
            if names:
                os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=":".join(names))
            # Where nobody keeps rings, none are left to the next process.
            if self.keeps:
                os.environ["NOTIFY_SOCKET"] = self.path

        started = Inline(lab, scratch, *settings, cpu=None, preexec_fn=pass_on, close_fds=False)
        self.listen()
        return started

    def end(self):
        self.socket.close()
        for descriptor in self.stored.values():
            os.close(descriptor)


def restart(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        addressed_street(lab)
        for kind in ("", ", rings kept", ", over af_xdp"):
            settings = ["--set", "io.backend=af_xdp"] if "xdp" in kind else []
            if settings:
                plain_wires(lab)
            for how, end in (("SIGTERM and start", signal.SIGTERM), ("kill -9 and start", signal.SIGKILL)):
                how += kind
                found = [restart_once(lab, scratch, "kept" in kind, end, settings) for _ in range(arguments.rounds)]
                for number, (gap, lost, delay) in enumerate(found):
                    say(f"restart, {how}, round {number + 1}: {1000 * gap:.0f} ms, {lost} lost, longest delay {1000 * delay:.0f} ms")
                gaps, lost, delays = zip(*found)
                report.add(f"restart: {how}, outage", 1000 * statistics.median(gaps), "ms")
                report.add(f"restart: {how}, the longest outage", 1000 * max(gaps), "ms")
                report.add(f"restart: {how}, probes lost, most", max(lost), "packets")
                report.add(f"restart: {how}, the longest delay", 1000 * max(delays), "ms")


def plain_wires(lab):
    """As XDP wants them, for all sides: nothing merges, nothing is left to a card."""
    for host, device in (("left", "g0"), ("middle", "m0"), ("middle", "m1"), ("right", "s0")):
        lab.run(host, f"ethtool -K {device} tx off tso off gso off gro off rxvlan off txvlan off")


def restart_once(lab, scratch, keeps, end, settings):
    manager = Manager(scratch, keeps)
    old = manager.start(lab, scratch, *settings)
    load = lab.start("left", [BLAST, "g0", load_capture(), 20_000, 3600, ROUNDS_PER_FLOW], CPU_LOAD)
    arrivals = Arrivals(lab.udp("left", LEFT), lab.udp("right", RIGHT))
    time.sleep(2)
    lab.stop(old.process, code=None, with_signal=end)
    new = manager.start(lab, scratch, *settings)
    time.sleep(1)
    found = arrivals.end()
    lab.stop(load, code=None, with_signal=signal.SIGKILL)
    new.end()
    manager.end()
    return found


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
# Labels over UDP that have a mark without being asked for.
BUILT_IN = ("DNS", "QUIC", "SNMP", "NTP")


def labelled_series(scratch):
    """Of a flow over UDP that gets a mark: the series up to the answer that decided, as signed lengths, of which the client's are
    positive; and the server's port, which the model reads."""
    records = f"{scratch}/records"
    Lab.check(FENXI, "replay", str(ROOT / "demo" / "office.pcap"), "--flows", records, "--series", "--json")
    for line in open(records):
        record = json.loads(line)
        if record["type"] == "flow" and record["proto"] == 17 and record["label"] in BUILT_IN and record["decided_by"] == "model":
            series = record["series"][: record["depth"]]
            return [max(-1500, min(1500, length)) for length in series], record["dst_port"]
    raise Failure("the demo has no flow over UDP that gets a mark")


def router(lab):
    lab.host("client", "router", "server")
    for host, device, net in (("client", "in", 1), ("server", "out", 2)):
        lab.wire(host, "eth", "router", device)
        lab.run("router", f"ip addr add 10.91.{net}.1/24 dev {device}")
        lab.run(host, f"ip addr add 10.91.{net}.2/24 dev eth && ip route add default via 10.91.{net}.1")
    lab.run("router", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    lab.run("router", "nft add table inet t '{ chain c { type filter hook forward priority 0; ct state new accept; }; }'")


class Marked:
    """When each connection had its mark, by the client's port, as the kernel told."""

    def __init__(self, lab):
        self.lab, self.times = lab, {}
        self.process = lab.start("router", ["conntrack", "-E", "-e", "UPDATES", "-o", "timestamp", "-p", "udp", "--buffer-size", "8388608"])
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
        sender, receiver, receiver_at = (client, server, to) if length > 0 else (server, client, back)
        at = time.time()
        sender.sendto(bytes(abs(length) - 28), receiver_at)
        receiver.recv(2048)
    return at


def new_flows(lab, series, server):
    """Flows with these lengths, one after the other: by the client's port, when the last packet was sent."""
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
        series, port = labelled_series(scratch)
        router(lab)
        server = lab.udp("server", SERVER, port)
        server.settimeout(2)
        for name, settings in POLICIES.items():
            sets = [word for setting in ['io.interfaces=["in"]', *settings] for word in ("--set", setting)]
            config = name.removeprefix("as configs/") if name.startswith("as ") else "live-mark.toml"
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
            say(f"marks, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, without a mark {missed} of {len(sent)}")
            report.add(f"marks, {name}: p50", p50, "ms")
            report.add(f"marks, {name}: p99", p99, "ms", 10.0 if name.startswith("as ") else None, most=True)
            report.add(f"marks, {name}: connections without", missed, "connections")


# What the writer of marks does with each: the setting, whether the connections have a mark already, and the outcome.
MARKS = {
    "written without reading": ("mark.overwrite=true", False, "written"),
    "read and kept": ("mark.overwrite=false", True, "kept"),
    "read and written": ("mark.overwrite=false", False, "written"),
}
MASK = "0xff000000"  # the built-in mark.mask
# Labels, and with them marks, come in batches, so that waking the thread that sets them does not count.
BATCH_S = 1
BATCHES = ["analytics.policy=timeout", f"analytics.timeout_ms={1000 * BATCH_S}", "analytics.max_wait_ms=1500"]


def mark_cost(report, arguments):
    need("conntrack", "conntrack")
    need("nft", "nftables")
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        series, port = labelled_series(scratch)
        router(lab)
        server = lab.udp("server", SERVER, port)
        server.settimeout(2)
        costs = {name: [] for name in MARKS}
        for _ in range(arguments.rounds):
            for name, (setting, are_marked, outcome) in MARKS.items():
                lab.run("router", "nft flush chain inet t c")
                rule = f"ct mark set {MASK}" if are_marked else "accept"
                lab.run("router", f"nft add rule inet t c ct state new {rule}")
                sets = [word for it in ['io.interfaces=["in"]', setting, *BATCHES] for word in ("--set", it)]
                fenxi = Fenxi(lab, "router", *sets, config="live-mark.toml", scratch=scratch)
                before = fenxi.thread_cpu("marks")
                new_flows(lab, series, server)
                time.sleep(BATCH_S + 0.5)
                used = fenxi.thread_cpu("marks") - before
                metrics = fenxi.metrics()
                done = sum(value for name, value in metrics.items() if name.startswith("fenxi_marks_total") and f'"{outcome}"' in name)
                fenxi.summary()
                lab.run("router", "conntrack -F 2>/dev/null")
                if done < FLOWS * 0.95:
                    raise Failure(f"{done:.0f} of {FLOWS} marks were {outcome}")
                costs[name].append(1e6 * used / done)
        for name, values in costs.items():
            say(f"mark-cost, {name}: {statistics.median(values):.1f} µs")
            report.add(f"mark-cost, {name}", statistics.median(values), "µs of CPU")
