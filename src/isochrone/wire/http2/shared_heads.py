"""The memoised heads of one listener that arrive over HTTP/2, whichever connection brings them.

A gateway brings the requests of thousands of callers over a few connections, and each caller's token makes a head of
its own: more than a connection could remember. A block that neither uses nor changes the compression table reads the
same on every connection, and our gateways write no others.
"""

from __future__ import annotations

from isochrone.wire.exchange import Head
from isochrone.wire.head_memo import HeadMemo


class SharedHeads:
    """Heads by their block, and by the names that the peer of a connection has proved: a head has those of its own."""

    __slots__ = ("_memo",)

    def __init__(self, room: int) -> None:
        self._memo = HeadMemo(room)

    def find(self, block: bytes, peer: tuple[str, ...]) -> Head | None:
        return self._memo.heads.get((peer, block) if peer else block)

    def note(self, block: bytes, peer: tuple[str, ...], head: Head) -> None:
        """``block``: a stateless one (``hpack.is_stateless``) that was decoded to ``head``."""
        if peer:
            self._memo.note((peer, block), head)
        else:
            self._memo.note(block, head)
