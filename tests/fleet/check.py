"""The views of examples/fleet give the same answers in ClickHouse (chdb), in DuckDB, and in this
file's own arithmetic over the same records.

usage: check.py RECORDS.jsonl
"""

import ipaddress
import json
import sys
import tomllib
from collections import Counter, defaultdict
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from chdb import session

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/fleet"
VIEWS = ["by_hour", "by_host", "by_service", "by_decision", "by_router"]
ROUTER = "here"
PRIVATE = "10.0.0.0/8 192.168.0.0/16 172.16.0.0/12 169.254.0.0/16 100.64.0.0/10 fc00::/7 fe80::/10"
PRIVATE = [ipaddress.ip_network(network) for network in PRIVATE.split()]
PROTOCOLS = {6: "tcp", 17: "udp"}


def is_private(address):
    address = ipaddress.ip_address(address)
    return any(address in network for network in PRIVATE)


def time(text):
    return datetime.fromisoformat(text)


def traffic(record):
    """(hour, label, host, service, flows, packets, bytes up, bytes down), as the history sums."""
    is_served = not is_private(record["src"]) and is_private(record["dst"])
    up, down = ("bytes_rev", "bytes_fwd") if is_served else ("bytes_fwd", "bytes_rev")
    is_server = record["midstream"] and record["src_port"] < record["dst_port"]
    port = record["src_port"] if is_server else record["dst_port"]
    return (
        time(record["last"]).replace(minute=0, second=0, microsecond=0),
        record["label"] or "",
        record["dst"] if is_served else record["src"],
        "icmp" if record["proto"] in (1, 58) else f"{port}/{PROTOCOLS.get(record['proto'], record['proto'])}",
        int(record["final"]),
        record["packets_fwd"] + record["packets_rev"],
        record[up],
        record[down],
    )


def expected(records):
    """Rows of each view."""
    hours, services, users = defaultdict(Counter), defaultdict(Counter), defaultdict(set)
    hosts = defaultdict(lambda: defaultdict(Counter))
    for hour, label, host, service, flows, packets, up, down in map(traffic, records):
        hours[hour, label].update(flows=flows, packets=packets, up=up, down=down)
        hosts[host][label].update(flows=flows, bytes=up + down)
        services[service, label].update(flows=flows, bytes=up + down)
        users[service, label].add(host)
    total = lambda labels, what: sum(it[what] for it in labels.values())
    most = lambda labels: max(labels, key=lambda label: (labels[label]["bytes"], label))
    ended = [record for record in records if record["final"]]
    deciders = defaultdict(list)
    for record in ended:
        deciders[record["decided_by"] or ""].append(record)
    sure = lambda of: [record["confidence"] for record in of if record["confidence"] is not None]
    mean = lambda values: sum(values) / len(values) if values else None
    return {
        "by_hour": sorted((*key, it["flows"], it["packets"], it["up"], it["down"]) for key, it in hours.items()),
        "by_host": sorted(
            ((ROUTER, host, total(labels, "flows"), total(labels, "bytes"), most(labels)) for host, labels in hosts.items()),
            key=lambda row: (-row[3], row[1]),
        ),
        "by_service": sorted(
            ((*key, len(users[key]), it["flows"], it["bytes"]) for key, it in services.items()),
            key=lambda row: (-row[4], *row[:2]),
        ),
        "by_decision": [
            (decider, len(of), mean(sure(of)), sum(record["label"] in (None, "unknown") for record in of))
            for decider, of in sorted(deciders.items())
        ],
        "by_router": [
            (
                ROUTER,
                len({record["src"] for record in records}),
                len(ended),
                sum(record["bytes_fwd"] + record["bytes_rev"] for record in records),
                max(time(record["last"]) for record in records),
            )
        ],
    }


def same(value):
    """A value as all three have it: times in UTC, sums as numbers."""
    match value:
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
        case Decimal():
            return int(value)
        case float():
            return round(value, 2)
        case _:
            return value


def answers(rows):
    return [tuple(map(same, row)) for row in rows]


def from_duckdb(path):
    database = duckdb.connect()
    database.execute("SET VARIABLE records = ?", [str(path)])
    database.execute((EXAMPLES / "duckdb.sql").read_text())
    return {view: database.execute(f"FROM {view}").fetchall() for view in VIEWS}


def from_clickhouse(path, folder):
    """As vector.toml feeds it, and twice, as Vector may."""
    sink = tomllib.loads((EXAMPLES / "vector.toml").read_text())["sinks"]["clickhouse"]
    table = f"{sink['database']}.{sink['table']}"
    settings = f"input_format_skip_unknown_fields = {int(sink['skip_unknown_fields'])}"
    if sink["date_time_best_effort"]:
        settings += ", date_time_input_format = 'best_effort'"
    records = map(json.loads, path.read_text().splitlines())
    lines = "\n".join(json.dumps(record | {"router": ROUTER}) for record in records if record["type"] == "flow")
    database = session.Session(str(folder))
    for statement in (EXAMPLES / "clickhouse.sql").read_text().split(";\n"):
        if any(line and not line.startswith("--") for line in statement.splitlines()):
            database.query(statement)
    for _ in range(2):
        database.query(f"INSERT INTO {table} SETTINGS {settings} FORMAT JSONEachRow\n{lines}")
    found = {}
    for view in VIEWS:
        result = str(database.query(f"SELECT * FROM fenxi.{view} FORMAT JSONCompactEachRowWithNamesAndTypes"))
        _, types, *rows = map(json.loads, result.splitlines())
        found[view] = [[of_type(value, kind) for value, kind in zip(row, types)] for row in rows]
    database.close()
    return found


def of_type(value, kind):
    if value is not None and "DateTime" in kind:
        return datetime.fromisoformat(value)
    return int(value) if "Int" in kind else value


def main():
    path = Path(sys.argv[1])
    records = [record for record in map(json.loads, path.read_text().splitlines()) if record["type"] == "flow"]
    wanted = expected(records)
    with TemporaryDirectory() as folder:
        found = {"duckdb": from_duckdb(path), "clickhouse": from_clickhouse(path, folder)}
    for view in VIEWS:
        rows = answers(wanted[view])
        for engine, views in found.items():
            if answers(views[view]) != rows:
                differ = [pair for pair in zip(answers(views[view]), rows) if pair[0] != pair[1]][:3]
                sys.exit(f"{engine}: {view}: {len(views[view])} rows, expected {len(rows)}: {differ}")
        print(f"{view}: {len(rows)} rows")


if __name__ == "__main__":
    main()
