"""What a traced gateway notes of a request while it is under way: its span, and those of its attempts."""

from __future__ import annotations

from typing import Any


class TrailedAttempt:
    """One attempt. ``ended`` is 0 while it is in flight."""

    __slots__ = ("attempt", "ended", "outcome", "sent", "span_id")

    def __init__(self, attempt: Any, span_id: int, sent: int) -> None:
        self.attempt = attempt
        self.span_id = span_id
        self.sent = sent
        self.ended = 0
        self.outcome = ""


class Trail:
    """One request."""

    __slots__ = ("attempts", "parent_id", "reason", "span_id", "trace_id", "trace_state")

    def __init__(self, trace_id: int, span_id: int, parent_id: int, trace_state: str, reason: str) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.trace_state = trace_state
        #: Why it is kept, as far as its start shows; "": it is not, so far.
        self.reason = reason
        self.attempts: list[TrailedAttempt] = []

    def end(self, attempt: Any, outcome: str, now: int) -> None:
        """The first end of an attempt counts."""
        for each in self.attempts:
            if each.attempt is attempt and not each.ended:
                each.ended, each.outcome = now, outcome
