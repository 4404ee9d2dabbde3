"""The memoised heads of one listener that arrive over HTTP/2, whichever connection brings them.

A gateway brings the requests of thousands of callers over a few connections, and each caller's token makes a head of
its own: more than a connection could remember. A block that neither uses nor changes the compression table reads the
same on every connection, and our gateways write no others.
"""

from __future__ import annotations

from isochrone.wire.exchange import Head
from isochrone.wire.head_memo import MAX_MEMOISED_BYTES, entries_of, remember_second

_MAX_MEMOISED_HEADS = 8192
_ORDINARY_BYTES = 512


class SharedHeads:
    """Heads by their block, and by the names that the peer of a connection has proved: a head has those of its own."""

    __slots__ = ("_of_peers", "_plain", "_seen", "_seen_of_peers")

    def __init__(self) -> None:
        self._plain: dict[bytes, Head] = {}
        self._seen: set[int] = set()
        self._of_peers: dict[tuple[tuple[str, ...], bytes], Head] = {}
        self._seen_of_peers: set[int] = set()

    def find(self, block: bytes, peer: tuple[str, ...]) -> Head | None:
        return self._of_peers.get((peer, block)) if peer else self._plain.get(block)

    def remember(self, block: bytes, peer: tuple[str, ...], head: Head) -> None:
        """``block``: a stateless one (``hpack.is_stateless``) that was decoded to ``head``."""
        size = len(block)
        if size > MAX_MEMOISED_BYTES:
            return
        most = entries_of(size, _MAX_MEMOISED_HEADS, _ORDINARY_BYTES)
        if peer:
            remember_second((peer, block), head, self._of_peers, self._seen_of_peers, _MAX_MEMOISED_HEADS, most)
        else:
            remember_second(block, head, self._plain, self._seen, _MAX_MEMOISED_HEADS, most)
