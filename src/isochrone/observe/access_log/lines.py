"""The lines of the access log: names and values, as one JSON object each. Pure.

Callers choose ids and names: they are cut, and written as ASCII, so that no character of theirs ends a line or moves a
terminal's cursor. A payload is never among the values.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

#: Characters of a text that callers choose.
MAX_TEXT: Final = 200


def line_of(values: dict[str, Any], wall_ns: int) -> bytes:
    """``values`` without the time; those that are None or "" are left out."""
    written: dict[str, Any] = {"timestamp": timestamp(wall_ns)}
    for name, value in values.items():
        if isinstance(value, str):
            value = value[:MAX_TEXT]
        if value is not None and value != "":
            written[name] = value
    # ASCII alone: control characters, line separators and what does not pair are escaped.
    return json.dumps(written, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def timestamp(wall_ns: int) -> str:
    seconds, below = divmod(wall_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{below // 1000:06d}Z"


def milliseconds(duration_ns: int) -> float:
    """Rounded to whole microseconds."""
    return round(duration_ns / 1e6, 3)
