"""Writes weights and actions of egresses, as the one program that owns them (the crate's module `actions`)."""

import collections
import contextlib
import os
import socket
import time
from typing import NamedTuple, Optional

import numpy as np

from .reader import Egress
from .shared import Foreign, Malformed, Words

KINDS = {"mark": 1, "dscp": 2, "task": 4}


class Action(NamedTuple):
    """What becomes of flows to an egress that begin from now on: bits of the connection's mark, a
    DSCP, the only task that is asked, by its number from 0."""

    mark: Optional[int] = None
    dscp: Optional[int] = None
    task: Optional[int] = None

    def word(self):
        places = {"mark": (32, 32), "dscp": (8, 8), "task": (16, 8)}
        word = 0
        for kind, value in self._asdict().items():
            if value is not None:
                shift, bits = places[kind]
                if not 0 <= value < 1 << bits:
                    raise ValueError(f"{kind}: {value} has more than {bits} bits")
                word |= KINDS[kind] | value << shift
        return word


REFUSALS = {b"U": "this user is not the owner", b"T": "another program gives weights"}


class Actions:
    """Memory for weights and actions, from a descriptor that fenxi handed out.

    `egresses` are those that get weights. As long as fenxi has the other end of `connection`, it
    is woken by what is published, and notices when this program ends. `kinds` are the kinds of
    actions that it lets this program give.
    """

    def __init__(self, fd, connection=None):
        self._words, self._connection = Words(fd, writable=True), connection
        head = [int(word) for word in self._words.copy(0, 8)]
        if np.uint64(head[0]).tobytes() != b"FENXIACT":
            raise Foreign("not memory for weights")
        self.slots, self.epoch_ns, self._actions, kinds = head[3:7]
        directory = 24 + 3 * (8 + 2 * self.slots)
        if head[1] != 1 or not 1 <= self.slots <= 4096 or directory + 4 * self.slots > len(self._words):
            raise Malformed("not version 1, or more egresses than fit")
        if self._actions and self._actions + 3 * self.slots > len(self._words):
            raise Malformed("more actions than fit")
        self.kinds = [kind for kind, bit in KINDS.items() if self._actions and kinds & bit]
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

    def publish(self, weights, valid_s=1.0, actions=()):
        """Makes weights known, (egress, weight) each, for some time, and beats, with actions, (egress,
        Action) each. All others have none afterwards. An egress is known by its address and port.
        Fails once fenxi has ended."""
        words = np.zeros(self.slots, dtype="<u8")
        for egress, action in actions:
            words[self._places[egress.packed, egress.port].slot] = action.word()
        if self._actions:
            self._words.stage(8, self._actions, words)
        elif words.any():
            raise Malformed("this fenxi takes no actions")
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
