"""What a link is like now: shared memory that one process writes and the carrier's process reads with every packet."""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass

_FORMAT = struct.Struct("dddd")


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Of each direction alike. ``delay`` and ``jitter`` in seconds, of one way."""

    delay: float = 0.0
    bits_per_second: float = math.inf
    #: Each packet is late by a random share of it; packets stay in order.
    jitter: float = 0.0
    #: Bytes that wait for the link at most, further packets are dropped; 0: 100 ms of the bandwidth, 256 KiB at least.
    buffer_bytes: float = 0.0

    @property
    def queue_bytes(self) -> float:
        return self.buffer_bytes or max(float(1 << 18), self.bits_per_second / 8 * 0.1)


class SharedSettings:
    """Both sides map the same memory. A reader may see parts of two settings once: they are single numbers."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _FORMAT.size)

    @classmethod
    def make(cls) -> SharedSettings:
        descriptor = os.memfd_create("link")
        os.ftruncate(descriptor, _FORMAT.size)
        return cls(descriptor)

    def write(self, settings: LinkSettings) -> None:
        self._memory[:] = _FORMAT.pack(settings.delay, settings.bits_per_second, settings.jitter, settings.buffer_bytes)

    def read(self) -> LinkSettings:
        return LinkSettings(*_FORMAT.unpack(self._memory[:]))

    def raw(self) -> bytes:
        """Changes when the settings do."""
        return self._memory[:]

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)
