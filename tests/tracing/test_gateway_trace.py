"""What a traced gateway notes of its instructions: faults of the tracing are none of the request."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from isochrone.clock import now_ns
from isochrone.errors import Unavailable
from isochrone.gateway.requests.instructions import Do
from isochrone.gateway.tracing import GatewayTrace
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.wire.exchange import Head


class Held:
    """A stream that was held before its first message: it has no ``served``."""

    def __init__(self) -> None:
        self.shadow = None
        self.trail: Any = None
        self.came_at = now_ns()
        self.deadline = self.came_at + 10**12
        self.head: Any = Head(b"POST", b"/", ())
        self.trace_id = ""
        self.sent_at = 0
        self.streaming_at = 0


class Broken(Held):
    @property
    def head(self) -> Any:
        raise RuntimeError("a fault")

    @head.setter
    def head(self, value: Any) -> None:
        pass


def test_a_held_stream_without_a_model_is_recorded() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    trace.note([(Do.REJECT, Held(), Unavailable("held too long"))])
    assert trace.snapshot().kept["error"] == 1


def test_a_fault_with_one_request_does_not_keep_others_from_being_noted() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    with capture_logs() as lines:
        trace.note([(Do.REJECT, each, Unavailable("no")) for each in (Broken(), Held())])
    assert trace.snapshot().kept["error"] == 1
    assert [line["event"] for line in lines] == ["a request could not be traced"]


def test_a_caller_that_has_gone_leaves_no_trail() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    request: Any = Held()
    request.trail = trace._begin(request, "")
    trace.broken_off(request, None)
    assert request.trail is None
    assert not sum(trace.snapshot().kept.values())
