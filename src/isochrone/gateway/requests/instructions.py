"""The instructions of the request machine to its shell: (what to do, request, subject)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from isochrone.gateway.requests.request import Request


class Do(IntEnum):
    """What the shell does, and what the subject is."""

    #: Send the request; the attempt.
    SEND = 0
    #: Pass an attempt's answer to the caller; the attempt.
    ANSWER = 1
    #: Answer the caller with an error; the error.
    REJECT = 2
    #: Cancel an attempt in flight; the attempt.
    CANCEL = 3
    #: Break off an answer that is being passed on; the error.
    CUT_OFF = 4
    #: Send a copy, whose answer is discarded; where to (``machine.Destination``).
    COPY = 5
    #: Ask replicas for their load; the replicas.
    PROBE = 6
    #: Read the repository index of an endpoint again; the endpoint.
    LOOK = 7
    #: Count an answer that does not follow the protocol; the attempt.
    FOREIGN = 8
    #: Find out whether the process of an endpoint lives, then report it by ``RequestMachine.checked``; the endpoint.
    CHECK = 9
    #: Begin the health checks of an endpoint anew: its process has ended, and it gets nothing until then; the endpoint.
    GONE = 10
    #: Publish that a request was quarantined; the ``Quarantining``.
    QUARANTINED = 11
    #: Go on with a stream whose messages waited for a strict switch; None.
    RESUME = 12


Instruction = tuple[Do, Request | None, Any]
