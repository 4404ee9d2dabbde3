"""Flood detection: limits the cheap frames of one HTTP/2 connection.

A peer may send a fixed number of control frames per second, and more in proportion to its requests: a cancelled hedge
for every other stream, window updates for every answer. Rapid reset (CVE-2023-44487), ping, settings and empty-frame
floods (CVE-2019-9512, -9515, -9518) come without requests and exceed the limit quickly. A reset of a request that has
waited for a while is a timeout, not an attack; the limit on concurrent streams bounds those. This module only counts;
the connection acts.
"""

from __future__ import annotations

#: Resets that come within this time of their request are counted.
RAPID_RESET_NS = 5_000_000
#: Bytes of a header block that are not counted; a Huffman-coded byte beyond them costs about 0.3 µs.
PLAIN_HEAD = 8 * 1024
#: Bytes of a larger block that count as one control frame.
_HEAD_BYTES = 64


class FloodGuard:
    """One connection's counters; ``forget`` starts the next second."""

    __slots__ = ("_control", "_follow_ups", "_limit", "_streams", "data_frames")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._control = 0
        self._follow_ups = 0
        #: Highest stream of either side at the start of the second.
        self._streams = 0
        #: DATA frames sent in this second, except those of small answers, plus KiB in them.
        self.data_frames = 0

    def forget(self, streams: int) -> None:
        """Start the next second; ``streams`` is the highest stream so far."""
        self._control = self._follow_ups = self.data_frames = 0
        self._streams = streams

    def control(self, streams: int) -> bool:
        """Count a control frame; False: the limit is exceeded."""
        self._control += 1
        return self._control <= self._limit + (streams - self._streams) // 4

    def follow_up(self, streams: int) -> bool:
        """Count a frame that follows our answers: a window update, or a frame that crossed an answer."""
        self._follow_ups += 1
        return self._follow_ups <= self._limit + (streams - self._streams) + 2 * self.data_frames

    def head(self, size: int, streams: int) -> bool:
        """Count a header block of ``size`` bytes that has to be decoded; False: the limit is exceeded."""
        if size <= PLAIN_HEAD:
            return True
        self._control += (size - PLAIN_HEAD) // _HEAD_BYTES
        return self._control <= self._limit + (streams - self._streams) // 4
