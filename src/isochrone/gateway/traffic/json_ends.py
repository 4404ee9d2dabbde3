"""The member ``parameters`` of a large JSON object, found in its first or last bytes without reading the rest. Pure.

The module ``parameters`` decodes the result. For a JSON object the result is exact: a member of the same name inside a
tensor or a string is never taken for the object's own. The work must not grow with the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

_MEMBER = re.compile(rb'"parameters"\s*:')
_SEQUENCE = re.compile(rb'"sequence_id"\s*:')
#: In JSON, a quote after one of these opens a string: inside a string it would end it, and a bare word would follow.
_BEFORE = b",{ \t\r\n"
_OPENING = re.compile(r"\s*\{\s*")
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*')
_COMMA = re.compile(r"\s*,\s*")
#: Members of that name, from the end, that are tried: those of outputs may come after it.
_CANDIDATES = 32

_json = json.JSONDecoder()


class CutOff(Exception):
    """``parameters`` begins in the first bytes and does not end there."""


def objects_at_end(last: bytes) -> Iterator[bytes]:
    """The text's last members from one named ``parameters`` on, as objects; the first that parses is the right one.

    A member of an inner object does not parse: it has too many closing brackets.
    """
    return _from_the_end(_MEMBER, b"{", last)


def cut_at_end(last: bytes) -> Iterator[bytes]:
    """The same from a ``sequence_id`` on, for an inner object that began before these bytes, so its name is unknown."""
    return _from_the_end(_SEQUENCE, b'{"parameters":{', last)


def _from_the_end(name: re.Pattern[bytes], opening: bytes, last: bytes) -> Iterator[bytes]:
    found = (match.start() for match in name.finditer(last))
    starts = [start for start in found if start and last[start - 1] in _BEFORE]
    return (opening + last[start:] for start in islice(reversed(starts), _CANDIDATES))


def value_at_start(first: bytes) -> bytes | None:
    """The value of ``parameters``, if the members before it are complete; None: it is not there."""
    # Latin-1 has one character per byte, so positions are the same; quotes and brackets are never part of a UTF-8
    # sequence.
    text = first.decode("latin-1")
    found = None
    opening = _OPENING.match(text)
    at = opening.end() if opening else len(text)
    while key := _KEY.match(text, at):
        start = key.end()
        is_wanted = key[1] == "parameters"
        try:
            _, end = _json.raw_decode(text, start)
        except (ValueError, RecursionError):
            if is_wanted:
                raise CutOff from None
            break
        if is_wanted:
            found = first[start:end]
        comma = _COMMA.match(text, end)
        if comma is None:
            break
        at = comma.end()
    return found
