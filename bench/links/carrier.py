"""``python carrier.py``: carries the packets of a TUN device back into it, later, with their two addresses exchanged.

A process of its own, so that a busy caller does not delay packets. It ends when its standard input does: with whoever
started it. Arguments: descriptors of the device and of the settings.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.links.direction import Direction
from bench.links.settings import SharedSettings

#: Before each packet: flags, kind, length of headers, bytes of a segment, and where its checksum belongs.
_OFFLOADS = struct.Struct("=BBHHHH")
_IP = _OFFLOADS.size
_MOST_BYTES = 65536 + _IP
#: Packets that are read before those that are due are delivered.
_BURST = 32
_PR_SET_TIMERSLACK = 29
_TCP, _SYN_ACK, _SYN, _ICMP, _ECHO_REQUEST = 6, 0x12, 0x02, 1, 8


class Carrier:
    def __init__(self, device: int, settings: SharedSettings) -> None:
        self._device = device
        self._shared = settings
        self._raw = settings.raw()
        self._settings = settings.read()
        self._directions = tuple(Direction(random.Random(seed).random) for seed in (1, 2))
        #: By direction: when they are due, and what is to be delivered.
        self._packets: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        #: Ports that were connected to: packets to them go there, packets from them come back.
        self._servers: set[int] = set()

    def run(self, stop: int) -> None:
        while True:
            due = min((queue[0][0] for queue in self._packets if queue), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select((self._device, stop), (), (), wait)
            if stop in ready:
                return
            if ready:
                self._receive()
            self._deliver()

    def _receive(self) -> None:
        raw = self._shared.raw()
        if raw != self._raw:
            self._raw, self._settings = raw, self._shared.read()
        for _ in range(_BURST):
            try:
                packet = os.read(self._device, _MOST_BYTES)
            except BlockingIOError:
                return
            if packet[_IP] >> 4 == 4:
                way = self._way(packet)
                arrival = self._directions[way].arrival(time.monotonic(), bytes_on_link(packet), self._settings)
                if arrival is not None:
                    self._packets[way].append((arrival, exchanged(packet)))

    def _way(self, packet: bytes) -> int:
        """0: there, 1: back."""
        head = _IP + (packet[_IP] & 15) * 4
        kind = packet[_IP + 9]
        if kind == _ICMP:
            return 0 if packet[head] == _ECHO_REQUEST else 1
        target = packet[head + 2] << 8 | packet[head + 3]
        if kind == _TCP and packet[head + 13] & _SYN_ACK == _SYN:
            self._servers.add(target)
        return 0 if target in self._servers else 1

    def _deliver(self) -> None:
        now = time.monotonic()
        for queue in self._packets:
            while queue and queue[0][0] <= now:
                os.write(self._device, queue.popleft()[1])


def exchanged(packet: bytes) -> bytes:
    """With source and target exchanged. The checksums of IP and TCP stay right: they are sums."""
    source, target = _IP + 12, _IP + 16
    return packet[:source] + packet[target : target + 4] + packet[source:target] + packet[target + 4 :]


def bytes_on_link(packet: bytes) -> int:
    """With the headers of all segments that a network card would make of it."""
    kind: int
    headers: int
    segment: int
    _, kind, headers, segment, _, _ = _OFFLOADS.unpack_from(packet)
    size = len(packet) - _IP
    if not kind or not segment:
        return size
    return size + headers * (max(1, -(-(size - headers) // segment)) - 1)


def main() -> None:
    device, settings = map(int, sys.argv[1:])
    # Timers of 50 µs less: a packet is delivered when it is due.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    os.set_blocking(device, False)
    Carrier(device, SharedSettings(settings)).run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
