"""When a provider's keys are fetched. Pure: times are seconds of any clock that does not go back."""

from __future__ import annotations

from typing import Final

#: Between two fetches that tokens with unknown keys cause, and between attempts while the provider does not answer.
#: Anybody can send such tokens: a provider sees one fetch per process in this time, however many come.
LEAST_SECONDS: Final = 10.0


class Schedule:
    __slots__ = ("_asked", "_failed", "_refresh_seconds", "_started", "due")

    def __init__(self, refresh_seconds: float) -> None:
        self._refresh_seconds = refresh_seconds
        #: When a token last caused a fetch.
        self._asked: float | None = None
        #: When a fetch that failed last began; None: the last one succeeded.
        self._failed: float | None = None
        self._started: float | None = None
        #: The next regular fetch; the first is due at once.
        self.due = 0.0

    def admits(self, now: float) -> bool:
        """Whether a token with an unknown key may cause a fetch. After a regular fetch it may at once: a provider may
        have replaced its keys in between."""
        return all(then is None or now - then >= LEAST_SECONDS for then in (self._asked, self._failed))

    def hasten(self) -> bool:
        """A token may not cause a fetch yet: have one as soon as it may. Whether that is earlier than before."""
        times = [then + LEAST_SECONDS for then in (self._asked, self._failed) if then is not None]
        if not times or max(times) >= self.due:
            return False
        self.due = max(times)
        return True

    def started(self, now: float, *, is_asked: bool = False) -> None:
        self._started = now
        if is_asked:
            self._asked = now

    def ended(self, now: float, *, fetched: bool) -> None:
        self._failed = None if fetched else self._started
        self.due = now + (self._refresh_seconds if fetched else min(self._refresh_seconds, LEAST_SECONDS))
