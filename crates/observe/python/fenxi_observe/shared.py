"""Words that two processes share, and the block of three buffers (publication.rs)."""

import ctypes
import mmap
import os
import platform
from pathlib import Path

import numpy as np

BUFFERS = 3
TRIES = 1000
WORDS_MAX = 1 << 27


class Error(Exception):
    """The memory cannot be read."""


class Foreign(Error):
    """Not memory of this kind."""


class Malformed(Error):
    """The file contradicts itself, or its version is unknown."""


class Busy(Error):
    """The writer was faster in every try."""


class Changed(Error):
    """The slot has another egress by now."""


def _helper():
    """The C helper, where it was built."""
    for file in Path(__file__).parent.glob("_copy*.so"):
        helper = ctypes.CDLL(str(file))
        address, size = ctypes.c_void_p, ctypes.c_size_t
        helper.fenxi_observe_copy.argtypes = [address, address, size]
        helper.fenxi_observe_stage.argtypes = [address, address, size]
        helper.fenxi_observe_publish.argtypes = [address, address, address, size, ctypes.c_uint64]
        return helper
    return None


HELPER = _helper()


class Words:
    """A mapping of a whole file as u64.

    On x86-64 loads are not reordered with loads nor stores with stores, so NumPy's copies are in
    order. Elsewhere the helper in C does them.
    """

    def __init__(self, fd, writable=False):
        size = os.fstat(fd).st_size
        if size < 512 or size % 8 or size > 8 * WORDS_MAX:
            raise Foreign("the file's size")
        may = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(fd, size, mmap.MAP_SHARED, may)
        self.words = np.frombuffer(mapping, dtype="<u8")
        self.integers = memoryview(mapping).cast("Q")
        self.helper = HELPER
        if self.helper is None and platform.machine() != "x86_64":
            raise Error("this machine needs the helper in C: install fenxi-observe with a compiler")
        self.address = self.words.ctypes.data

    def __len__(self):
        return len(self.words)

    def word(self, place):
        if self.helper is None:
            return self.integers[place]
        return int(self.copy(place, 1)[0])

    def copy(self, place, count):
        """A copy of words; what is read later is not older."""
        if place < 0 or count < 0 or place + count > len(self.words):
            raise Malformed("words outside the file")
        if self.helper is None:
            return self.words[place : place + count].copy()
        to = np.empty(count, dtype="<u8")
        self.helper.fenxi_observe_copy(self.address + 8 * place, to.ctypes.data, count)
        return to

    def read(self, published, buffers, buffer_words):
        """A copy of a block's newest buffer."""
        for _ in range(TRIES):
            number = self.word(published)
            copied = self.copy(buffers + number % BUFFERS * buffer_words, buffer_words)
            if (self.word(published) - number) & 0xFFFF_FFFF_FFFF_FFFF < BUFFERS - 1:
                return copied
        raise Busy("the writer was faster in every try")

    def stage(self, published, buffers, image):
        """Writes a block's next buffer, which the next publication of the same count makes known."""
        following = (int(self.words[published]) + 1) & 0xFFFF_FFFF_FFFF_FFFF
        place = buffers + following % BUFFERS * len(image)
        if self.helper is None:
            self.words[place : place + len(image)] = image
            return
        self.helper.fenxi_observe_stage(self.address + 8 * place, image.ctypes.data, len(image))

    def publish(self, published, buffers, image):
        """Writes a block's next buffer, then counts it."""
        following = (int(self.words[published]) + 1) & 0xFFFF_FFFF_FFFF_FFFF
        place = buffers + following % BUFFERS * len(image)
        if self.helper is None:
            self.words[place : place + len(image)] = image
            self.words[published] = following
            return
        at = self.address
        to, count = at + 8 * place, at + 8 * published
        self.helper.fenxi_observe_publish(count, to, image.ctypes.data, len(image), following)
