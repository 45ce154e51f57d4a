"""Writes weights of egresses, as the one program that owns them (the crate's module `actions`)."""

import collections
import contextlib
import os
import socket
import time

import numpy as np

from .reader import Egress
from .shared import Foreign, Malformed, Words

REFUSALS = {b"U": "this user is not the owner", b"T": "another program gives weights"}


class Actions:
    """Memory for weights, from a descriptor that fenxi handed out.

    `egresses` are those that get weights. As long as fenxi has the other end of `connection`, it
    is woken by what is published, and notices when this program ends.
    """

    def __init__(self, fd, connection=None):
        self._words, self._connection = Words(fd, writable=True), connection
        head = [int(word) for word in self._words.copy(0, 8)]
        if np.uint64(head[0]).tobytes() != b"FENXIACT":
            raise Foreign("not memory for weights")
        self.slots, self.epoch_ns = head[3:5]
        directory = 24 + 3 * (8 + 2 * self.slots)
        if head[1] != 1 or not 1 <= self.slots <= 4096 or directory + 4 * self.slots > len(self._words):
            raise Malformed("not version 1, or more egresses than fit")
        self._image = np.zeros(8 + 2 * self.slots, dtype="<u8")
        self._weights = self._image[9::2].view("<f8")
        rows = self._words.copy(directory, 4 * self.slots).reshape(-1, 4)
        self.egresses = [
            Egress(slot, int(row[0]), int(row[1]) & 0xFFFF_FFFF, int(row[1]) >> 32, row[2:].tobytes())
            for slot, row in enumerate(rows)
        ]
        # Services that count by address have no port.
        addresses = collections.Counter(it.packed for it in self.egresses)
        self._places = {(it.packed, 0): it for it in self.egresses if addresses[it.packed] == 1}
        self._places |= {(it.packed, it.port): it for it in self.egresses}

    @classmethod
    def connect(cls, path):
        """The memory that fenxi hands out at this socket."""
        with contextlib.ExitStack() as failing:
            connection = failing.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.fspath(path))
            answer, files, _, _ = socket.recv_fds(connection, 1, 1)
            if not files:
                raise PermissionError(f"{path}: {REFUSALS.get(answer, 'fenxi hands out nothing')}")
            try:
                actions = cls(files[0], connection)
            finally:
                os.close(files[0])
            failing.pop_all()
            return actions

    def publish(self, weights, valid_s=1.0):
        """Makes weights known, (egress, weight) each, for some time, and beats. All others have none
        afterwards. An egress is known by its address and port. Fails once fenxi has ended."""
        self._image[:] = 0
        self._image[0] = time.monotonic_ns() + int(valid_s * 1e9)
        for egress, weight in weights:
            place = self._places[egress.packed, egress.port]
            self._image[8 + 2 * place.slot] = place.incarnation
            self._weights[place.slot] = weight
        self._words.publish(8, 24, self._image)
        self.beat()
        if self._connection:
            with contextlib.suppress(BlockingIOError):  # enough wake-ups are under way
                self._connection.send(b"P", socket.MSG_DONTWAIT)

    def beat(self):
        """Says that this program lives; due several times in 0.8 s."""
        beat = (int(self._words.words[16]) + 1) & 0xFFFF_FFFF_FFFF_FFFF
        self._words.words[16] = beat or 1
