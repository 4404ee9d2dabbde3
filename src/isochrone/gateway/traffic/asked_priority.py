"""The priority that a JSON request asks for, however it is spelled: for callers whose role limits it. Pure.

``parameters`` reads what routing needs, at the ends of a large text and where a name is written plainly. A limit needs
more: a name in the middle of the text, or written with escapes, counts for the worker too. What cannot be read within
bounded time is rejected, since the worker may read it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from isochrone.errors import InvalidArgument
from isochrone.wire.exchange import Buffer

#: A text up to this size that may name a priority is parsed, which takes up to 5 ms.
_MOST = 1024 * 1024
#: The same with NaN or Infinity, which Python's own parser reads.
_MOST_NOT_FINITE = 128 * 1024


class _Request(msgspec.Struct):
    """Beside the inputs (generate, OpenAI), and among the parameters."""

    priority: Any = None
    parameters: Any = None


_request = msgspec.json.Decoder(_Request)


def asked_priority(text: Buffer, length: int) -> int:
    """The most urgent priority (1 is the highest) that the first ``length`` bytes of ``text`` ask for; 0: none.

    Raises ``InvalidArgument`` for a text that may ask for one and cannot be read.
    """
    part = bytes(memoryview(text)[:length])
    if b'"priority"' not in part and b"\\" not in part:
        return 0
    if len(part) > _MOST:
        raise InvalidArgument(
            f"your role limits the priority, and JSON of {len(part)} bytes that names one or contains a backslash is "
            f"read up to {_MOST} bytes only: send tensors as binary data"
        )
    found = _decoded(part)
    inner = found.parameters.get("priority") if isinstance(found.parameters, dict) else None
    return min((number for number in map(_number, (found.priority, inner)) if number), default=0)


def _decoded(part: bytes) -> _Request:
    try:
        return _request.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        is_finite = b"NaN" not in part and b"Infinity" not in part
        if is_finite or len(part) > _MOST_NOT_FINITE:
            raise InvalidArgument(f"failed to parse the request JSON: {error}") from None
    try:
        value = json.loads(part)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"failed to parse the request JSON: {error}") from None
    return _Request(value.get("priority"), value.get("parameters")) if isinstance(value, dict) else _Request()


def _number(value: object) -> int:
    """0: not given, or nothing that any worker takes for a priority."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    try:
        return max(int(value), 0)
    except (ValueError, OverflowError):
        return 0
