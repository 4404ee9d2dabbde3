"""Refuses loads and unloads of a leader that another has followed.

A leader that was paused may wake up after its successor has begun, and its next call would undo what that one does.
Each call carries the leader's term, which grows from leader to leader; a worker refuses a term below the highest it has
seen. Checked with every call: heads are memoised, terms pass. Calls without a term come from no leader and are not
fenced.
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
        """Raises for a leader of the past."""
        if term < self.highest:
            raise PermissionDenied(
                f"a later leader (term {self.highest}) has changed this worker, so one of term {term} may not; if the "
                "fleet's store was restored from a backup, restart the worker"
            )
        self.highest = term


def term_of(head: Head) -> int | None:
    """None: the call comes from no leader."""
    value = head.get(_NAME)
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None
