"""Hosts in network namespaces, programs on them, and what the kernel counts of both."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from ..report import ROOT, TARGET, Failure, Skip, output_of

FENXI = TARGET / "release" / "fenxi"
FENXI_LAB = TARGET / "release" / "fenxi-lab"
DPDK_FENXI = TARGET / "dpdk" / "fenxi"
FORWARD = TARGET / "release" / "examples" / "forward"
CLONE_NEWNET = 0x40000000


def need(program, package):
    if not shutil.which(program):
        raise Skip(f"{program} is not installed (Debian: {package})")
    return program


def quantile(values, share):
    """The smallest of the values that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


class Lab:
    """Namespaces and the programs in them; both end with it."""

    def __init__(self):
        self.prefix, self.holders, self.running = f"figures-{os.getpid()}-", {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.running, *self.holders.values()]:
            process.kill()
            process.wait()
        for host in self.holders:
            subprocess.run(["ip", "netns", "del", self.prefix + host], stderr=subprocess.DEVNULL)

    def host(self, *names):
        for name in names:
            output_of("ip", "netns", "add", self.prefix + name)
            self.holders[name] = subprocess.Popen(self.on(name, ["sleep", "infinity"]))
            for scope in ("all", "default"):
                self.run(name, f"echo 1 > /proc/sys/net/ipv6/conf/{scope}/disable_ipv6")

    def wire(self, host, device, other, its_device, mtu=1500):
        output_of(
            "ip",
            "link",
            "add",
            device,
            "mtu",
            str(mtu),
            "netns",
            self.prefix + host,
            "type",
            "veth",
            "peer",
            "name",
            its_device,
            "mtu",
            str(mtu),
            "netns",
            self.prefix + other,
        )
        self.run(host, f"ip link set {device} up")
        self.run(other, f"ip link set {its_device} up")

    def on(self, host, command):
        return ["ip", "netns", "exec", self.prefix + host, *map(str, command)]

    def run(self, host, line):
        return output_of(*self.on(host, ["sh", "-ec", line]))

    def start(self, host, command, cpu=None, **options):
        pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        } | options
        process = subprocess.Popen(self.on(host, [*pinned, *command]), **options)
        self.running.append(process)
        return process

    def stop(self, process, code=0, with_signal=signal.SIGTERM):
        """Ends a program; what it printed."""
        process.send_signal(with_signal)
        try:
            out, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            code = process.returncode  # some peers do not heed a signal before the next packet
        self.running.remove(process)
        if code is not None and process.returncode != code:
            raise Failure(f"{' '.join(process.args[4:8])} ended with code {process.returncode}")
        return out

    def inside(self, host, work):
        """Does `work` on a thread in the host's namespace; sockets stay where they were opened."""
        result = []

        def enter():
            with open(f"/run/netns/{self.prefix}{host}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            result.append(work())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if not result:
            raise Failure(f"no way into the namespace of {host}")
        return result[0]

    def udp(self, host, address, port=0):
        def opened():
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((address, port))
            return udp

        return self.inside(host, opened)

    def counted(self, host, device):
        """(packets received, packets sent) of an interface."""
        for line in Path(f"/proc/{self.holders[host].pid}/net/dev").read_text().splitlines():
            name, _, figures = line.partition(":")
            if name.strip() == device:
                figures = figures.split()
                return int(figures[1]), int(figures[9])
        raise Failure(f"{host} has no interface {device}")


class Fenxi:
    """A `fenxi run` on a host, with sockets of its own."""

    def __init__(
        self,
        lab,
        host,
        *arguments,
        cpu=None,
        config=None,
        scratch,
        ready=True,
        program=FENXI,
        **options,
    ):
        self.lab, self.http, self.ctl = lab, f"{scratch}/http", f"{scratch}/ctl"
        command = [
            program,
            "run",
            "--json",
            "--set",
            f"control.http=unix:{self.http}",
            "--set",
            f"control.socket={self.ctl}",
        ]
        if config:
            command += ["--config", ROOT / "configs" / config]
        self.log = Path(f"{scratch}/stderr")
        with open(self.log, "w") as log:
            self.process = lab.start(host, [*command, *arguments], cpu, stderr=log, **options)
        if ready:
            self.wait_ready()

    def wait_ready(self):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Failure(f"fenxi ended before it was ready: {self.log.read_text().strip()}")
            with contextlib.suppress(OSError):
                if self.get("/readyz").startswith("HTTP/1.1 200"):
                    return
            time.sleep(0.02)
        raise Failure("fenxi is not ready after 30 s")

    def get(self, path):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(self.http)
            stream.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: stream.recv(65536), b"")).decode()

    def metrics(self):
        """{sample: value}"""
        body = self.get("/metrics").partition("\r\n\r\n")[2]
        samples = (
            line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#")
        )
        return {name: float(value) for name, _, value in samples}

    def sum(self, metric, metrics=None):
        metrics = metrics or self.metrics()
        return sum(value for name, value in metrics.items() if name.split("{")[0] == metric)

    def command(self, **request):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(120)
            stream.connect(self.ctl)
            stream.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(stream.makefile().readline())

    def cpu(self):
        return cpu_of(self.process.pid)

    def thread_cpu(self, name):
        """Seconds on a CPU of the threads with this name."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        named = [task for task in tasks if (task / "comm").read_text().strip() == name]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in named) / 1e9

    def rss_kib(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise Failure("fenxi has ended")

    def summary(self):
        return json.loads(self.lab.stop(self.process))


def cpu_of(pid):
    """CPU seconds of a process's live threads, to the nanosecond; `stat` has ticks of 10 ms."""
    return (
        sum(
            int(task.read_text().split()[0])
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )
        / 1e9
    )


def generate(lab, host, device, pps, seconds, *more, flows_per_s=None, cpu=0):
    """`fenxi-lab generate` out of an interface: an application mix, evenly paced."""
    flows = flows_per_s or pps / 13.6  # packets of a flow of the shipped capture
    return lab.start(
        host,
        [
            FENXI_LAB,
            "generate",
            "--interface",
            device,
            "--pps",
            int(pps),
            "--flows-per-s",
            flows,
            "--seconds",
            seconds,
            "--json",
            *more,
        ],
        cpu,
    )


def generate_replay(lab, host, device, capture, pps, cpu=0):
    """`fenxi-lab generate` out of an interface: a capture as it is, evenly paced."""
    return lab.start(
        host,
        [
            FENXI_LAB,
            "generate",
            capture,
            "--replay",
            "--interface",
            device,
            "--pps",
            int(pps),
            "--json",
        ],
        cpu,
    )


def generated(process):
    out, _ = process.communicate()
    if process.returncode != 0:
        raise Failure(f"fenxi-lab generate ended with code {process.returncode}")
    return json.loads(out)
