#!/usr/bin/env python3
"""Captures of real programs on their usual ports and on odd ones, and the table of their flows.

usage: lab.py capture FOLDER [PROTOCOL ...]      as root, after setup.sh; a capture and a log for each protocol
       lab.py table FOLDER --fenxi PROGRAM       odd_train.csv.gz and odd_judge.csv.gz out of them, in FOLDER

Server and client run in a network namespace each.  Every server listens on each port in turn, and every client
exchanges something small, something medium and something large with it.  The log has one line for each exchange, so a
flow's label is what was run when it began.
"""

import argparse
import contextlib
import csv
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import place
from clients import CLIENTS
from servers import SERVERS

HOST, GUEST = "10.99.0.1", "10.99.0.2"
SERVER, CLIENT = f"lab-s{os.getpid()}", f"lab-c{os.getpid()}"  # namespaces
SIZES = (1, 2, 3)
CLIENT_LIMIT_S, SERVER_START_S = 10, 8

# Usual port first, then three odd ones.
PORTS = {
    "HTTP": (80, 3000, 18080, 46211), "TLS": (443, 9443, 24430, 51544), "DNS": (53, 5300, 10053, 40553),
    "SSH": (22, 2222, 22022, 50022), "MQTT": (1883, 11883, 21883, 41883), "SMTP": (25, 2525, 10025, 52025),
    "FTP_CONTROL": (21, 2121, 21021, 42100), "PostgreSQL": (5432, 6543, 15432, 54320), "LDAP": (389, 3890, 10389, 38901),
    "SNMP": (161, 1161, 16100, 36161), "STUN": (3478, 3579, 13478, 53478), "SIP": (5060, 5160, 15060, 35060),
    "NTP": (123, 1123, 12300, 41230), "QUIC": (443, 4343, 14433, 44330), "BGP": (179, 1790, 17900, 41790),
    "Kerberos": (88, 1088, 8800, 48888), "NetBIOS": (445, 1445, 14450, 44500), "DTLS": (4433, 5684, 14433, 50443),
    "Redis": (6379, 7000, 16379, 46379), "Memcached": (11211, 2111, 21121, 41211), "MySQL": (3306, 3307, 13306, 43306),
    "IMAP": (143, 1143, 10143, 41430), "POP3": (110, 1110, 10110, 41100), "RSYNC": (873, 8730, 18730, 48730),
    "TFTP": (69, 6969, 16900, 46900), "SOCKS": (1080, 1180, 10800, 41080),
}
# Programs whose flows are kept for judging.
JUDGED = {
    "HTTP": {"tornado", "aria2", "httpx"}, "TLS": {"gnutls-serv", "gnutls-cli", "wget"}, "DNS": {"knot", "nsd", "kdig"},
    "SSH": {"asyncssh-server", "asyncssh", "plink"}, "MQTT": {"mqttools", "gmqtt"}, "SMTP": {"exim", "msmtp", "aiosmtplib"},
    "FTP_CONTROL": {"vsftpd", "tnftp", "aioftp"}, "PostgreSQL": {"pgbouncer", "asyncpg"}, "LDAP": {"ldaptor", "impacket"},
    "SNMP": {"snmpsim", "puresnmp"}, "STUN": {"pystun3"}, "SIP": {"sofia"}, "NTP": {"ntpsec", "ntpdig"}, "QUIC": {"ngtcp2", "ngtcp2-server"},
    "BGP": {"frr", "exabgp"}, "Kerberos": {"heimdal", "minikerberos"}, "NetBIOS": {"impacket-server", "smbprotocol"},
    "DTLS": {"gnutls-serv", "gnutls-cli"}, "Redis": {"redis-py"}, "Memcached": {"pymemcache"}, "MySQL": {"pymysql"},
    "IMAP": {"imaplib"}, "POP3": {"poplib"}, "SOCKS": {"socks-curl5"},
}
COLUMNS = ("capture", "flow", "proto", "src", "sport", "dst", "dport", "first_us", "packets", "bytes", "midstream", "lengths", "payloads",
           "offsets_us", "flags", "data_lengths", "data_payloads", "data_offsets_us", "label", "server", "client", "port_kind", "size")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def inside(namespace, argv):
    return ["ip", "netns", "exec", namespace, *map(str, argv)]


@contextlib.contextmanager
def namespaces():
    """Both namespaces, joined by one link without offloads."""
    try:
        for name in (SERVER, CLIENT):
            ip("netns", "add", name)
        ip("link", "add", "lab0", "netns", SERVER, "type", "veth", "peer", "name", "lab0", "netns", CLIENT)
        for name, address in ((SERVER, HOST), (CLIENT, GUEST)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "lab0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "lab0", "up")
            subprocess.run(inside(name, ["ethtool", "-K", "lab0", "tso", "off", "gso", "off", "gro", "off", "tx", "off"]),
                           check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        for name in (SERVER, CLIENT):
            subprocess.run(["ip", "netns", "del", name])


def redirect(usual, port, listen):
    """For programs that know one port only: the kernel exchanges it, so that the odd port is on the wire."""
    for name, rule in ((CLIENT, f"chain x {{ type nat hook output priority -100; ip daddr {HOST} udp dport {usual} dnat to {HOST}:{port}; }}"),
                       (SERVER, f"chain x {{ type nat hook prerouting priority -100; udp dport {port} redirect to :{listen}; }}")):
        subprocess.run(inside(name, ["nft", "delete", "table", "ip", "lab"]), stderr=subprocess.DEVNULL)
        subprocess.run(inside(name, ["nft", f"table ip lab {{\n{rule}\n}}"]), check=True)


def started(argvs, folder, name, log):
    environment = place.environment(folder)
    return [subprocess.Popen(inside(name, a), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
            for a in argvs]


def stopped(processes):
    """Ends processes and their children, each in a session of its own."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                place.signal_session(process.pid, wanted)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(3)


def listening(at):
    """Waits until a program listens on the port."""
    end = time.monotonic() + SERVER_START_S
    while time.monotonic() < end:
        found = subprocess.run(inside(SERVER, ["ss", "-Hlnut", "sport", "=", f":{at.listen}"]), capture_output=True, text=True).stdout
        if found.strip():
            return True
        time.sleep(0.2)
    return False


def exchange(at, client, log):
    """Runs one client; its exit code, None where it did not end."""
    argv = client(at)
    argv, given = argv if isinstance(argv, tuple) else (argv, "")
    process = subprocess.Popen(inside(CLIENT, argv), stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=at.folder, text=True,
                               env=place.environment(at.folder), start_new_session=True)
    try:
        process.communicate(given, timeout=CLIENT_LIMIT_S)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        stopped([process])
        return None
    return process.returncode


def capture(folder, protocol):
    """One protocol: its capture, and the log of exchanges."""
    tap = subprocess.Popen(inside(CLIENT, ["tcpdump", "-q", "-U", "-s", "128", "-i", "lab0", "-w", folder / f"{protocol}.pcap"]), stderr=subprocess.DEVNULL)
    time.sleep(1)
    codes = []
    try:
        with open(folder / f"{protocol}.jsonl", "w") as lines, open(folder / f"{protocol}.log", "w") as log:
            for name, server in SERVERS[protocol].items():
                for kind, port in zip(("usual", "odd", "odd", "odd"), PORTS[protocol]):
                    for row in exchanges(protocol, name, server, port, log):
                        lines.write(json.dumps({**row, "server": name, "port": port, "kind": kind}) + "\n")
                        codes.append(row["code"])
        time.sleep(1)
    finally:
        stopped([tap])
    print(f"{protocol}: {len(codes)} exchanges, {sum(c != 0 for c in codes)} with another exit code than 0")


def exchanges(protocol, name, server, port, log):
    """What all clients exchange with one server on one port."""
    at = place.Site(HOST, GUEST, port, place.new_folder(protocol, name, port))
    running = started(server(at), at.folder, SERVER, log)
    try:
        if protocol == "NTP":
            redirect(PORTS[protocol][0], port, at.listen)
        if not listening(at):
            print(f"{protocol}: {name} does not listen on {at.listen}; see {log.name}", file=sys.stderr)
            return
        for client_name, client in CLIENTS[protocol].items():
            for at.size in SIZES:
                log.write(f"== {name} {port} {client_name} {at.size}\n")
                log.flush()
                begin = time.time()
                code = exchange(at, client, log)
                log.write(f"== ends with {code}\n")
                yield {"begin": begin, "end": time.time(), "client": client_name, "size": at.size, "code": code}
    finally:
        stopped(running)


def rows_of(folder, protocol, series):
    """The flows of one protocol that began during an exchange with its port (or are the data of an FTP exchange)."""
    exchanges = [json.loads(line) for line in open(folder / f"{protocol}.jsonl")]
    for row in series:
        first, port = int(row["first_us"]) / 1e6, int(row["dport"])
        found = next((e for e in exchanges if e["begin"] - 0.05 <= first <= e["end"] + 0.05), None)
        if found is None or not row.get("data_lengths") or row["midstream"] == "1":
            continue
        label = protocol if port == found["port"] else "FTP_DATA" if protocol == "FTP_CONTROL" else None
        if label:
            kind = found["kind"] if label == protocol else "odd"
            yield {**row, "capture": f"{protocol}/{found['server']}/{found['client']}", "label": label,
                   "server": found["server"], "client": found["client"], "port_kind": kind, "size": found["size"]}


def table(folder, fenxi_train, fenxi):
    """Both tables."""
    made = {"train": [], "judge": []}
    for path in sorted(folder.glob("*.pcap")):
        protocol, out = path.stem, folder / f"{path.stem}.csv.gz"
        if not out.exists() or out.stat().st_mtime < path.stat().st_mtime:
            out.unlink(missing_ok=True)
            subprocess.run([fenxi_train, "series", str(path), "--fenxi", fenxi, "--out", str(out)], check=True)
        with gzip.open(out, "rt", newline="") as file:
            for row in rows_of(folder, protocol, csv.DictReader(file)):
                judged = {row["server"], row["client"]} & JUDGED.get(protocol, set())
                made["judge" if judged else "train"].append(row)
    for name, rows in made.items():
        path = folder / f"odd_{name}.csv.gz"
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped:
            zipped.write(place.csv_bytes(rows, COLUMNS))
        print(f"{path}: {len(rows)} flows")


def main():
    parser = argparse.ArgumentParser(description="captures of real programs on usual and odd ports")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("capture")
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("protocols", nargs="*", metavar="PROTOCOL")
    two = commands.add_parser("table")
    two.add_argument("folder", type=pathlib.Path)
    two.add_argument("--fenxi", required=True)
    two.add_argument("--fenxi-train", default=str(pathlib.Path(__file__).parent.parent / "run.sh"))
    args = parser.parse_args()
    if args.command == "table":
        return table(args.folder, args.fenxi_train, args.fenxi)
    args.folder.mkdir(parents=True, exist_ok=True)
    unknown = [p for p in args.protocols if p not in PORTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(PORTS)}")
    place.prepare(HOST)
    with namespaces():
        for protocol in args.protocols or SERVERS:
            capture(args.folder, protocol)


if __name__ == "__main__":
    sys.exit(main())
