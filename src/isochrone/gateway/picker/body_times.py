"""How long a request waits for the body that says where it goes: until its deadline, and while the body makes progress.

Pure: times and sizes in, errors out.
"""

from __future__ import annotations

from isochrone.clock import NEVER, SECOND
from isochrone.errors import GRPC_DEADLINE_EXCEEDED, DeadlineExceeded, IsochroneError
from isochrone.wire.progress import BODY_PROGRESS


class BodyTimeout(IsochroneError):
    """A client that sends its body too slowly: the status that a gateway's wire answers with."""

    code = "body_timeout"
    http_status = 408
    grpc_status = GRPC_DEADLINE_EXCEEDED


class BodyTimes:
    """Those of one request."""

    __slots__ = ("_arrived", "_body_timeout", "_counted", "_deadline", "_progress_by")

    def __init__(self, arrived: int, timeout_ns: int, body_timeout: float) -> None:
        """``timeout_ns``: of the request; 0: it has none. ``body_timeout``: seconds."""
        self._arrived = arrived
        self._body_timeout = body_timeout
        self._deadline = arrived + timeout_ns if timeout_ns else NEVER
        self._progress_by = arrived + int(body_timeout * SECOND)
        #: Bytes that had come when the body last made progress.
        self._counted = 0

    @property
    def due(self) -> int:
        """When to look next."""
        return min(self._deadline, self._progress_by)

    def check(self, now: int, received: int) -> None:
        """``received``: bytes of the body. Raises if there is nothing more to wait for."""
        if now >= self._deadline:
            waited = (now - self._arrived) / 1e6
            raise DeadlineExceeded(
                f"Request timeout expired: the body did not arrive within {waited:.1f} ms"
            ).not_begun()
        if now < self._progress_by:
            return
        if received - self._counted < BODY_PROGRESS:
            timeout = self._body_timeout
            raise BodyTimeout(f"the request's body did not arrive within body_timeout ({timeout:g} s)").not_begun()
        self._counted = received
        self._progress_by = now + int(self._body_timeout * SECOND)
