"""When the process of a model may start again: at once after its first death, then after a growing pause."""

from __future__ import annotations

import structlog

from isochrone import clock
from isochrone.errors import ModelFailed, Unavailable
from isochrone.observe.sparing import Sparing

log = structlog.get_logger(__name__)

_FIRST_PAUSE_NS = 100 * clock.MILLISECOND
_LONGEST_PAUSE_NS = 10 * clock.SECOND


class Restarts:
    """The deaths of one model instance's processes, and their log lines."""

    def __init__(self, model_name: str, model_version: str) -> None:
        self.label = f"model '{model_name}' version {model_version}"
        self._names = {"model": model_name, "version": model_version}
        #: Deaths since the last answer, and the instant before which no process is started again.
        self._deaths = 0
        self._not_before = 0
        self.last_loss = ""
        #: False during the load, which reports its failures itself.
        self.has_served = False
        self._lost_lines, self._restart_lines, self._failed_lines = Sparing(), Sparing(), Sparing()

    def answered(self) -> None:
        self._deaths = 0

    def check(self) -> None:
        """Raises if it is too early for another process."""
        wait = self._not_before - clock.now_ns()
        if wait > 0:
            error = Unavailable(
                f"{self.label}: {self.last_loss}, {self._deaths} times in a row;"
                f" it is started again in {wait / clock.SECOND:.1f} s"
            )
            error.retry_after = wait / clock.SECOND
            raise error

    def lost(self, how: str) -> ModelFailed:
        """Records the loss of a process and when the next may start; returns the error of its callers."""
        self.last_loss = how
        if self._deaths:
            pause = min(_FIRST_PAUSE_NS << min(self._deaths - 1, 16), _LONGEST_PAUSE_NS)
            self._not_before = clock.now_ns() + pause
        self._deaths += 1
        not_shown = self._lost_lines.lets_through(clock.now_ns()) if self.has_served else None
        if not_shown is not None:
            log.warning(
                "the process of a model was lost", **self._names, how=how, in_a_row=self._deaths, not_shown=not_shown
            )
        return ModelFailed(f"{self.label}: {how}")

    def not_restarted(self, error: Exception) -> None:
        not_shown = self._failed_lines.lets_through(clock.now_ns())
        if not_shown is not None:
            log.warning(
                "the process of a model cannot be restarted", **self._names, error=str(error), not_shown=not_shown
            )

    def restarted(self, pid: int) -> None:
        not_shown = self._restart_lines.lets_through(clock.now_ns())
        if not_shown is not None:
            log.warning("the process of a model was restarted", **self._names, pid=pid, not_shown=not_shown)
