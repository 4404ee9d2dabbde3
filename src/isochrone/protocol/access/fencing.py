"""Fencing: rejects control calls of a leader that has a successor.

A leader that was paused may resume after its successor has taken over, and its next call would undo the successor's
work. Each call carries the leader's term, which grows from leader to leader. A worker rejects a term below the highest
that it has seen. The check runs for every call, because the highest term can change after a head is memoised. Calls
without a term come from no leader and are not fenced.
"""

from __future__ import annotations

from isochrone.errors import PermissionDenied
from isochrone.wire.exchange import Head

HEADER = "x-isochrone-term"
_NAME = HEADER.encode()


class Fence:
    """The highest term that one server has seen."""

    def __init__(self) -> None:
        self.highest = 0

    def check(self, term: int) -> None:
        """Raise ``PermissionDenied`` if a later leader has called."""
        if term < self.highest:
            raise PermissionDenied(
                f"a later leader (term {self.highest}) has changed this worker, so a leader of term {term} may not; if "
                "the fleet's store was restored from a backup, restart the worker"
            )
        self.highest = term


def term_of(head: Head) -> int | None:
    """The leader's term in a message head; None: the call comes from no leader."""
    value = head.get(_NAME)
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None
