"""How an attempt ended, as its codec or its connection found. One classification for both protocols."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """The end of an attempt."""

    #: An answer for the caller; the caller's own mistake included.
    ANSWERED = 0
    #: Rejected, or lost, before the endpoint began it: nothing of it has run.
    NOT_BEGUN = 1
    #: Rejected by an endpoint that does not say whether a part of it has run.
    REJECTED = 2
    #: The endpoint reports a failure of its own: another endpoint would fail as well.
    FAILED = 3
    #: The connection broke, or the endpoint stopped answering: it may have run.
    LOST = 4
    #: The answer does not follow the protocol.
    FOREIGN = 5
