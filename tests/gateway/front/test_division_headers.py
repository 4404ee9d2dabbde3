"""The division of a request on its way to the worker: over HTTP/1.1, shared HTTP/2, gRPC and gRPC streams; and in the
explanation, by figures that the worker's answers bring."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, cast

import pytest
from offline import Caller, add_members, only_request
from tritonclient.grpc import service_pb2

from isochrone.clock import MILLISECOND
from isochrone.gateway.caller_requests import UpstreamAttempt
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic import divisions as reasons
from isochrone.gateway.traffic.divisions import DivisionRules
from isochrone.protocol.headers.divisions import DIVISION_HEADER, DIVISION_KINDS, division_metric
from isochrone.protocol.headers.orca import ORCA_BINARY_HEADER, ORCA_HEADER, orca_binary, orca_text
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head, Header, Headers
from isochrone.wire.http2.hpack import Decoder

SERVES = {"m": {"1": ""}}
RULES = GatewayRules(models={"m": ModelRules(division=DivisionRules(("edge", "split", "core")))})
EXPLAIN = (b"x-isochrone-explain", b"1")
ANSWER = b'{"model_name":"m","outputs":[]}'


class Connections:
    """The worker's side: keeps the division of each request that is sent to it."""

    is_crowded = is_congested = local_done = False
    unsent = 0

    def __init__(self) -> None:
        self.divisions: list[bytes | None] = []
        self.fields: dict[bytes, bytes] = {}

    def send(self, head: bytes, body: Any, receiver: Any) -> Connections:
        lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:] if line]
        return self._take(tuple((name, value) for name, _, value in lines))

    def open_whole(self, block: bytes, body: Any, receiver: Any) -> Connections:
        return self._take(tuple(Decoder(4096).decode(block)))

    def open_stream(self, block: bytes, body: Any, receiver: Any, *, end: bool = True) -> Connections:
        return self._take(tuple(Decoder(4096).decode(block)))

    def _take(self, fields: Headers) -> Connections:
        named = [value for name, value in fields if name == DIVISION_HEADER]
        assert len(named) <= 1, "the worker would have to choose"
        self.divisions.append(named[0] if named else None)
        self.fields = dict(fields)
        return self

    def send_data(self, data: bytes, end: bool = False) -> None: ...

    def release(self, sent: Any) -> None: ...

    def cancel(self) -> None: ...


class GrpcCaller(Caller):
    """The caller of a unary call or of a stream."""

    local_done = False
    on_writable: Any = None
    trailers: Headers = ()

    def respond_unary(self, head: bytes, body: Any, size: int, trailers: bytes) -> None:
        self.trailers = tuple(Decoder(4096).decode(trailers))

    def hold_window(self) -> None: ...

    def release_window(self) -> None: ...


class Bench:
    """A gateway in front of one worker that serves a divided model."""

    def __init__(self, rules: GatewayRules = RULES) -> None:
        self.gateway = Gateway(rules, WireLimits(), seed=1)
        add_members(self.gateway.fleet, SERVES)
        self.worker = Connections()
        self.gateway.fleet.members["a:1"].connections = self.worker  # type: ignore[assignment]
        self.replica = self.gateway.fleet.model("m").current.replicas["a:1"]
        self.application = GatewayApplication(self.gateway)

    def ask(self, *fields: Header, timeout_ms: int = 0) -> tuple[Caller, UpstreamAttempt]:
        """Over HTTP, a moment after the last report."""
        timeout = ((b"x-request-timeout-ms", b"%d" % timeout_ms),) if timeout_ms else ()
        head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), *timeout, *fields))
        return self._handle(head, Caller(head, b'{"inputs":[]}'))

    def call(self, *fields: Header, timeout_ms: int = 0) -> tuple[GrpcCaller, UpstreamAttempt]:
        """Over gRPC."""
        timeout = ((b"grpc-timeout", b"%dm" % timeout_ms),) if timeout_ms else ()
        head = _grpc_head(b"ModelInfer", (*timeout, *fields))
        caller, attempt = self._handle(head, GrpcCaller(head, _framed()))
        return cast(GrpcCaller, caller), attempt

    def stream(self, *fields: Header, timeout_us: int = 0) -> None:
        """A stream whose first message has this parameter."""
        head = _grpc_head(b"ModelStreamInfer", fields)
        caller = GrpcCaller(head)
        request: Any = self.application.route(head).open(cast(Any, caller))
        self.gateway.clock = lambda: self.now
        request.data_received(_framed(timeout_us))
        request.abandoned()

    @property
    def now(self) -> int:
        return self.replica.times_at + MILLISECOND

    def _handle(self, head: Head, caller: Caller) -> tuple[Caller, UpstreamAttempt]:
        if self.replica.times_at:
            caller.arrived = self.now
        self.application.route(head).handle(cast(Any, caller))
        (attempt,) = only_request(self.gateway).attempts
        assert isinstance(attempt, UpstreamAttempt)
        return caller, attempt

    def answer(self, attempt: UpstreamAttempt, *figures_ms: float) -> None:
        """``figures_ms``: the report of edge, split and core, which was asked for."""
        report = ((ORCA_HEADER, orca_text(_figures(figures_ms))),) if figures_ms else ()
        headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER)), *report)
        assert attempt.asks or not figures_ms
        attempt.whole(200, headers, ANSWER, ())

    def answer_call(self, attempt: UpstreamAttempt, *figures_ms: float) -> None:
        trailers: Headers = ((b"grpc-status", b"0"),)
        if figures_ms:
            report = b64encode(orca_binary(_figures(figures_ms))).rstrip(b"=")
            trailers = (*trailers, (ORCA_BINARY_HEADER, report))
        attempt.whole(200, ((b"content-type", b"application/grpc"),), b"\0\0\0\0\0", trailers)

    def learn(self, *figures_ms: float) -> None:
        """A first request, which the worker decides about, brings its figures."""
        _, attempt = self.ask()
        self.answer(attempt, *figures_ms)
        self.worker.divisions.clear()


def _figures(figures_ms: tuple[float, ...]) -> dict[str, float]:
    figures = zip(DIVISION_KINDS, figures_ms, strict=True)
    return {"named_metrics.in_flight": 1.0, **{division_metric(kind): ms * 1000 for kind, ms in figures if ms}}


def _grpc_head(method: bytes, fields: Headers) -> Head:
    head = Head(
        b"POST", b"/inference.GRPCInferenceService/" + method, ((b"content-type", b"application/grpc"), *fields)
    )
    head.is_http2 = head.is_grpc = True
    return head


def _framed(timeout_us: int = 0) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m")
    if timeout_us:
        message.parameters["timeout"].int64_param = timeout_us
    payload = bytes(message.SerializeToString())
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def division_in(headers: Headers) -> Any:
    return json.loads(dict(headers)[b"x-isochrone-placement"])["division"]


def test_figures_of_one_answer_decide_about_the_next_request() -> None:
    bench = Bench()
    _, attempt = bench.ask(timeout_ms=60)
    assert bench.worker.divisions == [None], "nothing is known: the worker decides"
    bench.answer(attempt, 50, 20, 200)
    for timeout_ms, sent in ((60, b"prefer edge"), (30, b"prefer split"), (0, b"prefer edge")):
        _, attempt = bench.ask(timeout_ms=timeout_ms)
        assert bench.worker.divisions[-1] == sent
        bench.answer(attempt)


def test_memoised_heads_have_the_division_of_each_request() -> None:
    """The same head, and the same time, with other figures each time."""
    bench = Bench()
    bench.learn(50, 20, 200)
    for figures, sent in (
        ((50, 20, 200), b"prefer edge"),
        ((90, 20, 200), b"prefer split"),
        ((90, 80, 20), b"prefer core"),
    ):
        bench.replica.reported(
            bench.replica.report._replace(divisions=tuple(ms * MILLISECOND for ms in figures)), bench.now
        )
        _, attempt = bench.ask(timeout_ms=60)
        assert bench.worker.divisions[-1] == sent
        bench.answer(attempt)


def test_over_shared_connections() -> None:
    bench = Bench()
    bench.learn(50, 20, 200)
    bench.replica.endpoint.reports = bench.worker.is_crowded = True
    _, attempt = bench.ask(timeout_ms=30)
    assert attempt.shared
    assert bench.worker.divisions == [b"prefer split"]
    assert b"x-request-timeout-ms" in bench.worker.fields


@pytest.mark.interpreted
def test_over_grpc() -> None:
    bench = Bench()
    _, attempt = bench.call(timeout_ms=60)
    bench.answer_call(attempt, 50, 20, 200)
    caller, attempt = bench.call(EXPLAIN, timeout_ms=30)
    assert bench.worker.divisions == [None, b"prefer split"]
    bench.answer_call(attempt)
    assert division_in(caller.trailers) == {
        "chosen": "split",
        "reason": reasons.IN_TIME,
        "time_left_ms": 30.0,
        "expected_ms": {"edge": 50.0, "split": 20.0, "core": 200.0},
    }


@pytest.mark.interpreted
def test_a_stream_is_sent_with_the_division_of_its_first_message() -> None:
    bench = Bench()
    bench.learn(50, 20, 200)
    bench.stream(timeout_us=30_000)
    bench.stream()
    assert bench.worker.divisions == [b"prefer split", b"prefer edge"]
    bench.stream((DIVISION_HEADER, b"prefer core"), timeout_us=30_000)
    assert bench.worker.divisions[-1] == b"prefer core"


@pytest.mark.parametrize("named", [b"prefer core", b"cut-12", b"nonsense"])
def test_the_callers_own_division_passes_and_wins(named: bytes) -> None:
    bench = Bench()
    bench.learn(5, 20, 200)
    caller, attempt = bench.ask((DIVISION_HEADER, named), EXPLAIN, timeout_ms=60)
    bench.answer(attempt)
    assert bench.worker.divisions == [named]
    assert division_in(caller.headers) == {
        "chosen": named.decode(),
        "reason": reasons.NAMED,
        "time_left_ms": 60.0,
        "expected_ms": {},
    }


@pytest.mark.interpreted
def test_the_callers_own_division_passes_over_grpc() -> None:
    bench = Bench()
    bench.learn(5, 20, 200)
    bench.call((DIVISION_HEADER, b"cut-12"), timeout_ms=60)
    assert bench.worker.divisions == [b"cut-12"]


def test_a_model_without_the_rule_gets_no_header_and_passes_the_callers() -> None:
    bench = Bench(GatewayRules())
    bench.learn(5, 20, 200)
    caller, attempt = bench.ask(EXPLAIN, timeout_ms=60)
    bench.answer(attempt)
    assert "division" not in json.loads(dict(caller.headers)[b"x-isochrone-placement"])
    _, attempt = bench.ask((DIVISION_HEADER, b"core"))
    assert bench.worker.divisions == [None, b"core"]


def test_the_explanation_over_http() -> None:
    bench = Bench()
    caller, attempt = bench.ask(EXPLAIN)
    bench.answer(attempt, 50, 0, 20)
    assert division_in(caller.headers) == {
        "chosen": None,
        "reason": reasons.NO_FIGURES,
        "time_left_ms": None,
        "expected_ms": {},
    }
    caller, attempt = bench.ask(EXPLAIN, timeout_ms=30)
    bench.answer(attempt)
    assert division_in(caller.headers) == {
        "chosen": "core",
        "reason": reasons.IN_TIME,
        "time_left_ms": 30.0,
        "expected_ms": {"edge": 50.0, "core": 20.0},
    }
    assert bench.worker.divisions == [None, b"prefer core"]
