"""Ports for servers that are started in a moment and cannot choose their own.

A port that is free now may be another's a second later: the kernel gives those from 32768 on to outgoing connections
and to servers that ask for any, and a second process may choose as this one does. So ports come from below, and each
process takes them from blocks that it holds until it ends.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_HOST = "127.0.0.1"
#: The blocks: the range ends where Linux begins to give ports to others.
_FIRST, _END, _BLOCK = 10_000, 32_500, 250

#: The unused rest of the block of this process.
_rest = range(0)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on and no other process that asks here gets."""
    return [ports_in_a_row(1) for _ in range(count)]


def ports_in_a_row(count: int) -> int:
    """The first of so many such ports that follow each other."""
    global _rest
    if not 0 < count <= _BLOCK:
        raise ValueError(f"count: expected 1 to {_BLOCK}, given {count}")
    while True:
        while len(_rest) < count:
            _rest = _claimed_block()
        row, _rest = _rest[:count], _rest[count:]
        if _are_free(row):
            return row[0]


def _claimed_block() -> range:
    blocks = list(range(_FIRST, _END, _BLOCK))
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name in the abstract namespace, which Linux has: one process can hold it, and its end releases it.
            claim.bind(f"\0isochrone-ports-{first}")
        except OSError:
            claim.close()
        else:
            claim.detach()  # the claim lasts as long as the process
            return range(first, first + _BLOCK)
    raise RuntimeError("other processes hold all ports")


def _are_free(ports: range) -> bool:
    with ExitStack() as held:
        for port in ports:
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind((_HOST, port))
            except OSError:
                return False
    return True
