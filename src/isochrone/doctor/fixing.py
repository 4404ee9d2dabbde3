"""Changes of settings: the plan of the safe ones, whether they can be written, and writing them.

Values change in the running system alone: they are gone after a reboot. The command asks for consent before it calls
``apply``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isochrone.doctor.findings import Change, Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a change. ``error`` is empty if the file has the new value."""

    change: Change
    error: str = ""


def planned(findings: Iterable[Finding]) -> tuple[Change, ...]:
    return tuple(change for finding in findings for change in finding.changes)


def unwritable(changes: Iterable[Change], root: Path) -> tuple[Change, ...]:
    """The changes that this user cannot make, or that a read-only file system does not allow."""
    return tuple(change for change in changes if not os.access(root / change.path, os.W_OK))


def apply(changes: Sequence[Change], root: Path) -> tuple[Outcome, ...]:
    """Write the values, each one whatever became of the others."""
    return tuple(Outcome(change, _write(root / change.path, change)) for change in changes)


def _write(path: Path, change: Change) -> str:
    try:
        path.write_text(change.new)
        now = path.read_text()
    except OSError as error:
        return error.strerror or str(error)
    # Files of choices show all of them, and the chosen one in brackets.
    if change.new.split() != now.split() and f"[{change.new}]" not in now:
        return f"the kernel keeps '{' '.join(now.split())}'"
    return ""
