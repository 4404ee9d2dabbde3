"""A finding: what a check found, what it costs here, and how to change it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum

_SYSCTL = "proc/sys/"


class Severity(StrEnum):
    """In the order of the report."""

    COSTS = "costs latency"
    ADVICE = "advice"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Change:
    """A new value of a file in /proc/sys or /sys. Takes effect at once, and is gone after a reboot.

    ``path`` is relative to the root of the file system.
    """

    path: str
    old: str
    new: str

    @property
    def command(self) -> str:
        return self._writing(self.new)

    @property
    def undo(self) -> str:
        return self._writing(self.old)

    @property
    def persistent(self) -> str:
        """The command that keeps the new value over reboots (sysctl.d(5), tmpfiles.d(5))."""
        if self.path.startswith(_SYSCTL):
            return _appending(f"{self._sysctl} = {self.new}", "/etc/sysctl.d/90-isochrone.conf")
        return _appending(f"w /{self.path} - - - - {self.new}", "/etc/tmpfiles.d/isochrone.conf")

    def _writing(self, value: str) -> str:
        if self.path.startswith(_SYSCTL):
            return f"sysctl -w {shlex.quote(f'{self._sysctl}={value}')}"
        return f"echo {shlex.quote(value)} > /{self.path}"

    @property
    def _sysctl(self) -> str:
        return self.path.removeprefix(_SYSCTL).replace("/", ".")


def _appending(line: str, file: str) -> str:
    return f"echo {shlex.quote(line)} >> {file}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    severity: Severity
    #: The value that was read, or why it could not be read.
    found: str
    #: Why it matters.
    reason: str = ""
    #: Its measured effect on this machine; empty if there is no measurement.
    effect: str = ""
    #: Commands and settings that ``--fix`` leaves to the user: they need a decision, a restart, or another process.
    by_hand: tuple[str, ...] = ()
    #: Values that ``--fix`` may write: none needs a reboot, none can break a running process.
    changes: tuple[Change, ...] = ()
    #: Where the recommended value comes from.
    source: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        return (*(change.command for change in self.changes), *self.by_hand)
