"""Streams of server-sent events: which event has the first token, and whether the stream ended well. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from isochrone.bench.results.outcomes import FAILED, OK
from isochrone.bench.sending.sender import outcome_of_http, shortened

_decode = msgspec.json.Decoder().decode
#: A line without an end that grows beyond this is no event stream.
_MOST_UNFINISHED = 16 << 20


class EventStream:
    """Reads the events of one answer. ``is_openai``: the first token is the first text, and the end is announced."""

    __slots__ = ("_error", "_has_begun", "_is_openai", "_outcome", "_unfinished", "is_done")

    def __init__(self, *, is_openai: bool) -> None:
        self._is_openai = is_openai
        self._unfinished = b""
        self._has_begun = False
        self._outcome = OK
        self._error = ""
        #: The server announced the end (``[DONE]``).
        self.is_done = False

    def feed(self, data: bytes) -> bool:
        """Read bytes; whether the first token is among them."""
        lines = (self._unfinished + data).split(b"\n")
        self._unfinished = lines.pop()
        if len(self._unfinished) > _MOST_UNFINISHED:
            self._fail(FAILED, "the server sent no events: a line is longer than 16 MiB")
            self._unfinished = b""
        before = self._has_begun
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
        return self._has_begun and not before

    def ending(self) -> tuple[int, str]:
        """The outcome of an answer that is complete, and its error."""
        if self._outcome != OK:
            return self._outcome, self._error
        if not self._has_begun and not self.is_done:
            return FAILED, "the stream ended without an event"
        if self._is_openai and not self.is_done:
            return FAILED, "the stream ended without [DONE]"
        return OK, ""

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        # After the first token only errors matter, and few events have the word.
        if self._has_begun and b'"error"' not in data:
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            self._fail(FAILED, "the server sent an event that is no JSON")
            return
        error = event.get("error") if isinstance(event, dict) else None
        if error:
            self._fail(*_of_error(error))
        elif not self._has_begun and (not self._is_openai or _has_text(event)):
            self._has_begun = True

    def _fail(self, outcome: int, error: str) -> None:
        if self._outcome == OK:
            self._outcome, self._error = outcome, error


def _of_error(error: Any) -> tuple[int, str]:
    if not isinstance(error, dict):
        return FAILED, shortened(str(error))
    code = error.get("code")
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdigit()) else 500
    return outcome_of_http(status) or FAILED, shortened(str(error.get("message", error)))


def _has_text(event: Any) -> bool:
    """Whether an event of OpenAI's API has a token: chats begin with an event that has a role alone."""
    try:
        for choice in event["choices"]:
            delta = choice.get("delta") or choice
            if delta.get("content") or delta.get("text") or delta.get("reasoning_content") or delta.get("tool_calls"):
                return True
    except (KeyError, TypeError, AttributeError):
        pass
    return False
