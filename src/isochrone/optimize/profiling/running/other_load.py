"""How much of the CPUs other processes use while a model is measured: figures from a busy machine are too low."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
#: In /proc/stat, behind "cpu": user, nice, system, idle, iowait, irq, softirq, steal. Guests are part of user.
_BUSY = (0, 1, 2, 5, 6, 7)


def busy_seconds(text: str) -> float:
    """CPU time of all processes since the machine started, from /proc/stat."""
    fields = text.split("\n", 1)[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY if place < len(fields)) / _TICKS


def session_seconds(session: int, root: Path = Path("/proc")) -> float:
    """CPU time of the living processes of a session: this process and those that it started."""
    ticks = 0
    for entry in root.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may contain anything.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


class OtherLoad:
    """CPU time from its making on."""

    def __init__(self, all_seconds: float, own_seconds: float) -> None:
        self._all, self._own = all_seconds, own_seconds

    @classmethod
    def now(cls) -> Self:
        return cls(busy_seconds(Path("/proc/stat").read_text()), session_seconds(os.getsid(0)))

    def since(self, before: OtherLoad) -> float:
        """Seconds of other processes; never below 0, since both are counted in ticks."""
        return max(0.0, (self._all - before._all) - (self._own - before._own))
