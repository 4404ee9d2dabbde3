"""What a gateway keeps of its last requests: records that are written over in place.

A record refers to nothing that holds a connection or a worker that has left. ``recording`` writes them, ``reading``
reads them.
"""

from __future__ import annotations

from typing import Any

#: Address, version, sent, ended, outcome, whether it is a hedge, streaming since, load report, candidates.
AttemptValues = tuple[Any, ...]


class GatewayFlightRecord:
    """One request. Instants are monotonic ns; 0: it did not come so far."""

    __slots__ = (
        "answered_at",
        "arrived",
        "caller_ids",
        "came",
        "canary",
        "candidates",
        "deadline",
        "ended",
        "ended_as",
        "endpoint",
        "epoch",
        "failure",
        "flown",
        "is_hedge",
        "load",
        "model",
        "number",
        "opening",
        "priority",
        "sent",
        "sent_last",
        "status",
        "streaming_at",
        "version",
        "waits_since",
    )

    def __init__(self) -> None:
        #: Of the request among all that were kept: the same in both rings.
        self.number = 0
        self.came = self.arrived = self.waits_since = self.sent = self.ended = 0
        self.deadline = 0
        self.model = ""
        self.version = ""
        self.epoch = 0
        #: The first bytes of its message, which may have its id; and the ids in its head.
        self.opening = b""
        self.caller_ids: Any = ()
        self.priority = 0
        #: Of the attempt that was answered; "": none was.
        self.endpoint = ""
        self.sent_last = self.answered_at = 0
        self.ended_as = 0
        self.is_hedge = False
        self.streaming_at = 0
        self.load: Any = None
        self.candidates: Any = ()
        self.status = 0
        #: The other attempts; None: there were none.
        self.flown: list[AttemptValues] | None = None
        #: The rules of the canary that chose its version.
        self.canary: Any = None
        #: Of one that failed: code, message, what rejected it, expected time, how late it would have been.
        self.failure: tuple[str, str, str, int, int] | None = None
