"""Writes weights of egresses, as the one program that owns them (the crate's module `actions`)."""

import time

import numpy as np

from .shared import Foreign, Malformed, Words


class Actions:
    """Memory for weights, from a descriptor that fenxi handed out."""

    def __init__(self, fd):
        self._words = Words(fd, writable=True)
        head = [int(word) for word in self._words.copy(0, 8)]
        if np.uint64(head[0]).tobytes() != b"FENXIACT":
            raise Foreign("not memory for weights")
        if head[1] != 1 or not 1 <= head[3] <= 4096 or 24 + 3 * (8 + 2 * head[3]) > len(self._words):
            raise Malformed("not version 1, or more egresses than fit")
        self.slots, self.epoch_ns = head[3:5]
        self._image = np.zeros(8 + 2 * self.slots, dtype="<u8")
        self._weights = self._image[9::2].view("<f8")

    def publish(self, weights, valid_s=1.0):
        """Makes weights known, (egress, weight) each, for some time, and beats. All others have none
        afterwards."""
        self._image[:] = 0
        self._image[0] = time.monotonic_ns() + int(valid_s * 1e9)
        for egress, weight in weights:
            self._image[8 + 2 * egress.slot] = egress.incarnation
            self._weights[egress.slot] = weight
        self._words.publish(8, 24, self._image)
        self.beat()

    def beat(self):
        """Says that this program lives; due several times in 0.8 s."""
        beat = (int(self._words.words[16]) + 1) & 0xFFFF_FFFF_FFFF_FFFF
        self._words.words[16] = beat or 1
