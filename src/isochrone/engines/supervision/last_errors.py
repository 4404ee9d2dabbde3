"""Finds the last error in the end of a process's log, which may be why it ended. Pure.

``isochrone status`` shows it beside how the process ended. A log line below the level of an error is not shown: the
last line of a process that was killed is often unrelated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Level of a log line, as written for people or as JSON.
_LEVEL = re.compile(r'^\S+(?: \S+)? \[(\w+) *\]|^\{.*"level": ?"(\w+)"')
_ERROR_LEVELS = frozenset(("error", "critical"))
#: The last line of a traceback, fatal errors of the interpreter and of C++, and the errors of our commands.
_ERROR = re.compile(
    r"(?i:\berror\b|exception\b|panicked)|^[\w.]*(?:Error|Exit|Interrupt)\b|^terminate called|^isochrone "
)


def last_error(lines: Sequence[str]) -> str:
    """The last line that reports an error; otherwise the last line, if it is not a log line; "": neither."""
    plain = lines[-1].strip() if lines and _LEVEL.match(lines[-1]) is None else ""
    return next((line.strip() for line in reversed(lines) if _reports_error(line)), plain)


def _reports_error(line: str) -> bool:
    level = _LEVEL.match(line)
    if level is not None:
        return (level[1] or level[2]) in _ERROR_LEVELS
    # Indented lines are stack frames.
    return not line[:1].isspace() and _ERROR.search(line) is not None
