"""Tables of flows: CSV, gzipped or not, one flow in each row.

docs/model.md lists the columns.  Two forms are read: offsets since the flow's first packet with flags as decimal
numbers (`offsets_us`), and gaps between packets with flags in hexadecimal (`iat_us`).  Everything that is
wrong in a table is refused with its file and line.
"""

import csv
import dataclasses
import gzip
import pathlib
import re
import sys

import numpy as np

from .errors import NO_INPUT, Refusal, in_line
from .inputs import ACK, LENGTH_MAX, LOCAL, SYN, TCP, TIME_MAX, UDP

LENGTH_LIMIT = 262_144  # no capture holds a longer packet
TIME_LIMIT = 2**53
LIST_LIMIT = 100_000  # characters
ROW_LIMIT = 2**20  # characters of a row, as `fenxi model bench` has it
FLOWS_LIMIT = 500_000  # flows of a table, as there
CELLS_LIMIT = 60 * FLOWS_LIMIT  # cells of a table; a cell takes some 100 bytes of memory
TABLE_LIMIT = 2**29  # characters of a table, unpacked
CERTAIN = ("", "dpi")  # values of `confidence` that make a label count

# The columns that hold a feature's numbers.
COLUMNS = {
    "packet": {"lengths": "lengths", "payloads": "payloads", "offsets": "offsets_us", "flags": "flags"},
    "data": {"lengths": "data_lengths", "payloads": "data_payloads", "offsets": "data_offsets_us", "flags": "data_flags"},
}
NEEDED = {
    "signed_length": ("lengths",),
    "payload_length": ("lengths", "payloads"),
    "inter_arrival_us": ("lengths", "offsets"),
    "tcp_flags": ("lengths", "flags"),
}


@dataclasses.dataclass
class Table:
    """The rows of one or more files, each with its file and line."""

    rows: list[dict]
    places: list[tuple[str, int]]
    columns: set[str]

    def refuse(self, i, text):
        return in_line(*self.places[i], text)

    def keep(self, wanted):
        """The rows for which `wanted` is true."""
        kept = [i for i, w in enumerate(wanted) if w]
        return Table([self.rows[i] for i in kept], [self.places[i] for i in kept], self.columns)


def open_text(path):
    """A text file, gzipped or not."""
    path = pathlib.Path(path)
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", newline="", encoding="utf-8") if zipped else open(path, newline="", encoding="utf-8")
    except IsADirectoryError:
        raise Refusal(f"{path}: a folder, not a table", NO_INPUT) from None
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror or error}", NO_INPUT) from None


class Lines:
    """The lines of a text file, of which no more than a row is in memory; after each row its reader calls `new_row`."""

    def __init__(self, path, file):
        self.path, self.file = path, file
        self.number = self.total = 0
        self.new_row()

    def __iter__(self):
        return self

    def __next__(self):
        line = self.file.readline(ROW_LIMIT + 1)
        if not line:
            raise StopIteration
        self.number, self.row, self.total = self.number + 1, self.row + len(line), self.total + len(line)
        if self.row > ROW_LIMIT:
            raise in_line(self.path, self.begin, f"a row of more than {ROW_LIMIT:,} characters; remove it, or close its quotes")
        return line

    def new_row(self):
        self.begin, self.row = self.number + 1, 0


def rows_of(path, lines, reader, columns):
    """The rows of a reader of these lines; refuses a table that takes too much memory."""
    limit = min(FLOWS_LIMIT, CELLS_LIMIT // columns)
    for count, row in enumerate(reader, 1):
        if count > limit:
            raise in_line(path, lines.number, f"more than {limit:,} flows of {columns:,} columns; leave out flows or columns")
        if lines.total > TABLE_LIMIT:
            raise in_line(path, lines.number, f"more than {TABLE_LIMIT:,} characters; leave out flows or columns")
        lines.new_row()
        yield row


def read(path, ragged=False):
    """One table; `ragged`: lines may have more or fewer cells than the first."""
    csv.field_size_limit(ROW_LIMIT)
    rows, places = [], []
    try:
        with open_text(path) as file:
            lines = Lines(path, file)
            reader = csv.DictReader(lines)
            names = reader.fieldnames or []
            if not names:
                raise Refusal(f"{path}: empty; a table begins with a line of column names")
            lines.new_row()
            for row in rows_of(path, lines, reader, len(names)):
                if ragged:
                    row = {k: v or "" for k, v in row.items() if k is not None}
                elif None in row or None in row.values():
                    found = sum(v is not None for k, v in row.items() if k is not None) + len(row.get(None) or [])
                    raise in_line(path, reader.line_num, f"{found} cells for {len(names)} columns; quote commas, or complete the line")
                rows.append(row)
                places.append((str(path), reader.line_num))
    except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise Refusal(f"{path}: line {len(rows) + 2}: not readable as CSV: {error}") from None
    if not rows:
        raise Refusal(f"{path}: no flows below the line of column names")
    return Table(rows, places, set(names))


def read_all(paths, joined=()):
    """All tables, one after the other; tables in `joined` add columns to the rows with the same capture and flow."""
    more = {}
    more_columns = set()
    for path in joined:
        table = read(path)
        require(table, ("capture", "flow"), path, "a joined table is matched by them")
        for row in table.rows:
            more.setdefault((row["capture"], row["flow"]), {}).update(row)
        more_columns |= table.columns
    all_rows, places, columns = [], [], None
    for path in paths:
        table = read(path)
        if more and {"capture", "flow"} <= table.columns and "data_lengths" not in table.columns:
            table.rows = [{**more.get((r["capture"], r["flow"]), dict.fromkeys(more_columns, "")), **r} for r in table.rows]
            table.columns = table.columns | more_columns
        source = pathlib.Path(path).name.split(".")[0]
        for row in table.rows:
            row.setdefault("source", source)
            row["_hex_flags"] = "iat_us" in table.columns
        all_rows += table.rows
        places += table.places
        columns = table.columns if columns is None else columns & table.columns | ({"source"})
    return Table(all_rows, places, columns | {"source"})


def require(table, names, path, why):
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise Refusal(f"{path}: line 1: no column {', '.join(missing)}; {why}")


def integer(text, base=10):
    """A whole number in ASCII digits; int() also takes digits of other scripts, and `1_0`."""
    digits = "[0-9a-fA-F]" if base == 16 else "[0-9]"
    if not re.fullmatch(f"[+-]?{digits}{{1,30}}", text.strip()):
        raise ValueError(f"'{text[:30]}' is not a whole number")
    return int(text, base)


def numbers(table, i, column, limit, base=10):
    """The whole numbers of one cell."""
    text = table.rows[i].get(column, "")
    if len(text) > LIST_LIMIT:
        raise table.refuse(i, f"{column}: {len(text)} characters; a series needs no more than 32 numbers")
    try:
        found = [integer(v, base) for v in text.split()]
    except ValueError as error:
        raise table.refuse(i, f"{column}: {error}; write whole numbers with spaces between") from None
    if any(abs(v) > limit for v in found):
        worst = max(found, key=abs)
        raise table.refuse(i, f"{column}: {str(worst)[:30]} is beyond {limit}; mend the number or remove the line")
    return found


def whole(table, i, column, low, high):
    """One whole number of a row."""
    text = table.rows[i].get(column, "")
    try:
        value = integer(text)
    except ValueError as error:
        raise table.refuse(i, f"{column}: {error}") from None
    if not low <= value <= high:
        raise table.refuse(i, f"{column}: {value} is not within {low} to {high}")
    return value


def check_columns(table, paths, input):
    """Refuses a table that lacks what the model reads."""
    names = COLUMNS[input.unit]
    needed = {names[part] for feature in input.features for part in NEEDED[feature]}
    if "offsets_us" in needed and "iat_us" in table.columns:
        needed.discard("offsets_us")
    if input.context:
        needed |= {"proto", "dport"}
    where = paths[0] if len(paths) == 1 else "one of " + ", ".join(map(str, paths))
    require(table, sorted(needed), where, f"unit {input.unit} and these features need it (docs/model.md)")


def offsets(table, i, unit):
    if unit == "packet" and table.rows[i].get("_hex_flags"):
        return list(np.cumsum(numbers(table, i, "iat_us", TIME_LIMIT)))
    return numbers(table, i, COLUMNS[unit]["offsets"], TIME_LIMIT)


def series(table, input):
    """Series float32 [flows, features, k] with zeros behind a flow's end, and the number of elements of each flow."""
    names = COLUMNS[input.unit]
    made = np.zeros((len(table.rows), len(input.features), input.k), np.float32)
    counts = np.zeros(len(table.rows), int)
    for i, row in enumerate(table.rows):
        lengths = numbers(table, i, names["lengths"], LENGTH_LIMIT)[: input.k]
        n = counts[i] = len(lengths)
        if 0 in lengths:
            raise table.refuse(i, f"{names['lengths']}: a length of 0; a packet has at least its IP header")
        for channel, feature in enumerate(input.features):
            made[i, channel, :n] = fitting(table, i, feature, lengths, input.unit)
    return made, counts


def fitting(table, i, feature, lengths, unit):
    """The numbers of one feature, as many as there are lengths."""
    n, names = len(lengths), COLUMNS[unit]
    if feature == "signed_length":
        return np.clip(lengths, -LENGTH_MAX, LENGTH_MAX)
    if feature == "payload_length":
        found = np.minimum(np.abs(numbers(table, i, names["payloads"], LENGTH_LIMIT)), LENGTH_MAX)
    elif feature == "inter_arrival_us":
        times = np.array(offsets(table, i, unit), float)
        found = np.clip(np.diff(times, prepend=times[:1]), 0, TIME_MAX)
    else:
        base = 16 if table.rows[i].get("_hex_flags") and unit == "packet" else 10
        found = numbers(table, i, names["flags"], 255, base) or [0] * n
    if len(found) < n:
        raise table.refuse(i, f"{feature}: {len(found)} numbers for {n} lengths; the lists of a flow have the same length")
    return found[:n]


def context(table, input, hidden=None):
    """Context float32 [flows, C]: protocol, port of the server.  `hidden` marks flows whose port is given
    as 0, by default those that begin mid-stream."""
    made = np.zeros((len(table.rows), len(input.context)), np.float32)
    if not input.context:
        return made
    hidden = midstream(table) if hidden is None else hidden
    for i in range(len(table.rows)):
        values = {"protocol": protocol(table, i)}
        values["server_port"] = 0 if hidden[i] else whole(table, i, "dport", 0, 65_535)
        values.update({name: known_of_server(table, i, name) for name in input.context if name in LOCAL})
        made[i] = [values[name] for name in input.context]
    return made


def known_of_server(table, i, name):
    """A number of the memory of servers, from the column of this name."""
    try:
        return float(table.rows[i][name])
    except (KeyError, ValueError):
        raise table.refuse(i, f"{name}: no number; a column of this name has what was known of the server") from None


def midstream(table):
    """TCP flows whose first packet is not the SYN that opens a connection: nobody knows which end is the server.
    A table without flags says nothing of it."""
    found = np.zeros(len(table.rows), bool)
    for i, row in enumerate(table.rows):
        if row.get("midstream"):
            found[i] = row["midstream"].lower() in ("1", "true")
        elif row.get("proto") == str(TCP) and row.get("flags"):
            flags = numbers(table, i, "flags", 255, 16 if row.get("_hex_flags") else 10)
            found[i] = flags[0] & (SYN | ACK) != SYN
    return found


def ports(table):
    """Protocol and destination port of each flow's first packet; 0 where a table lacks them."""
    if "dport" not in table.columns:
        return [(0, 0)] * len(table.rows)
    proto = lambda i: whole(table, i, "proto", 0, 255) if table.rows[i].get("proto") else 0
    return [(proto(i), whole(table, i, "dport", 0, 65_535)) for i in range(len(table.rows))]


def protocol(table, i):
    value = whole(table, i, "proto", 0, 255)
    if value not in (TCP, UDP):
        raise table.refuse(i, f"proto: {value}; a flow is TCP (6) or UDP (17)")
    return value


def write(path, rows, columns):
    """A table, gzipped by its name; the same rows give the same bytes."""
    path = pathlib.Path(path)
    try:
        with open(path, "xb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped:
                    zipped.write(csv_bytes(rows, columns))
            else:
                raw.write(csv_bytes(rows, columns))
    except FileExistsError:
        raise Refusal(f"{path}: exists already; give another name, or remove it", 73) from None
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}", 73) from None


def csv_bytes(rows, columns):
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def note(text):
    """A remark to the person at the terminal."""
    print(f"fenxi-train: {text}", file=sys.stderr)
