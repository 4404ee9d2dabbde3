"""How many tokens a request has used, from what passes through a gateway, which knows no tokenizer. Pure.

Usage that an answer states counts. Of a stream, each event or message counts as one token: workers send at least one
with each. Where nothing is known, four bytes count as one.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from isochrone.wire.exchange import Buffer

_BYTES_PER_TOKEN: Final = 4
#: Within the text of an answer the second quote has a backslash before it.
_USAGE: Final = re.compile(rb'"total_tokens"\s*:\s*(\d{1,9})')
#: The end of an answer, where its usage stands.
TAIL: Final = 4096
_FRAME_HEAD: Final = 5


def estimate(size: int) -> int:
    """Tokens of so many bytes."""
    return -(-size // _BYTES_PER_TOKEN)


def usage_in(text: Buffer) -> int:
    """The last usage that an answer states: of its prompt and its text; 0: none."""
    found = _USAGE.findall(text)
    return int(found[-1]) if found else 0


class PassedTokens(Protocol):
    """Counts the tokens of one answer that is passed on."""

    #: Counted so far, and what the answer states itself; 0: it states nothing.
    total: int
    usage: int

    def count(self, data: Buffer) -> int:
        """Tokens in the next piece."""
        ...


class PassedEvents:
    """Of server-sent events. A piece may end anywhere."""

    def __init__(self) -> None:
        self.total = self.usage = 0
        self._is_line_ended = False

    def count(self, data: Buffer) -> int:
        text = bytes(data)
        events = text.count(b"\n\n") + (self._is_line_ended and text[:1] == b"\n")
        if text:
            self._is_line_ended = text[-1:] == b"\n" and text[-2:] != b"\n\n"
        if b'"total_tokens"' in text:
            self.usage = usage_in(text) or self.usage
        self.total += events
        return events


class PassedMessages:
    """Of a gRPC stream: five bytes with its size stand before each message."""

    def __init__(self) -> None:
        self.total = self.usage = 0
        self._left = 0
        self._head = b""

    def count(self, data: Buffer) -> int:
        messages, place, size = 0, 0, len(data)
        while place < size:
            if self._left:
                step = min(self._left, size - place)
                self._left -= step
                place += step
                continue
            missing = _FRAME_HEAD - len(self._head)
            self._head += bytes(data[place : place + missing])
            place += missing
            if len(self._head) == _FRAME_HEAD:
                messages += 1
                self._left, self._head = int.from_bytes(self._head[1:], "big"), b""
        self.total += messages
        return messages
