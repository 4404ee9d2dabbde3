"""Whether a process gets on: by its heartbeat, and by the processor time it uses.

A load may hold the interpreter's lock for long, and no heart beats then; but the process computes or reads. One that
does neither is stopped or stuck. Time counts as the observer has seen it: after a pause of its own, as when the whole
machine was suspended, it does not know who was silent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isochrone.clock import SECOND

#: No call takes so long without a heartbeat, whatever the process does.
_LONGEST_NS: Final = 600 * SECOND
#: Waits for a disk, which has no other sign (proc(5)).
_WAITS_FOR_DISK: Final = "D"


class Liveness:
    """One process, as an observer sees it that looks every ``look_ns``. Pure: times and figures are passed in."""

    def __init__(self, silent_ns: int, look_ns: int) -> None:
        self._silent_ns = silent_ns
        self._longest_look = 2 * look_ns
        self._looked_at: int | None = None
        #: The time that this observer has watched.
        self._watched = 0
        self._beat: int | None = None
        self._ticks: int | None = None
        #: Of the observer's time: the last heartbeat, and the last sign of any work.
        self._beat_at = self._active_at = 0

    def is_silent(self, silence: int, activity: tuple[str, int] | None, now: int) -> bool:
        """``silence``: since its last heartbeat; ``activity``: its state and processor time, None if it has ended."""
        if self._looked_at is not None:
            self._watched += min(now - self._looked_at, self._longest_look)
        self._looked_at = now
        if activity is None:
            # Its connection breaks and its parent is told, which both say it better.
            return False
        if now - silence != self._beat:
            self._beat, self._beat_at = now - silence, self._watched
        state, ticks = activity
        if ticks != self._ticks or state == _WAITS_FOR_DISK:
            self._ticks, self._active_at = ticks, self._watched
        unheard = self._watched - self._beat_at
        return unheard >= _LONGEST_NS or min(unheard, self._watched - self._active_at) >= self._silent_ns


def activity(pid: int, proc: Path = Path("/proc")) -> tuple[str, int] | None:
    """The state of a process, and the processor time it has used, in clock ticks; None: it has ended."""
    try:
        # The second field is the command in parentheses, and may hold spaces.
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None
