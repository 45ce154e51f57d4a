"""Gives the flows of a table their labels: from a file, by host, from nDPI, or by server name.

None of this looks into packets on fenxi's data path: names come from files that other tools wrote, or from tshark
run over captures here.
"""

import ipaddress
import json
import pathlib
import subprocess

from . import table
from .errors import CANNOT_CREATE, NO_INPUT, USAGE, Refusal, in_line
from .flowid import community_id, of_row

PROTOCOLS = {"tcp": "6", "udp": "17", "6": "6", "17": "17"}
NAME_FIELDS = ("tls.handshake.extensions_server_name", "http.host")
TUPLE_FIELDS = ("ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "tcp.srcport", "udp.srcport", "tcp.dstport", "udp.dstport")


def run(args):
    if args.by_server_name and not args.suffixes:
        raise Refusal("--by-server-name needs --suffixes FILE: a CSV of suffix,label", USAGE)
    if args.suffixes and not args.by_server_name:
        raise Refusal("--suffixes goes with --by-server-name", USAGE)
    flows = table.read(args.table)
    if args.by_hosts:
        found = by_hosts(flows, args.by_hosts)
    else:
        if args.by_file:
            names = read_labels(args.by_file)
        elif args.by_ndpi:
            names = read_ndpi(args.by_ndpi)
        else:
            names = by_server_name(args.by_server_name, read_pairs(args.suffixes, "suffix"), args.tshark)
        found = [names.get(of_row(row), ("", "")) for row in flows.rows]
    labelled = 0
    for row, (label, sure) in zip(flows.rows, found):
        row["label"], row["confidence"] = label, sure
        labelled += bool(label)
    if not labelled:
        raise Refusal(f"{args.table}: none of its {len(flows.rows)} flows is named there; check that both are of the same captures")
    if args.truth:
        write_truth(args.truth, flows, args.table)
    rows = flows.rows if args.keep_unlabelled else [r for r in flows.rows if r["label"]]
    columns = [c for c in flows.rows[0] if c not in ("label", "confidence") and not c.startswith("_")]
    table.write(args.out, rows, [*columns, "label", "confidence"])
    names = sorted({r["label"] for r in rows if r["label"]})
    print(f"{args.out}: {labelled} of {len(flows.rows)} flows labelled, {len(names)} labels: {', '.join(names[:12])}{' …' if len(names) > 12 else ''}")


def write_truth(path, flows, source):
    """The labels that are certain, as `fenxi ctl model truth` reads them."""
    table.require(flows, ("proto", "sport", "dport", "first_us"), source, "--truth names flows by them")
    lines = []
    for i, row in enumerate(flows.rows):
        if row["label"] and row["confidence"] in table.CERTAIN:
            port = lambda column: table.whole(flows, i, column, 0, 65_535)
            lines.append(json.dumps({
                "proto": table.protocol(flows, i), "src_port": port("sport"), "dst_port": port("dport"),
                "first_us": table.whole(flows, i, "first_us", 0, table.TIME_LIMIT), "label": row["label"],
            }) + "\n")
    try:
        with open(path, "x") as file:
            file.writelines(lines)
    except FileExistsError:
        raise Refusal(f"{path}: exists already; give another name, or remove it", CANNOT_CREATE) from None
    except OSError as error:
        pathlib.Path(path).unlink(missing_ok=True)
        raise Refusal(f"{path}: {error.strerror}", CANNOT_CREATE) from None


def read_csv(path, needed, ragged=False):
    """The rows of a small CSV file, with their lines."""
    return with_lines(table.read(path, ragged), path, needed)


def with_lines(found, path, needed):
    """The rows of a table that has these columns, with their lines."""
    table.require(found, needed, path, f"its first line must be: {','.join(needed)}")
    return [(line, row) for (_, line), row in zip(found.places, found.rows)]


def read_pairs(path, key):
    """A CSV of a key and a label."""
    pairs = {}
    for line, row in read_csv(path, (key, "label")):
        name, label = row[key].strip().lower(), row["label"].strip()
        if not name or not label:
            raise in_line(path, line, f"an empty {key} or label; complete or remove the line")
        pairs[name] = label
    return pairs


def read_labels(path):
    """Labels by Community ID."""
    listed = table.read(path)
    by_id = "community_id" in listed.columns
    needed = ("community_id", "label") if by_id else ("proto", "src", "sport", "dst", "dport", "label")
    found = {}
    for line, row in with_lines(listed, path, needed):
        if not row["label"].strip():
            raise in_line(path, line, "an empty label; complete or remove the line")
        found[row["community_id"].strip() if by_id else id_of(path, line, row)] = (row["label"].strip(), "")
    return found


def id_of(path, line, row):
    proto = PROTOCOLS.get(row["proto"].strip().lower())
    if proto is None:
        raise in_line(path, line, f"proto: '{row['proto'][:20]}'; give tcp, udp, 6 or 17")
    try:
        return community_id(proto, row["src"].strip(), row["sport"], row["dst"].strip(), row["dport"])
    except (ValueError, OverflowError) as error:
        raise in_line(path, line, f"not a 5-tuple: {error}") from None


def read_ndpi(path):
    """Labels by Community ID of what ndpiReader -C wrote, whose lines differ in length; nDPI says itself how it knew (dpi, port, ip)."""
    names = {"src_ip": "src", "src_port": "sport", "dst_ip": "dst", "dst_port": "dport", "protocol": "proto"}
    found = {}
    for line, row in read_csv(path, (*names, "ndpi_proto"), ragged=True):
        row = {**row, **{new: row[old] for old, new in names.items()}}
        label = row["ndpi_proto"].strip()
        if row["proto"].strip() not in ("6", "17") or label in ("", "Unknown"):
            continue
        sure = row.get("confidence", "").strip().lower()  # older versions do not say
        confidence = "dpi" if sure in ("dpi", "6") else sure
        found[id_of(path, line, row)] = (label, confidence)
    return found


def by_hosts(flows, path):
    """(label, confidence) of each row, by the one of its ends that is listed."""
    hosts = {}
    for address, label in read_pairs(path, "address").items():
        try:
            hosts[str(ipaddress.ip_address(address))] = label
        except ValueError:
            hosts[address] = label
    found = []
    for row in flows.rows:
        labels = {hosts[a] for a in (row.get("src", "").lower(), row.get("dst", "").lower()) if a in hosts}
        found.append((labels.pop(), "") if len(labels) == 1 else ("", ""))
    return found


def by_server_name(captures, suffixes, tshark):
    """Labels by Community ID of flows whose client named a server with one of the suffixes."""
    found = {}
    for capture in captures:
        for line in names_in(capture, tshark):
            cells = line.split("\t")
            if len(cells) != len(TUPLE_FIELDS) + len(NAME_FIELDS) + 1:
                continue
            src, dst, sport, dport = (cells[i] or cells[i + 1] for i in (0, 2, 4, 6))
            name = next((c for c in cells[len(TUPLE_FIELDS) + 1 :] if c), "").split(",")[0].strip().lower().rstrip(".")
            label = by_suffix(name.rsplit(":", 1)[0] if name.count(":") == 1 else name, suffixes)
            if label and src and dst:
                proto = "6" if cells[4] else "17"
                found.setdefault(community_id(proto, src.split(",")[0], sport.split(",")[0], dst.split(",")[0], dport.split(",")[0]), (label, ""))
    return found


def by_suffix(name, suffixes):
    """The label of the longest suffix, whole labels of the name only."""
    parts = name.split(".")
    return next((suffixes[s] for i in range(len(parts)) if (s := ".".join(parts[i:])) in suffixes), None)


def names_in(capture, tshark):
    """tshark's lines for packets that name a server: TLS and QUIC ClientHello, HTTP."""
    if not capture or not table.pathlib.Path(capture).is_file():
        raise Refusal(f"{capture}: no such capture", NO_INPUT)
    fields = [part for name in (*TUPLE_FIELDS, "frame.number", *NAME_FIELDS) for part in ("-e", name)]
    wanted = " or ".join(NAME_FIELDS)
    command = [tshark, "-r", str(capture), "-Y", wanted, "-T", "fields", "-E", "occurrence=f", *fields]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Refusal(f"{tshark}: {error.strerror}; install tshark or give --tshark PROGRAM", NO_INPUT) from None
    if done.returncode and not done.stdout:
        raise Refusal(f"{capture}: tshark: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.splitlines()
