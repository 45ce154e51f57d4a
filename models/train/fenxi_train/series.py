"""Captures or flow records to a table of flows.

Captures go through `fenxi replay --series --flows`, so a table holds exactly what a running fenxi would collect: once
for all packets and once for packets with payload.  Records of a live run are read as they are, of the flows that
`records.series` chose.

Column `capture` says what was recorded in one go: the whole path of a capture, or of the file of records, from which
older files of the same service differ only in what rotation appended.
"""

import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from . import cluster, collector, table
from .errors import CANNOT_CREATE, NO_INPUT, USAGE, Refusal, in_line
from .inputs import K_MAX

COLUMNS = (
    "capture", "flow", "proto", "src", "sport", "dst", "dport", "first_us", "packets", "bytes", "midstream",
    "lengths", "payloads", "offsets_us", "flags",
    "data_lengths", "data_payloads", "data_offsets_us", "data_flags", "community_id",
)
FIELDS = {"lengths": "series", "payloads": "series_payload", "offsets": "series_us", "flags": "series_tcp_flags"}
DEFAULT_PROGRAM = "target/release/fenxi"
# Rotation makes PATH.1 of PATH; logrotate also PATH.1.gz, PATH-20261126 and PATH-20261126.gz.
RECORDS = re.compile(r"(.+\.jsonl?)(?:[.-][0-9]+)*(?:\.gz)?")


def run(args):
    files = {}
    for path in args.inputs:
        if not pathlib.Path(path).is_file():
            raise Refusal(f"{path}: no such file", NO_INPUT)
        whole = pathlib.Path(path).resolve()
        if whole in files:
            raise Refusal(f"{path}: the same file as {files[whole]}; give each file once", USAGE)
        files[whole] = path
    if os.path.lexists(args.out):
        raise Refusal(f"{args.out}: exists already; give another name, or remove it", CANNOT_CREATE)
    recorded, captures = {}, []
    for whole, path in files.items():
        log = RECORDS.fullmatch(str(whole))
        if log:
            add_records(recorded, path, log[1], args.unit)
        else:
            captures.append(path)
    rows = list(recorded.values())
    if captures:
        config = args.config and str(pathlib.Path(args.config).absolute())
        absolute = [(path, str(pathlib.Path(path).absolute())) for path in captures]
        for found in cluster.mapped(replayed, (program_of(args.fenxi), config), absolute):
            rows += found
    if not rows:
        raise Refusal(f"{', '.join(args.inputs)}: no TCP or UDP flow with a series; records have it with records.series or --series")
    columns = [c for c in COLUMNS if any(c in row for row in rows)]
    table.write(args.out, rows, columns)
    print(f"{args.out}: {len(rows)} flows of {len(args.inputs)} files")


def program_of(given):
    """The path of the program: the given one, a source tree's, or an installed one."""
    path = pathlib.Path(given or DEFAULT_PROGRAM)
    if path.is_file():
        return str(path.absolute())
    installed = None if given else shutil.which("fenxi")
    if not installed:
        raise Refusal(f"{path}: no such program; install fenxi, build it with `make`, or give --fenxi PROGRAM", NO_INPUT)
    return installed


def replayed(how, capture):
    """The rows of one capture, of both units; `how` is the program and its configuration, `capture`
    its path as given and from the root."""
    with tempfile.TemporaryDirectory(prefix="fenxi-train.") as folder:
        by_flow = {}
        for unit in ("packet", "data"):
            for key, row in replayed_unit(how, capture, unit, pathlib.Path(folder)).items():
                by_flow.setdefault(key, {}).update(row)
        return list(by_flow.values())


def replayed_unit(how, capture, unit, folder):
    (program, config), (shown, path), out = how, capture, folder / f"{unit}.jsonl"
    bundle = collector.write(folder / unit, unit)
    command = [program, "replay", "--series", "--flows", str(out), "--model", str(bundle), path]
    if config:
        command[2:2] = ["--config", config]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Refusal(f"{program}: {error.strerror}", NO_INPUT) from None
    last_line = (done.stderr.strip().splitlines() or [""])[-1]
    if not out.is_file() or done.returncode in (64, 66, 69, 70, 78):
        raise Refusal(f"{shown}: fenxi replay: {last_line or 'failed'}")
    if done.returncode:
        table.note(f"{shown}: fenxi replay ended with {done.returncode}: {last_line}")
    rows = {}
    add_records(rows, out, str(pathlib.Path(path).resolve()), unit)
    return rows


def add_records(rows, path, capture, unit):
    """Adds the flow records of a file to the rows, which are by flow; flows that were not chosen have no series, and no row."""
    with table.open_text(path) as file:
        lines = table.Lines(path, file)
        for line, text in enumerate(lines, 1):
            lines.new_row()
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                if not text.endswith("\n"):
                    break  # the service is still writing this line
                raise in_line(path, line, "not a JSON object; records are one object per line") from None
            if not isinstance(record, dict) or "type" not in record:
                raise in_line(path, line, "not a record of fenxi: no type; see docs/records.md")
            chosen = record["type"] == "flow" and record.get("proto") in (6, 17) and record.get("series") is not None
            if chosen:
                try:
                    add(rows, record, capture, record.get("series_unit", unit))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise in_line(path, line, f"not a flow record with a series ({error}); run fenxi with --series") from None
                if len(rows) > table.FLOWS_LIMIT:
                    raise in_line(path, line, f"more than {table.FLOWS_LIMIT:,} flows; give fewer records")


def add(rows, record, capture, unit):
    """Adds one record to its flow's row: its counts, and its series if that is the longest so far."""
    key = (capture, record.get("first"), record["flow_id"])
    row = rows.setdefault(key, {"capture": capture, "packets": 0, "bytes": 0})
    row.update(
        flow=record["flow_id"], proto=record["proto"], src=record["src"], sport=record["src_port"],
        dst=record["dst"], dport=record["dst_port"], first_us=micros(record["first"]),
        midstream=int(bool(record.get("midstream"))), community_id=record["community_id"],
    )
    row["packets"] += record["packets_fwd"] + record["packets_rev"]
    row["bytes"] += record["bytes_fwd"] + record["bytes_rev"]
    series = record["series"]
    if len(series) > K_MAX:
        raise ValueError(f"a series of {len(series)} numbers; {K_MAX} is the most")
    names = table.COLUMNS[unit]
    if len(series) < len(row.get(names["lengths"], "").split()):
        return
    for part, field in FIELDS.items():
        if part == "flags" and record["proto"] != 6:
            row[names[part]] = ""
        elif field in record and record[field] is not None:
            if len(record[field]) != len(series):
                raise ValueError(f"{field} has {len(record[field])} numbers for {len(series)} lengths")
            strange = [v for v in record[field] if type(v) is not int]
            if strange:
                raise ValueError(f"{field}: {str(strange[0])[:30]!r} is not a whole number")
            row[names[part]] = " ".join(map(str, record[field]))


def micros(text):
    """Microseconds since the epoch of an RFC 3339 time."""
    time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (time - epoch) // datetime.timedelta(microseconds=1)

