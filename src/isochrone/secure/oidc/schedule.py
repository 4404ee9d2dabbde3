"""When a provider's keys are fetched. Pure: times are seconds of any clock that does not go back."""

from __future__ import annotations

from typing import Final

#: Between two fetches that tokens with unknown keys cause, and between attempts while the provider does not answer.
#: Anybody can send such tokens: a provider sees one fetch per process in this time, however many come.
LEAST_SECONDS: Final = 10.0


class Schedule:
    __slots__ = ("_refresh_seconds", "_started", "due")

    def __init__(self, refresh_seconds: float) -> None:
        self._refresh_seconds = refresh_seconds
        self._started: float | None = None
        #: The next regular fetch; the first is due at once.
        self.due = 0.0

    def admits(self, now: float) -> bool:
        """Whether a token with an unknown key may cause a fetch."""
        return self._started is None or now - self._started >= LEAST_SECONDS

    def started(self, now: float) -> None:
        self._started = now

    def ended(self, now: float, *, fetched: bool) -> None:
        self.due = now + (self._refresh_seconds if fetched else min(self._refresh_seconds, LEAST_SECONDS))
