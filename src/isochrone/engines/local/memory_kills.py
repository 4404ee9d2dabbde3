"""Whether the kernel has ended processes of this machine for lack of memory in the last seconds."""

from __future__ import annotations

from pathlib import Path


class MemoryKills:
    """``look`` is called every few seconds: a kill since the look before the last one counts as recent."""

    def __init__(self, vmstat: Path = Path("/proc/vmstat")) -> None:
        self._vmstat = vmstat
        self._before = self._last = self._count()

    def look(self) -> None:
        self._before, self._last = self._last, self._count()

    @property
    def is_recent(self) -> bool:
        return self._count() > self._before

    def _count(self) -> int:
        """Since the machine was started, in all its cgroups."""
        try:
            lines = self._vmstat.read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError, StopIteration):
            return 0
