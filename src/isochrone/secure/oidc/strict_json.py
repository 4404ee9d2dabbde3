"""JSON objects of strangers: UTF-8, each name once, no NaN. Pure.

Readers disagree about an object that has a name twice: what one checks, the other may not use.
"""

from __future__ import annotations

import json
from typing import Any, Final


class NotAnObject(ValueError):
    """Not such an object; the message says why, and has nothing of it."""


def read_object(content: bytes) -> dict[str, Any]:
    try:
        found = _DECODER.decode(content.decode("utf-8"))
    except NotAnObject:
        raise
    except UnicodeDecodeError:
        raise NotAnObject("is not UTF-8") from None
    except (ValueError, RecursionError):
        raise NotAnObject("is not JSON") from None
    if type(found) is not dict:
        raise NotAnObject("is not a JSON object")
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise NotAnObject("has a name twice")
    return table


def _no_number(_: str) -> Any:
    raise NotAnObject("has a number that is none")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=_no_number)
