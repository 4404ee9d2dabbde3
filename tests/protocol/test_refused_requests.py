"""Requests that access rules refuse are counted for the audit log: each once, and none that is not refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from isochrone.errors import IsochroneError, NotFound
from isochrone.protocol.access.needs import needed_by_page
from isochrone.protocol.applications.application import ProtocolApplication
from isochrone.protocol.applications.authenticated import Authenticated
from isochrone.protocol.messages import InferRequest
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.protocol.services.guarded_service import GuardedService
from isochrone.secure.access.grants import Evidence, Grant
from isochrone.secure.access.held import MOST_HELD, HeldRequests
from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.policy import Assignment, Policy, Rule
from isochrone.secure.audit.actor import Actor, anonymous
from isochrone.wire.exchange import Consumer, Exchange, Head, Route

ADDRESS = "10.1.2.3"
STRANGER = anonymous(ADDRESS)
ROBOT = Actor("token:robot", "token", ADDRESS)
POLICY = Policy(
    {"caller": (Rule(frozenset(("inference", "metadata")), ("detector",)),)},
    (Assignment(("token:robot",), ("caller",)),),
)
GRPC = ((b"content-type", b"application/grpc"),)
SERVICE = b"/inference.GRPCInferenceService/"


class Counted:
    """As much of an ``Audit`` as requests see."""

    def __init__(self) -> None:
        self.refusals: list[tuple[Actor, str, str, str]] = []

    def refused_access(self, actor: Actor, permission: str, error: str, change: str = "") -> None:
        self.refusals.append((actor, permission, error, change))


class FakeTransport:
    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "peername"
        return ADDRESS, 4321


class FakeExchange:
    def __init__(self, head: Head, body: bytes = b"") -> None:
        self.head, self.body = head, body
        self.owner: Any = None
        self.connection = SimpleNamespace(transport=FakeTransport())
        self.answers: list[Any] = []

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.answers.append(status)

    def end_with_trailers(self, block: bytes) -> None:
        self.answers.append(block)


class Served(Route):
    def __init__(self, *, streaming: bool) -> None:
        self.streaming = streaming
        self.calls: list[str] = []

    def handle(self, exchange: Exchange) -> None:
        self.calls.append("handled")

    def open(self, exchange: Exchange) -> Consumer:
        self.calls.append("opened")
        return cast("Consumer", self)

    def data_received(self, data: bytes) -> None:
        self.calls.append(f"{len(data)} bytes")

    def ended(self) -> None:
        self.calls.append("ended")


class Front:
    """An application behind access rules, whose callers' grants a test decides."""

    def __init__(self, grant: Grant, *, streaming: bool = False, is_page: bool = False) -> None:
        self.audit = Counted()
        self.served: Route = Served(streaming=streaming)
        self._grant = grant
        need = {"need": needed_by_page} if is_page else {}
        self._application = Authenticated(self, self, 1 << 20, audit=self.audit, **need)  # type: ignore[arg-type]

    def route(self, head: Head) -> Route:
        return self.served

    def grant(self, credential: bytes, peer: Any, attestation: bytes) -> Grant:
        return self._grant

    def ask(self, method: bytes, target: bytes, headers: Any = (), body: bytes = b"") -> FakeExchange:
        head = Head(method, target, headers)
        head.is_grpc = bool(headers)
        exchange = FakeExchange(head, body)
        route = self._application.route(head)
        if route.streaming:
            self.consumer = route.open(cast("Exchange", exchange))
        else:
            route.handle(cast("Exchange", exchange))
        return exchange


def grant_of(identity: Identity = ANONYMOUS, refusal: str = "", policy: Policy = POLICY) -> Grant:
    return Grant(Evidence(b"Bearer secret"), identity, policy, refusal)


ROBOTS = Identity("token:robot")
WRONG = "the token is not known here"


@pytest.mark.parametrize(
    ("method", "target", "headers", "permission", "change"),
    [
        (b"POST", b"/v2/models/detector/infer", (), "inference", ""),
        (b"POST", b"/v1/completions", (), "inference", ""),
        (b"GET", b"/v2/models/detector/config", (), "model-config", ""),
        (b"POST", b"/v2/repository/models/detector/load", (), "model-repository", "model.load"),
        (b"POST", b"/v2/trace/setting", (), "trace", "trace.set"),
        (b"GET", b"/v2/trace/setting", (), "trace", ""),
        (b"GET", b"/secret-of-a-stranger", (), "nobody", ""),
        (b"POST", SERVICE + b"ModelInfer", GRPC, "inference", ""),
        (b"POST", SERVICE + b"RepositoryModelUnload", GRPC, "model-repository", "model.unload"),
        # Without settings in its message it only reads.
        (b"POST", SERVICE + b"LogSettings", GRPC, "logging", ""),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_refused_request_is_counted_once(
    method: bytes, target: bytes, headers: Any, permission: str, change: str, streaming: bool
) -> None:
    for grant, error in ((grant_of(refusal=WRONG), "unauthenticated"), (grant_of(), "unauthenticated")):
        front = Front(grant, streaming=streaming)
        exchange = front.ask(method, target, headers)
        assert front.audit.refusals == [(STRANGER, permission, error, change)]
        assert len(exchange.answers) == 1
    # An error of the application is one of access for who has no valid credential.
    front = Front(grant_of(refusal=WRONG))
    front.served = ErrorRoute(NotFound("no such path"))
    front.ask(method, target, headers)
    assert front.audit.refusals == [(STRANGER, permission, "unauthenticated", change)]


def test_a_caller_without_the_right_is_named() -> None:
    front = Front(grant_of(ROBOTS))
    assert front.ask(b"POST", b"/v2/repository/models/detector/load").answers == [403]
    front.ask(b"POST", SERVICE + b"RepositoryModelLoad", GRPC)
    assert front.audit.refusals == [(ROBOT, "model-repository", "permission_denied", "model.load")] * 2
    page = Front(grant_of(ROBOTS), is_page=True)
    page.ask(b"GET", b"/metrics")
    assert page.audit.refusals == [(ROBOT, "metrics", "permission_denied", "")]


def test_what_is_not_refused_is_not_counted() -> None:
    front = Front(grant_of(ROBOTS))
    front.ask(b"POST", b"/v2/models/detector/infer")
    front.ask(b"GET", b"/v2/models/detector")
    assert cast("Served", front.served).calls == ["handled"] * 2
    # A message that cannot be read says nothing of rights.
    answers = front.ask(b"POST", SERVICE + b"ModelMetadata", GRPC, b"\0\0\0\0\1\xff").answers
    assert len(answers) == 1
    assert front.audit.refusals == []


def test_rules_that_are_not_read_yet_refuse_nobody() -> None:
    pending = Policy(is_pending=True)
    for streaming in (False, True):
        front = Front(grant_of(policy=pending), streaming=streaming)
        assert front.ask(b"POST", b"/v2/models/detector/infer").answers == [503]
        assert front.audit.refusals == []


@pytest.mark.parametrize("streaming", [False, True])
def test_requests_that_wait_for_a_key_are_counted_if_they_are_refused_then(streaming: bool) -> None:
    for passes in (False, True):
        grant, held = grant_of(refusal=WRONG), HeldRequests()
        grant.held = held
        front = Front(grant, streaming=streaming)
        waiting = [front.ask(b"POST", b"/v2/models/detector/infer") for _ in range(3)]
        assert front.audit.refusals == []
        waiting[0].owner.abandoned()
        if passes:
            grant.renew(ROBOTS, POLICY, "")
        grant.held = None
        held.release()
        assert len(front.audit.refusals) == (0 if passes else 2)
        assert len(cast("Served", front.served).calls) == (2 if passes else 0)
        assert [len(each.answers) for each in waiting] == ([0] * 3 if passes else [0, 1, 1])


def test_what_finds_no_place_to_wait_is_counted() -> None:
    grant, held = grant_of(refusal=WRONG), HeldRequests()
    for number in range(MOST_HELD):
        assert held.hold(lambda number=number: None)  # type: ignore[misc]
    grant.held = held
    for streaming in (False, True):
        front = Front(grant, streaming=streaming)
        front.ask(b"POST", b"/v2/models/detector/infer")
        assert front.audit.refusals == [(STRANGER, "inference", "unauthenticated", "")]


@pytest.mark.parametrize("cause", ["bytes", "memory"])
def test_a_stream_that_must_not_wait_any_longer_is_refused_once(cause: str) -> None:
    grant = grant_of(refusal=WRONG)
    grant.held = HeldRequests()
    front = Front(grant, streaming=True)
    exchange = front.ask(b"POST", SERVICE + b"ModelStreamInfer", GRPC)
    for _ in range(5 if cause == "bytes" else 1):
        front.consumer.data_received(bytes(16384))
    if cause == "memory":
        front.consumer.shed()
    front.consumer.ended()
    grant.held.release()
    assert len(exchange.answers) == 1
    assert front.audit.refusals == [(STRANGER, "inference", "unauthenticated", "")]


def test_without_an_audit_log_refusals_are_answered_all_the_same() -> None:
    front = Front(grant_of(refusal=WRONG))
    front._application = Authenticated(front, front, 1 << 20)  # type: ignore[arg-type]
    assert front.ask(b"GET", b"/v2").answers == [401]
    assert front.audit.refusals == []


# Models in messages.


class ManyModels:
    """As much of an inference service as is asked of it here."""

    control_token = ""

    def declared_inputs(self, model: str, version: str) -> tuple[Any, int]:
        return (), 0

    def infer(self, request: InferRequest) -> None:
        pass


def guarded(audit: Counted, grant: Grant) -> GuardedService:
    application = ProtocolApplication(ManyModels(), 1 << 20, audit=audit)  # type: ignore[arg-type]
    return cast("GuardedService", application._of_grant(grant)._service)


def request_for(model: str, exchange: Any) -> Any:
    plan = SimpleNamespace(model_name=model, priority=0)
    return SimpleNamespace(plan=plan, exchange_of=lambda: exchange)


def test_a_model_that_the_caller_may_not_use_is_counted() -> None:
    audit, grant = Counted(), grant_of(ROBOTS)
    service = guarded(audit, grant)
    exchange = FakeExchange(Head(b"POST", b"/v2/models/tracker/infer", ()))
    service.infer(request_for("detector", exchange))
    assert service.declared_inputs("detector", "") == ((), 0)
    assert audit.refusals == []
    with pytest.raises(IsochroneError):
        service.infer(request_for("tracker", exchange))
    assert audit.refusals.pop() == (ROBOT, "inference", "permission_denied", "")
    with pytest.raises(IsochroneError):
        service.declared_inputs("tracker", "")
    assert audit.refusals.pop() == (ROBOT._replace(address=""), "inference", "permission_denied", "")


def test_a_list_that_leaves_models_out_refuses_nobody() -> None:
    audit, grant = Counted(), grant_of(ROBOTS)
    service = guarded(audit, grant).uncounted
    with pytest.raises(IsochroneError):
        service.declared_inputs("tracker", "")
    assert service.declared_inputs("detector", "") == ((), 0)
    assert audit.refusals == []
