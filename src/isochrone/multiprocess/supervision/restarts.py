"""Whether a process that ended is started again, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from isochrone.engines.local.backoff import Backoff

#: A process that crashes so often before the server was ready for the first time cannot start.
_ATTEMPTS = 3
#: The exit status of a process that says why it cannot start.
START_FAILED = 1


@dataclass(slots=True)
class Restarts:
    """The history of one process."""

    _backoff: Backoff = field(default_factory=lambda: Backoff(0.1, 10.0, 60.0))
    _crashes: int = 0

    def pause(self, status: int, lived: float, *, was_ready: bool) -> float | None:
        """Seconds until the process is started again; None: the server gives up.

        ``was_ready``: the server has been ready. What served once can serve again, so it never gives up then.
        """
        if was_ready:
            return self._backoff.pause(lived)
        self._crashes += 1
        if status == START_FAILED or self._crashes >= _ATTEMPTS:
            return None
        return self._backoff.pause(lived)
