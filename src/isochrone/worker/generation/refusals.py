"""How many requests a version has refused, for the metrics page."""

from __future__ import annotations

from isochrone.errors import IsochroneError

_CODES = ("deadline_exceeded", "queue_full")


class RefusalCounts:
    """Requests that were refused for their deadline or the queue's bound, since the load of the version."""

    __slots__ = ("by_code",)

    def __init__(self) -> None:
        #: By error code.
        self.by_code: dict[str, int] = {}

    def count(self, error: IsochroneError) -> None:
        """Counts an error that ended a request before its first step; other errors are no refusals."""
        if error.code in _CODES:
            self.by_code[error.code] = self.by_code.get(error.code, 0) + 1
