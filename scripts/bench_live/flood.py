"""Ordinary TCP connections beside SYNs from forged addresses: which of them get a label, of which packets."""

import collections
import json
import random
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path

from .lab import Failure, Fenxi, Lab, generate_replay, generated, say

SYNS_PER_S = 100_000
CONNECTIONS_PER_S = 200
ROUNDS = 6  # requests on a connection; with handshake and end well beyond the ten packets of a series
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
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, source, socket.inet_aton(FORGED))
            tcp = struct.pack(">HHIIBBHHH", draws.randrange(1024, 65536), 443, 0, 0, 0x50, 0x02, 65535, 0, 0)
            frame = ethernet + ip + tcp
            file.write(struct.pack("<IIII", number // SYNS_PER_S, number % SYNS_PER_S * 10, len(frame), len(frame)) + frame)


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


def connections(lab, seconds):
    """So many connections, evenly; how many were made."""
    def work():
        made, began = 0, time.monotonic()
        while time.monotonic() < began + seconds:
            connect(lab)
            made += 1
            time.sleep(max(0, began + made / CONNECTIONS_PER_S - time.monotonic()))
        return made
    return lab.inside("left", work)


def outcome(records):
    """(connections with a label, of these with other packets than their first ones)."""
    labelled, wrong = 0, collections.Counter()
    for line in Path(records).read_text().splitlines():
        record = json.loads(line)
        if record["type"] != "flow" or PORT not in (record["src_port"], record["dst_port"]):
            continue
        if record.get("label") is None:
            continue
        labelled += 1
        series = record["series"]
        # SYN, SYN with ACK, and then the first request, with or without an ACK of its own before.
        begins = record["dst_port"] == PORT and series[0] > 0 > series[1] and series[2] > 0
        wrong[not begins or 152 not in series[2:4]] += 1
    return labelled, wrong[True]


def flood(report, arguments):
    with Lab() as lab, tempfile.TemporaryDirectory() as scratch:
        lab.host("left", "right")
        lab.wire("left", "l0", "right", "r0")
        lab.run("left", f"ip addr add {CLIENT}/24 dev l0")
        lab.run("right", f"ip addr add {SERVER}/24 dev r0")
        capture = f"{scratch}/flood.pcap"
        seconds = max(10, arguments.seconds)

        def listen():
            listener = socket.create_server((SERVER, PORT), backlog=1024)
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            return listener
        listener = lab.inside("right", listen)
        for entries in TABLES:
            records = f"{scratch}/{entries}.jsonl"
            warm_s = 2 + 1.2 * entries / SYNS_PER_S  # until the table is full, and in memory
            write_flood(capture, int((warm_s + seconds + 2) * SYNS_PER_S))
            sets = ['io.interfaces=["r0"]', f"flow.max_flows={entries}", "records.queue=4194304",
                    "records.rotate_mib=0", "records.drain_s=18"]
            sets = [word for setting in sets for word in ("--set", setting)]
            fenxi = Fenxi(lab, "right", *sets, "--flows", records, "--series", scratch=scratch)
            load = generate_replay(lab, "left", "l0", capture, SYNS_PER_S)
            time.sleep(warm_s)
            before = fenxi.rss_kib()
            made = connections(lab, seconds)
            after, evicted = fenxi.rss_kib(), fenxi.sum("fenxi_flows_evicted_total")
            sent = generated(load)
            summary = fenxi.summary()
            lost = summary["live"]["kernel_dropped"]
            labelled, wrong = outcome(records)
            share = 100 * labelled / made
            say(f"flood, {entries} entries: {labelled} of {made} connections labelled, {wrong} of other packets; "
                f"{evicted:,.0f} flows evicted, {lost} packets lost in the kernel, RSS {before} to {after} KiB, sent {sent}")
            report.add(f"SYN flood, {entries} entries: connections labelled", share, "%", 99.5)
            report.add(f"SYN flood, {entries} entries: labelled by other packets", wrong, "connections", 0, most=True)
            report.add(f"SYN flood, {entries} entries: growth of RSS", 100 * (after - before) / before, "%", 1, most=True)
        listener.close()
    if not report.results:
        raise Failure("nothing was measured")
