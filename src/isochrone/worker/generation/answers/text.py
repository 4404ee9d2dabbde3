"""The text of an answer while it grows: characters that are complete, up to the first stop string.

Tokens are parts of words and of characters, so text is decoded with the tokens before it, and bytes that are no
character yet are held back, as is text that may be the beginning of a stop string. Whatever the borders of tokens, the
pieces add up to the decoded answer, cut before the stop string that is complete first. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
#: Of the replacement characters at the end of a text, the last ones may become a character: one in most tokenizers,
#: three in those that decode each byte by itself.
_MAX_OPEN = 3
#: After so many tokens without a complete character there is none to come.
_MAX_WINDOW = 64


class AnswerText:
    """The text of one answer."""

    __slots__ = (
        "_decode",
        "_emitted",
        "_held",
        "_longest",
        "_piece",
        "_stops",
        "_tokens",
        "_unread",
        "_window",
        "is_stopped",
        "was_cut",
    )

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        piece: Callable[[int], str | None] | None = None,
    ) -> None:
        """``piece``: the text that a token has beside any others; None: it depends on them."""
        self._decode = decode
        self._piece = piece
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._tokens: list[int] = []
        #: Text is decoded from ``_window`` on. Tokens from ``_unread`` on are not complete; those before are the
        #: context of their first word. ``_emitted``: characters of the window's text that were given out.
        self._window = self._unread = self._emitted = 0
        #: May be the beginning of a stop string.
        self._held = ""
        #: Nothing follows: a stop string came (``was_cut``), or the answer has ended.
        self.is_stopped = False
        self.was_cut = False

    def add(self, token: int, *, may_stop: bool = True) -> str:
        """The text that is certain after one more token. ``may_stop``: whether stop strings count yet."""
        if self.is_stopped:
            return ""
        tokens = self._tokens
        if self._piece is not None and self._unread == len(tokens) and (text := self._piece(token)) is not None:
            # Nothing is held back, and nothing need be decoded.
            self._window = len(tokens)
            tokens.append(token)
            self._unread, self._emitted = len(tokens), len(text)
            return self._through_stops(text, may_stop) if self._stops else text
        tokens.append(token)
        return self._through_stops(self._decoded(), may_stop)

    def end(self) -> str:
        """What was held back: the answer has ended."""
        if self.is_stopped:
            return ""
        text = self._decode(self._tokens[self._window :])[self._emitted :]
        rest = self._through_stops(text, True)
        held, self._held = self._held, ""
        self.is_stopped = True
        return rest + held

    def _decoded(self) -> str:
        text = self._decode(self._tokens[self._window :])
        complete = len(text.rstrip(_REPLACEMENT))
        complete = max(complete, len(text) - _MAX_OPEN)
        is_complete = complete == len(text)
        if not is_complete and len(self._tokens) - self._window > _MAX_WINDOW:
            complete, is_complete = len(text), True
        fresh = text[self._emitted : complete]
        self._emitted = max(self._emitted, complete)
        if is_complete:
            # The tokens of this piece are the context of the next one.
            self._window, self._unread = self._unread, len(self._tokens)
            self._emitted = len(self._decode(self._tokens[self._window :]))
        return fresh

    def _through_stops(self, fresh: str, may_stop: bool) -> str:
        if not self._stops or not may_stop:
            return fresh
        text = self._held + fresh
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.is_stopped = self.was_cut = True
            self._held = ""
            return text[: min(found)[1]]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of a text with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stops):
                return length
        return 0
