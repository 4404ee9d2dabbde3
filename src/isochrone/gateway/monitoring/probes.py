"""Probes a policy asks for: a light question to a worker whose load should be known before the next choice.

Fleets small enough to be known from their answers need none; Prequal over a larger one asks a few at random with every
request. At most one probe is under way to a worker, and none follows another at once: a hundred gateways must not
load a fleet with questions. Callbacks only: a probe costs no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.gateway.replicas import Replica
from isochrone.gateway.upstream.load_reports import report_of_header
from isochrone.protocol.headers.orca import ORCA_HEADER
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.receiver import Receiver

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.upstream.connections import Sent

#: A worker is asked at most this often.
_PAUSE_NS = 5 * MILLISECOND
#: A probe that is not answered by then is forgotten: the next one may go.
_PATIENCE_NS = 500 * MILLISECOND

_QUESTION = b"GET /v2/health/ready HTTP/1.1\r\nhost: isochrone\r\nendpoint-load-metrics-format: text\r\n\r\n"


class Probe(Receiver):
    """One question, and the receiver of its answer."""

    __slots__ = ("_fleet", "_member", "_report", "sent")

    def __init__(self, member: Member, fleet: Fleet) -> None:
        self._member = member
        self._fleet = fleet
        self._report = b""
        self.sent: Sent | None = None

    def head(self, status: int, headers: Headers) -> None:
        for name, value in headers:
            if name == ORCA_HEADER and status == 200:
                self._report = value

    def data(self, data: Buffer) -> None:
        """A ready answer has no body worth reading."""

    def complete(self, trailers: Headers) -> None:
        member = self._member
        now = member.endpoint.heard_at = now_ns()
        member.probed_at = now
        member.probe = None
        if self.sent is not None:
            member.connections.release(self.sent)
        if self._report:
            try:
                self._fleet.reported(member, report_of_header(self._report), now)
            except IsochroneError:
                pass  # the monitor says so, once

    def failed(self, error: IsochroneError) -> None:
        # Health is the monitor's affair.
        self._member.probe = None


def probe(fleet: Fleet, replicas: Sequence[Replica], now: int) -> None:
    """Asks those of the replicas that were not asked a moment ago."""
    for replica in replicas:
        member: Member = replica.endpoint.handle
        if member.upstream.api:
            continue  # it reports no load
        if now - member.probed_at < (_PATIENCE_NS if member.probe is not None else _PAUSE_NS):
            continue
        member.probed_at = now
        question = member.probe = Probe(member, fleet)
        question.sent = member.connections.send(_QUESTION, (), question)
