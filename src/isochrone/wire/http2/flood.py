"""Counts the cheap frames of one HTTP/2 connection and says when they are a flood.

A peer may send some control frames every second for nothing, and more in proportion to the work it brings: a cancelled
hedge for every other stream, window updates for every answer. Rapid reset (CVE-2023-44487), ping, settings and
empty-frame floods (CVE-2019-9512, -9515, -9518) bring no work and run out at once. A reset of a request that has waited
for a while is a time-out, not an attack: concurrency bounds those. Pure: the connection acts on the verdict.
"""

from __future__ import annotations

#: A reset this soon after its request is counted.
RAPID_RESET_NS = 5_000_000
#: Bytes of a header block that are decoded for nothing; Huffman-coded ones cost some 0.3 µs each beyond that.
_PLAIN_HEAD = 8 * 1024
#: Bytes of a larger block that cost as much as a control frame.
_HEAD_BYTES = 64


class FloodGuard:
    """One connection's counters; ``forget`` starts another second."""

    __slots__ = ("_control", "_follow_ups", "_limit", "_streams", "data_frames")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._control = 0
        self._follow_ups = 0
        #: Highest stream of either side when the second began.
        self._streams = 0
        #: DATA frames sent since then, beyond those of small answers, and KiB in them.
        self.data_frames = 0

    def forget(self, streams: int) -> None:
        """A second has passed; ``streams`` is the highest stream so far."""
        self._control = self._follow_ups = self.data_frames = 0
        self._streams = streams

    def control(self, streams: int) -> bool:
        """Counts a frame that asks for nothing; False: the connection has to go."""
        self._control += 1
        return self._control <= self._limit + (streams - self._streams) // 4

    def follow_up(self, streams: int) -> bool:
        """Counts a frame of the kind that follows our answers: window updates, and what crossed them on its way."""
        self._follow_ups += 1
        return self._follow_ups <= self._limit + (streams - self._streams) + 2 * self.data_frames

    def head(self, size: int, streams: int) -> bool:
        """Counts a header block of ``size`` bytes that has to be decoded."""
        if size <= _PLAIN_HEAD:
            return True
        self._control += (size - _PLAIN_HEAD) // _HEAD_BYTES
        return self._control <= self._limit + (streams - self._streams) // 4
