"""What a traced gateway notes of its instructions: faults of the tracing are none of the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.errors import Unavailable
from isochrone.gateway.requests.instructions import Do
from isochrone.gateway.tracing import GatewayTrace
from isochrone.observe.tracing.gateway_record import GatewayRecord
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.tail_sampling import MINUTE_NS
from isochrone.observe.tracing.trace_parent import sampled_trace, trace_parent_in
from isochrone.wire.exchange import Head

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


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


class Served:
    def __init__(self, name: str) -> None:
        self.name = name


class Replica:
    """A worker, and the version that it serves."""

    version = "1"
    endpoint = SimpleNamespace(address="w:1")


class Attempt:
    """One sending to a worker that answered, or was given up."""

    def __init__(self, request: Any, *, given_up: str = "", status: int = 200) -> None:
        self.request = request
        self.given_up = given_up
        self.status = status
        self.trailers: tuple[tuple[bytes, bytes], ...] = ()
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.replica = self.replica_set = Replica()
        self.is_hedge = False
        self.trace_parent = b""
        self.sent_at = request.came_at
        self.answered_at = now_ns()


def sent(model: str = "m", age_ns: int = 0, parent: bytes = b"") -> Any:
    """A request that is about to be sent."""
    request: Any = Held()
    request.served = Served(model)
    request.attempts = []
    request.came_at -= age_ns
    if parent:
        request.head = Head(b"POST", b"/", ((b"traceparent", parent),))
        request.trace_id = sampled_trace(trace_parent_in(request.head.headers))
    return request


def answered(trace: GatewayTrace, request: Any, **attempt: Any) -> Any:
    made = Attempt(request, **attempt)
    request.attempts = [made]
    trace.note([(Do.SEND, request, made)])
    request.sent_at = now_ns()
    request.attempts = []
    trace.note([(Do.ANSWER, request, made)])
    return made


def records(trace: GatewayTrace) -> list[GatewayRecord]:
    return [GatewayRecord._make(each) for each in trace._queue.take(10_000)]


def test_a_request_that_nobody_samples_is_sent_without_a_context() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    assert answered(trace, sent()).trace_parent == b""
    assert answered(GatewayTrace(ExportSettings(), 0, sends_all=True), sent()).trace_parent.endswith(b"-00")
    assert answered(GatewayTrace(ExportSettings(), 1), sent()).trace_parent.endswith(b"-01")


def test_the_slowest_are_those_of_each_model() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    for number in range(20):
        answered(trace, sent("slow", SECOND + number * SECOND))
        answered(trace, sent("quick", number * MILLISECOND))
    trace.tick(now_ns() + MINUTE_NS)
    kept = records(trace)
    assert {each.reason for each in kept} == {"slowest"}
    assert sorted(each.model for each in kept) == ["quick"] * 5 + ["slow"] * 5
    assert not trace._slowest
    assert all(len(each.attempts) == 1 for each in kept)


def test_an_attempt_at_a_worker_that_hangs_is_no_cancelled_one() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    request = sent()
    first = Attempt(request, given_up="connection_lost")
    request.attempts = [first]
    trace.note([(Do.SEND, request, first)])
    request.sent_at = now_ns()
    request.attempts = []
    trace.note([(Do.CANCEL, request, first)])
    second = Attempt(request)
    request.attempts = [second]
    trace.note([(Do.SEND, request, second)])
    trace.note([(Do.ANSWER, request, second)])
    trace.close()
    (kept,) = records(trace)
    assert [each.outcome for each in kept.attempts] == ["connection_lost", "answered"]


def test_only_traces_that_are_kept_are_named_by_exemplars() -> None:
    trace = GatewayTrace(ExportSettings(bsp_max_queue_size=1), 0)
    failed, dropped, fine = sent(), sent(parent=PARENT), sent()
    answered(trace, failed, status=500)
    answered(trace, dropped)
    answered(trace, fine)
    assert trace.snapshot().dropped == 1
    (kept,) = records(trace)
    assert (failed.trace_id, dropped.trace_id, fine.trace_id) == (f"{kept.trace_id:032x}", "", "")


def test_more_failures_than_the_rate_are_counted_and_what_a_caller_samples_is_kept() -> None:
    trace = GatewayTrace(ExportSettings(failures_per_second=1), 0)
    for _ in range(100):
        trace.note([(Do.REJECT, Held(), Unavailable("no"))])
    snapshot = trace.snapshot()
    assert snapshot.kept["error"] + snapshot.limited == 100
    assert snapshot.kept["error"] < 20
    sampled = sent(parent=PARENT)
    trace.note([(Do.REJECT, sampled, Unavailable("no"))])
    assert sum(trace.snapshot().kept.values()) == snapshot.kept["error"] + 1


def test_a_stream_that_the_gateway_ends_is_an_error() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    trace.broken_off(sent(), Unavailable("the gateway is stopping"))
    assert [(each.reason, each.error_code) for each in records(trace)] == [("error", "unavailable")]


def test_two_parents_are_none() -> None:
    trace = GatewayTrace(ExportSettings(), 0)
    request = sent()
    request.head = Head(b"POST", b"/", ((b"traceparent", PARENT), (b"traceparent", PARENT)))
    answered(trace, request, status=500)
    assert records(trace)[0].parent_id == 0
