"""TCP connections beside SYNs from forged addresses: which get a label, of which packets."""

import json
import random
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path

from ..report import say
from .delay import plain_wires
from .lab import DPDK_FENXI, FENXI, Fenxi, Lab, generate_replay, generated

SYNS_PER_S = 100_000
CONNECTIONS_PER_S = 200
HEADERS = 52  # IPv4, and TCP with timestamps
ROUNDS = (
    6  # requests on a connection; with handshake and end well beyond the ten packets of a series
)
PORT = 7443
CLIENT, SERVER = "10.9.0.1", "10.9.0.2"
FORGED = "198.51.100.1"  # on the wire, but of no host: nobody answers
TABLES = (65_536, 1_048_576)


def write_flood(path, count):
    """A capture of SYNs, each of another tuple."""
    draws = random.Random(1)
    ethernet = b"\xff" * 6 + b"\x02" * 6 + b"\x08\x00"
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number in range(count):
            source = struct.pack(">I", draws.getrandbits(32))
            ip = struct.pack(
                ">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, source, socket.inet_aton(FORGED)
            )
            tcp = struct.pack(
                ">HHIIBBHHH", draws.randrange(1024, 65536), 443, 0, 0, 0x50, 0x02, 65535, 0, 0
            )
            frame = ethernet + ip + tcp
            file.write(
                struct.pack(
                    "<IIII", number // SYNS_PER_S, number % SYNS_PER_S * 10, len(frame), len(frame)
                )
                + frame
            )


def serve(listener):
    def answer(stream):
        with stream:
            while request := stream.recv(4096):
                stream.sendall(bytes(500 + len(request)))

    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(stream,), daemon=True).start()


def connect(lab):
    """One connection, request by request."""
    with socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.connect((SERVER, PORT))
        for size in range(100, 100 + ROUNDS):
            stream.sendall(bytes(size))
            wanted = 500 + size
            while wanted > 0:
                wanted -= len(stream.recv(wanted))


def connections(lab, seconds, per_s=CONNECTIONS_PER_S):
    """Makes `per_s` connections a second, evenly; returns how many were made."""

    def work():
        made, began = 0, time.monotonic()
        while time.monotonic() < began + seconds:
            connect(lab)
            made += 1
            time.sleep(max(0, began + made / per_s - time.monotonic()))
        return made

    return lab.inside("left", work)


def outcome(records):
    """(connections with a label, of these with other packets than their first ones)."""
    labelled, wrong = 0, 0
    with open(records) as lines:
        for line in lines:
            if str(PORT) not in line:
                continue
            record = json.loads(line)
            if (
                record["type"] != "flow"
                or record["dst_port"] != PORT
                or record.get("label") is None
            ):
                continue
            labelled += 1
            # The lengths of the packets with payload: the first request and its answer, with
            # headers and timestamps of TCP.
            series = record.get("series", [])
            wrong += series[:2] != [100 + HEADERS, -(600 + HEADERS)][: len(series)]
    return labelled, wrong


def listen():
    listener = socket.create_server((SERVER, PORT), backlog=1024)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    return listener


# Beside one table, every port.

FLOOD, HONEST = 5_000_000, 1_000
MEMORY = ["--no-huge", "-m", "512", "--no-pci"]
INLINE = ["io.mode=inline", 'io.interfaces=["m0", "m1"]']
DEVICES = [f"--vdev=net_af_packet{i},iface=m{i}" for i in range(2)]
PORTS = {
    "packet sockets, tap": ['io.interfaces=["m0"]'],
    "first packets, tap": ['io.interfaces=["m0"]', "io.capture=first"],
    "labels in the kernel, tap": [
        'io.interfaces=["m0"]',
        "io.capture=kernel",
        "model.path=models/protocol-small",
    ],
    "packet sockets, inline": INLINE,
    "af_xdp, inline": [*INLINE, "io.backend=af_xdp"],
    "dpdk over net_af_packet, inline": [
        "io.mode=inline",
        'io.interfaces=["net_af_packet0", "net_af_packet1"]',
        "io.backend=dpdk",
        f"dpdk.args={json.dumps(MEMORY + DEVICES)}",
    ],
}


def flood_ports(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        lab.host("left", "middle", "right")
        lab.wire("left", "g0", "middle", "m0")
        lab.wire("middle", "m1", "right", "s0")
        lab.run("left", f"ip addr add {CLIENT}/24 dev g0")
        lab.run("right", f"ip addr add {SERVER}/24 dev s0")
        plain_wires(lab)
        capture = f"{scratch}/flood.pcap"
        write_flood(capture, FLOOD)
        listener = lab.inside("right", listen)
        for name, settings in PORTS.items():
            program = DPDK_FENXI if "dpdk" in name else FENXI
            if not program.exists():
                say(f"SKIPPED {name}: {program} is not there: make dpdk")
                continue
            bridge = "tap" in name and bridged(lab)
            half, rate = HONEST // CONNECTIONS_PER_S * 4, CONNECTIONS_PER_S / 8
            # The first half fills all that has a bound: the table, the queue of records, the hosts.
            phases = 2, lambda: connections(lab, half, rate), lambda: connections(lab, half, rate)
            settings = [*settings, "flow.max_flows=65536"]
            beside_flood(
                report,
                lab,
                scratch,
                ("middle", "g0", capture),
                name,
                settings,
                phases,
                100,
                program,
            )
            if bridge:
                lab.run("middle", "ip link del br0")
        listener.close()


def bridged(lab):
    lab.run(
        "middle",
        "ip link add br0 type bridge forward_delay 0 && ip link set br0 up && ip link set m0 "
        "master br0 && "
        "ip link set m1 master br0",
    )
    return True


def beside_flood(report, lab, scratch, load, name, settings, phases, bar, program=FENXI):
    """`load`: where fenxi runs, the interface on the left that sends, and what. `phases`: seconds
    before the first connections, then what makes connections before and while memory is measured.
    With `--series`, which tells whose packets gave a label, then without, for memory: offsets of
    series take a page when the first flow that has data takes an entry there, so a table that a
    flood has filled grows with each connection until it has them all.
    """
    (host, sender, capture), (quiet_s, filling, measured) = load, phases
    records = f"{scratch}/records.jsonl"
    # Records of half-open flows give way to others where there is no room for all.
    sets = [*settings, "records.rotate_mib=0", "records.drain_s=18"]
    sets = [word for setting in sets for word in ("--set", setting)]
    options = {"scratch": scratch, "program": program}
    made = labelled = wrong = evicted = lost = syns = 0
    for series in ["--series"], []:
        Path(records).unlink(missing_ok=True)
        fenxi = Fenxi(lab, host, *sets, "--flows", records, *series, **options)
        sending = generate_replay(lab, "left", sender, capture, SYNS_PER_S)
        time.sleep(quiet_s)
        made += filling()
        before = fenxi.rss_kib()
        made += measured()
        after = fenxi.rss_kib()
        evicted += fenxi.sum("fenxi_flows_evicted_total")
        syns += generated(sending)["packets"]
        lost += fenxi.summary()["live"]["kernel_dropped"]
        with_label, with_others = outcome(records)
        labelled, wrong = labelled + with_label, wrong + with_others
    say(
        f"flood, {name}: {labelled} of {made} connections labelled, {wrong} of other packets; "
        f"{evicted:,.0f} flows evicted, {lost} packets lost, RSS {before} to {after} KiB, "
        f"{syns} SYNs sent"
    )
    flood, growth = f"SYN flood, {name}", 100 * (after - before) / before
    report.add(f"{flood}: connections labelled", 100 * labelled / made, "%", bar)
    report.add(f"{flood}: labelled by other packets", wrong, "connections", 0, most=True)
    report.add(f"{flood}: growth of RSS", growth, "%", 1, most=True)


def flood(report, arguments):
    """A small table and a large one, over packet sockets."""
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        lab.host("left", "right")
        lab.wire("left", "l0", "right", "r0")
        lab.run("left", f"ip addr add {CLIENT}/24 dev l0")
        lab.run("right", f"ip addr add {SERVER}/24 dev r0")
        capture, seconds = f"{scratch}/flood.pcap", max(10, arguments.seconds)
        listener = lab.inside("right", listen)
        for entries in TABLES:
            quiet_s = 2 + 1.2 * entries / SYNS_PER_S  # until the table is full, and in memory
            write_flood(capture, int((quiet_s + seconds + 2) * SYNS_PER_S))
            interfaces = 'io.interfaces=["r0"]'
            settings = [interfaces, f"flow.max_flows={entries}", "records.queue=4194304"]
            phases = quiet_s, lambda: 0, lambda: connections(lab, seconds)
            load, name = ("right", "l0", capture), f"{entries} entries"
            beside_flood(report, lab, scratch, load, name, settings, phases, 99.5)
        listener.close()
