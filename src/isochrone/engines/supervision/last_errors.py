"""Why a process ended, as far as the end of its log says: the last line that reports an error. Pure.

For ``isochrone status``, beside how the process ended. A log line below the level of an error explains nothing and is
not shown: the last line of a process that was killed is often about something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Level of a log line, as written for people or as JSON.
_LEVEL = re.compile(r'^\S+(?: \S+)? \[(\w+) *\]|^\{.*"level": ?"(\w+)"')
_ERROR_LEVELS = frozenset(("error", "critical"))
#: The last line of a traceback, the interpreter's and C++'s own last words, and what our commands print.
_ERROR = re.compile(
    r"(?i:\berror\b|exception\b|panicked)|^[\w.]*(?:Error|Exit|Interrupt)\b|^terminate called|^isochrone "
)


def last_error(lines: Sequence[str]) -> str:
    """The last line that reports an error, else the last of all if it is no line of a log; "": neither."""
    plain = lines[-1].strip() if lines and _LEVEL.match(lines[-1]) is None else ""
    return next((line.strip() for line in reversed(lines) if _reports_error(line)), plain)


def _reports_error(line: str) -> bool:
    level = _LEVEL.match(line)
    if level is not None:
        return (level[1] or level[2]) in _ERROR_LEVELS
    # Indented lines are frames of a stack.
    return not line[:1].isspace() and _ERROR.search(line) is not None
