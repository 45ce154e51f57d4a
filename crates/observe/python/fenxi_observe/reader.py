"""Reads a service's file: version 1 of the layout, described in the crate's module `layout`."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .shared import Changed, Foreign, Malformed, Words

COUNTER, GAUGE, RESERVOIR, WINDOW, HISTOGRAM = range(1, 6)
SAMPLES, BUCKETS = 128, 64
WORDS = {COUNTER: 1, GAUGE: 1, RESERVOIR: 3 * SAMPLES, WINDOW: 3 * SAMPLES, HISTOGRAM: 1 + BUCKETS}
EGRESS_KINDS = {1: "server", 2: "next_hop", 3: "out_port", 4: "others"}


@dataclass(frozen=True)
class Field:
    name: str
    unit: str
    kind: int
    offset: int


@dataclass(frozen=True)
class Egress:
    """An egress of a snapshot; `slot` and `incarnation` tell it from every other one."""

    slot: int
    incarnation: int
    kind: int
    port: int
    packed: bytes

    @property
    def mac(self):
        """Of a next hop."""
        return self.packed[:6].hex(":")

    @property
    def address(self):
        address = ipaddress.IPv6Address(self.packed)
        return address.ipv4_mapped or address

    def __str__(self):
        kind = EGRESS_KINDS.get(self.kind, f"kind {self.kind}")
        if kind == "next_hop":
            return f"{kind} {self.mac}"
        return f"{kind} {self.address} {self.port}"


class Snapshot:
    """All egresses with their counters and gauges as of one moment.

    `values` has a row per egress, in the order of `egresses()`, and a column per counter or gauge.
    """

    def __init__(self, service, frame):
        self.generation, self.time_ns, self._used = frame[:3].tolist()
        if self._used > service.slots:
            raise Malformed("more rows than slots")
        self._frame, self._service = frame, service

    @cached_property
    def slots(self):
        """The slots in use."""
        bits = self._frame[8 : self._service.rows].view(np.uint8)
        return np.unpackbits(bits, count=self._used, bitorder="little").nonzero()[0]

    @cached_property
    def _rows(self):
        at, words = self._service.rows, self._service.row_words
        rows = self._frame[at : at + self._used * words].reshape(self._used, words)
        return rows if len(self.slots) == self._used else rows[self.slots]

    @property
    def values(self):
        return self._rows[:, 4:]

    def __len__(self):
        return len(self.slots)

    def __getitem__(self, name):
        """A counter or gauge of all egresses."""
        return self._rows[:, self._service.value_field(name).offset]

    def egresses(self):
        return [
            Egress(int(slot), int(row[0]), int(row[1]) & 0xFFFF_FFFF, int(row[1]) >> 32, row[2:4].tobytes())
            for slot, row in zip(self.slots, self._rows)
        ]


class Service:
    """A service's file, mapped read-only."""

    def __init__(self, path=None, fd=None):
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if fd is None else None
        try:
            self._words = Words(fd if opened is None else opened)
        finally:
            if opened is not None:
                os.close(opened)
        self._check()

    @classmethod
    def receive(cls, connection):
        """The file that the peer of a connected Unix socket hands out."""
        _, files, _, _ = socket.recv_fds(connection, 1, 1)
        if not files:
            raise PermissionError("the peer handed out no file")
        try:
            return cls(fd=files[0])
        finally:
            os.close(files[0])

    def _check(self):
        """Works the layout out from the number of egresses and the schema, and compares."""
        words = self._words
        head = words.copy(0, 64)
        if head[0].tobytes() != b"FENXIOBS":
            raise Foreign("not memory of a service")
        if head[1] != 1:
            raise Malformed(f"version {head[1]} of the layout is unknown")
        head = [int(word) for word in head]
        self.slots, count = head[5], head[7]
        if not 1 <= self.slots <= 4096 or count > 256 or len(words) < 64 + 8 * count:
            raise Malformed("a number in the header is too large")
        ends = {COUNTER: 4, RESERVOIR: 8, HISTOGRAM: 2}
        self.fields = []
        for record in words.copy(64, 8 * count).reshape(count, 8):
            kind, offset, size = (int(word) for word in record[5:])
            region = {GAUGE: COUNTER, WINDOW: RESERVOIR}.get(kind, kind)
            if kind not in WORDS or size != WORDS[kind] or offset != ends[region]:
                raise Malformed("a field of the schema")
            ends[region] += size
            name, unit = (text.tobytes().split(b"\0")[0] for text in (record[:4], record[4:5]))
            try:
                self.fields.append(Field(name.decode(), unit.decode(), kind, offset))
            except UnicodeDecodeError:
                raise Malformed("a name of the schema") from None

        def round_up(size, multiple):
            return -(-size // multiple) * multiple

        self.row_words = ends[COUNTER]
        self._histogram_words = round_up(ends[HISTOGRAM], 8)
        self._reservoir_stride = round_up(ends[RESERVOIR], 8)
        self.rows = round_up(8 + -(-self.slots // 64), 8)
        self._frame_words = round_up(self.rows + self.slots * self.row_words, 8)
        self._histogram_stride = 8 + 3 * self._histogram_words
        self._frames = round_up(64 + 8 * count, 512)
        self._histograms = round_up(self._frames + 3 * self._frame_words, 512)
        self._reservoirs = round_up(self._histograms + self.slots * self._histogram_stride, 512)
        size = round_up(self._reservoirs + self.slots * self._reservoir_stride, 512)
        expected = [size, 4096, head[4], self.slots, 3, count, 64]
        expected += [self._frames, self._frame_words, self.rows, self.row_words]
        expected += [self._histograms, self._histogram_stride, self._histogram_words]
        expected += [self._reservoirs, self._reservoir_stride]
        if head[2:18] != expected or size > len(words):
            raise Malformed("offsets that do not follow from egresses and fields")
        self.epoch_ns = head[4]
        self.writer, self.writers = head[18:20]
        self.name = np.array(head[24:32], dtype="<u8").tobytes().split(b"\0")[0].decode(errors="replace")

    def field(self, name, *kinds):
        for field in self.fields:
            if field.name == name and field.kind in kinds:
                return field
        raise KeyError(name)

    def value_field(self, name):
        return self.field(name, COUNTER, GAUGE)

    @property
    def ended(self):
        """Whether nothing more will be written. A killed writer does not say so: then
        `snapshot().time_ns` stands still."""
        return self._words.word(40) != 0

    def snapshot(self):
        return Snapshot(self, self._words.read(32, self._frames, self._frame_words))

    def histograms(self, egress):
        """Sum and 64 buckets per name; bucket b counts values from 2**b to 2**(b+1) - 1, bucket 0
        the value 0 too."""
        region = self._histograms + egress.slot * self._histogram_stride
        words = self._words.read(region, region + 8, self._histogram_words)
        if words[0] != egress.incarnation:
            raise Changed(egress)
        of = [field for field in self.fields if field.kind == HISTOGRAM]
        return {it.name: (int(words[it.offset]), words[it.offset + 1 :][:BUCKETS]) for it in of}

    def samples(self, egress, name, since_ns=0):
        """Rows of number, time (ns) and value, oldest first, not older than `since_ns`.

        A reservoir is an exponentially fading sample of all values; a window has the newest ones.
        Samples that were being overwritten are left out.
        """
        field = self.field(name, RESERVOIR, WINDOW)
        region = self._reservoirs + egress.slot * self._reservoir_stride
        if self._words.word(region) != egress.incarnation:
            raise Changed(egress)
        place, size = region + field.offset, 3 * SAMPLES
        # Three copies in this order: sequences, everything, sequences.
        before = self._words.copy(place, size)[::3]
        samples = self._words.copy(place, size).reshape(SAMPLES, 3)
        after = self._words.copy(place, size)[::3]
        if self._words.word(region) != egress.incarnation:
            raise Changed(egress)
        whole = (before == after) & (before != 0) & (before % 2 == 0) & (samples[:, 1] >= since_ns)
        samples = samples[whole]
        samples[:, 0] = before[whole] // 2
        return samples[np.argsort(samples[:, 0])]
