"""A lab for services: a client, a router and servers in network namespaces, servers in groups of
processes that get a part of a processor, requests by a plan, and fenxi on the router.

Namespaces and groups are named fenxi-lab-*, and are removed at the end.
"""

import argparse
import contextlib
import gzip
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from fenxi_observe import Actions

HERE = pathlib.Path(__file__).resolve().parent
NAME = f"fenxi-lab-{os.getpid()}"
VIP, PORT, SLOTS = "192.168.1.1", 80, 256
PERIOD_US = 20_000  # a server that may run for a tenth of it waits at most 18 ms
ROUNDS = 300_000  # of the loop for an average request: some 5 ms of a processor

HOSTS = """
ip link add in netns {r} type veth peer name eth netns {c}
ip link add out netns {r} type veth peer name eth netns {s}
ip -n {r} addr add 192.168.1.1/24 dev in
ip -n {r} addr add 192.168.2.1/24 dev out
ip -n {c} addr add 192.168.1.2/24 dev eth
ip -n {r} link set in up
ip -n {r} link set out up
ip -n {c} link set eth up
ip -n {s} link set eth up
ip -n {c} route add default via 192.168.1.1
ip netns exec {r} sysctl -qw net.ipv4.ip_forward=1
ip netns exec {r} sysctl -qw net.ipv4.conf.all.rp_filter=0
ip netns exec {r} sysctl -qw net.ipv4.conf.in.rp_filter=0
ip netns exec {s} sysctl -qw net.core.somaxconn=4096
"""

# fenxi fills the map. `typeof numgen` is the integer that jhash gives; with `typeof jhash`, listing
# the ruleset crashes nft 1.0.6.
RULES = f"""
table ip balance {{
    map servers {{
        typeof numgen inc mod {SLOTS} : ip daddr
    }}
    chain pre {{
        type nat hook prerouting priority dstnat
        ip daddr {VIP} tcp dport {PORT} \
            dnat to jhash ip saddr . tcp sport mod {SLOTS} map @servers
    }}
}}
"""
NO_RULES = "table ip balance { }\ndelete table ip balance\n"  # whether it was there or not

CONFIG = """
[io]
mode = "tap"
# The interface that faces the servers.
interfaces = ["out"]

[measure]
flows = true

[observe]
folder = "{folder}"

[control]
http = ""
socket = "{folder}/control"
"""
SERVICE = """
[service.{name}]
servers = ["{network}"]
protocol = "tcp"
"""
WEIGHTS = """
[weights.web]
map = "ip balance servers"
servers = {{ {servers} }}
socket = "{folder}/weights"
slots = {slots}
"""


class Group:
    """Processes that together get a part of a processor, or as much as any group. They come before
    other work on this machine, so that it does not take what they may have."""

    def __init__(self, stack, name, quota_us=None):
        base = pathlib.Path("/sys/fs/cgroup")
        two, one = base / "cgroup.subtree_control", base / "cpu/cpu.cfs_quota_us"
        if two.exists() and "cpu" in two.read_text().split():
            self.folder = base / name
            limits = {"cpu.max": f"{quota_us or 'max'} {PERIOD_US}", "cpu.weight": 10_000}
        elif one.exists():
            self.folder = base / "cpu" / name
            limits = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us or -1,
                      "cpu.shares": 100_000}
        else:
            sys.exit("no cgroups with the controller cpu; enable it for the root group")
        self.quota = (quota_us or PERIOD_US) / PERIOD_US
        self.folder.mkdir()
        stack.callback(self.remove)
        for file, limit in limits.items():
            (self.folder / file).write_text(str(limit))

    def add(self, pid):
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self):
        for _ in range(50):  # a process that has ended leaves the group a little later
            with contextlib.suppress(OSError):
                return self.folder.rmdir()
            time.sleep(0.1)


class Lab:
    """A client, a router and a host with all servers; `quotas_us` has the servers by address."""

    def __init__(self, stack, quotas_us):
        self.pool = stack.enter_context(ThreadPoolExecutor(16))
        hosts = "client", "router", "server"
        self.names = {host[0]: f"{NAME}-{host}" for host in hosts}
        for name in self.names.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name])
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        for line in HOSTS.format(**self.names).split("\n"):
            subprocess.run(line.split() or ["true"], check=True)
        self.addresses = list(quotas_us)
        for address in self.addresses:
            self.run("s", f"ip addr add {address}/24 dev eth")
        self.run("s", "ip route add default via 192.168.2.1")
        self.groups = [Group(stack, f"{NAME}-{at}", us) for at, us in enumerate(quotas_us.values())]
        self.others = Group(stack, f"{NAME}-others")  # who asks, fenxi, and this program
        self.others.add(os.getpid())
        out = self.others.folder.parent / "cgroup.procs"
        stack.callback(out.write_text, str(os.getpid()))

    def within(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def run(self, host, line, **options):
        subprocess.run(self.within(host) + line.split(), check=True, text=True, **options)

    def nft(self, rules):
        self.run("r", "nft -f -", input=rules)

    def start(self, host, command, group=None, **options):
        process = subprocess.Popen(self.within(host) + command, text=True, **options)
        (group or self.others).add(process.pid)
        return process

    def traffic(self, host, *arguments, **options):
        command = [sys.executable, HERE / "traffic.py", *map(str, arguments)]
        return self.start(host, command, **options)

    @contextlib.contextmanager
    def servers(self):
        """New servers without a queue, as processes."""
        with contextlib.ExitStack() as stack:
            found = []
            for number, (address, group) in enumerate(zip(self.addresses, self.groups)):
                server = self.traffic("s", "serve", address, number, group=group)
                found.append(stack.enter_context(server))  # waits for its end
                stack.callback(server.terminate)
            time.sleep(1)  # to start, of which each has a part of a processor
            yield found

    def ask(self, plan, patience_s):
        """A future of the answers to lines of a plan: (server, due, seconds it took, rounds)."""
        asker = self.traffic("c", "ask", patience_s, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def answers():
            lines = (line.split() for line in asker.communicate("".join(plan))[0].splitlines())
            return [(int(it), float(at), float(took), int(n)) for it, at, took, n in lines]

        return self.pool.submit(answers)

    @contextlib.contextmanager
    def fenxi(self, program, services, into, weights=None):
        """The files of services that a running fenxi fills, by name. With weights, a rule spreads
        connections to the service's address over the servers."""
        folder = into.resolve() / "services"
        config = CONFIG.format(folder=folder)
        config += "".join(SERVICE.format(name=name, network=it) for name, it in services.items())
        self.nft(NO_RULES + (RULES if weights else ""))
        if weights:
            static = (f'"{it}:{PORT}" = {weight}' for it, weight in zip(self.addresses, weights))
            config += WEIGHTS.format(servers=", ".join(static), folder=folder, slots=SLOTS)
        (into / "fenxi.toml").write_text(config)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files = {name: folder / f"{name}.0" for name in services}
        with open(into / "fenxi.log", "w") as log:
            command = [program.resolve(), "run", "--config", into / "fenxi.toml"]
            with self.start("r", command, stdout=log, stderr=log) as fenxi:
                try:
                    while not all(file.exists() for file in files.values()):
                        if fenxi.poll() is not None:
                            sys.exit(f"fenxi has ended: see {into / 'fenxi.log'}")
                        time.sleep(0.1)
                    time.sleep(0.5)
                    yield files
                finally:
                    fenxi.terminate()


class Weights:
    """Weights of servers, which fenxi takes from this program."""

    def __init__(self, own, files):
        self.actions = Actions.connect(files["web"].parent / "weights")
        servers = {str(it.address): it for it in self.actions.egresses}
        self.servers = [servers[address] for address in own.addresses]

    def give(self, weights):
        self.actions.publish(zip(self.servers, weights), valid_s=5)


def parser_of(doc, runs):
    """What all examples take."""
    name = pathlib.Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=name, description=doc.split(";")[0])
    parser.add_argument("fenxi", type=pathlib.Path, help="the program")
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(name),
                        help=f"folder for the results ({name})")
    parser.add_argument("--runs", type=int, default=runs, help=f"({runs})")
    return parser


def run(main):
    """Runs an example. Whatever ends it, namespaces and groups are removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")


def percentiles(took_s, asked):
    """Of the latency of all requests, in ms; unanswered ones are infinitely late."""
    took = sorted(own * 1e3 for own in took_s) + [math.inf] * (asked - len(took_s))
    return {f"p{part}_ms": round(took[len(took) * part // 100], 1) for part in (50, 90, 95, 99)}


def arrivals(file):
    """(seconds, rounds) of requests, from a file or made up."""
    if not file:
        chance, now, found = random.Random(1), 0.0, []
        for _ in range(20_000):
            now += chance.expovariate(100.0)
            found.append((now, chance.expovariate(1.0)))
        return found
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as lines:
        asked = [re.match(r"([\d.]+)[\t,]\S*[?&]n=(\d+)", line) for line in lines]
    found = [(float(it[1]), float(it[2])) for it in asked if it]
    if len(found) < 2:
        sys.exit(f"{file}: no lines of time and query with n=ROUNDS")
    return found[len(found) // 5:]  # traces begin with a rising rate


def plan_of(arrivals, per_s, seconds, run):
    """(seconds, rounds) at this rate; each run begins at another place."""
    count = min(max(int(per_s * seconds), 1), len(arrivals) - 1)
    first = run * count % (len(arrivals) - count)
    part = arrivals[first: first + count + 1]
    faster = count / (part[-1][0] - part[0][0]) / per_s
    heavier = ROUNDS / statistics.fmean(rounds for _, rounds in part)
    return [((at - part[0][0]) * faster, int(rounds * heavier)) for at, rounds in part[1:]]


def line_of(at, address, rounds, size=0):
    return f"{at:.6f} {address} {rounds} {size}\n"
