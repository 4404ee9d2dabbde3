"""``parameters`` of a large JSON object, found in its first or last bytes without reading the rest. Pure.

``parameters`` reads what is found here. For text that is a JSON object the result is exact: a member of the same name
inside a tensor or in a string is never taken for the object's own. Must never do work that grows with the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

_MEMBER = re.compile(rb'"parameters"\s*:')
_SEQUENCE = re.compile(rb'"sequence_id"\s*:')
#: In JSON, a quote behind one of these opens a string: inside a string it would end it, and a bare word would follow.
_BEFORE = b",{ \t\r\n"
_OPENING = re.compile(r"\s*\{\s*")
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*')
_COMMA = re.compile(r"\s*,\s*")
#: Members of that name, from the end, that are considered: those of outputs may stand behind it.
_CANDIDATES = 32

_json = json.JSONDecoder()


class CutOff(Exception):
    """``parameters`` begin in the first bytes and do not end there."""


def objects_at_end(last: bytes) -> Iterator[bytes]:
    """The text's last members from one named ``parameters`` on, as objects; of those that parse, the first is right.

    One that belongs to an inner object does not parse: it has closing brackets too many.
    """
    return _from_the_end(_MEMBER, b"{", last)


def cut_at_end(last: bytes) -> Iterator[bytes]:
    """The same from a ``sequence_id`` on, where an inner object that has it began before: its name is not known."""
    return _from_the_end(_SEQUENCE, b'{"parameters":{', last)


def _from_the_end(name: re.Pattern[bytes], opening: bytes, last: bytes) -> Iterator[bytes]:
    found = (match.start() for match in name.finditer(last))
    starts = [start for start in found if start and last[start - 1] in _BEFORE]
    return (opening + last[start:] for start in islice(reversed(starts), _CANDIDATES))


def value_at_start(first: bytes) -> bytes | None:
    """The value of ``parameters``, where members before it are whole; None: the text does not begin so."""
    # One character per byte: positions are the same, and quotes and brackets are never part of a UTF-8 sequence.
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
