"""Limits of picks: memory for what is kept of bodies, the time that a body may take, and faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from envoy_calls import EnvoyCall, RunningPicker, body_message, destination, headers_message, picker, response_message
from isochrone.clock import SECOND
from isochrone.errors import DeadlineExceeded
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.picker.body_times import BodyTimeout, BodyTimes
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.wire.http2.server import Http2ServerConnection
from isochrone.wire.progress import BODY_PROGRESS

STREAMED, BUFFERED, DUPLEX = 1, 2, 4
_GRPC = {"content-type": "application/grpc", "te": "trailers"}
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_MIB = 1 << 20


def _until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def _message(raw: bytes = b"") -> bytes:
    data = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[raw]).SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + bytes(data)


# Memory.


def test_messages_that_are_not_whole_are_within_the_budget() -> None:
    """Of decided calls, too: a message is stamped when it is whole."""
    size = 200_000
    message = _message(b"x" * 2 * size)
    with (
        picker(max_body_bytes=_MIB, max_buffered_bytes=2 * _MIB) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        calls: list[EnvoyCall] = []
        while True:
            call = EnvoyCall(channel)
            calls.append(call)
            call.send(headers_message(_STREAM_INFER, headers=_GRPC, mode=DUPLEX))
            call.send(body_message(_message(), ends=False))
            assert destination(call.receive())
            assert call.receive().WhichOneof("response") == "request_body"
            call.send(body_message(message[:size], ends=False))
            # Nothing is said of a part of a message, unless there is no memory for it.
            _until(partial(_has_come, running, len(calls) * (size - 16_384)))
            if _is_rejecting(running):
                break
            assert len(calls) <= 10
        refusal = calls.pop().receive().immediate_response
        assert refusal.grpc_status.status == grpc.StatusCode.UNAVAILABLE.value[0]
        assert len(calls) > 2
        # The others go on, and hand back what they have when it is whole.
        first, *others = calls
        for call in others:
            call.cancel()
        _until(lambda: running.buffered() <= size + 32_768)
        first.send(body_message(message[size:], ends=False))
        back = b""
        while len(back) < len(message):
            back += first.receive().request_body.response.body_mutation.streamed_response.body
        assert service_pb2.ModelInferRequest.FromString(back[5:]).raw_input_contents[0] == b"x" * 2 * size
        _until(lambda: running.buffered() == 0)
        first.cancel()
        _until(running.is_idle)


def _has_come(running: RunningPicker, least: int) -> bool:
    return running.buffered() >= least or _is_rejecting(running)


def _is_rejecting(running: RunningPicker) -> bool:
    return bool(running.do(lambda gateway: running.server._listeners.snapshot().rejected))


@pytest.mark.parametrize("headers", [{}, _GRPC], ids=["http", "grpc"])
def test_a_body_without_memory_is_answered_to_the_client(headers: dict[str, str]) -> None:
    """A call that failed would be one that Envoy goes on without, if it is told to."""
    with (
        picker(max_body_bytes=_MIB, max_buffered_bytes=2 * _MIB) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        first = EnvoyCall(channel)
        path = _STREAM_INFER if headers else "/v2/models/m/infer"
        body = b"\0" + (_MIB - 100).to_bytes(4, "big") + b"x" * 900_000
        first.send(headers_message(path, headers=headers, mode=DUPLEX))
        first.send(body_message(body, ends=False))
        # One copy of it.
        _until(lambda: running.buffered() >= 900_000 - 16_384)
        assert running.buffered() < 1_000_000
        second = EnvoyCall(channel)
        second.send(headers_message(path, headers=headers, mode=DUPLEX))
        second.send(body_message(body, ends=False))
        refusal = second.receive().immediate_response
        assert refusal.status.code == 503
        assert refusal.grpc_status.status == (14 if headers else 0)
        assert second.status() is grpc.StatusCode.OK
        # Headers that nobody could read are a request all the same.
        third = EnvoyCall(channel)
        refusal = third.ask(headers_message(headers={"x-long": "x" * 300_000})).immediate_response
        assert refusal.status.code == 503
        assert third.status() is grpc.StatusCode.OK
        first.cancel()
        _until(lambda: running.buffered() == 0)


def test_a_message_over_the_limit_is_answered_to_the_client() -> None:
    with picker() as running, grpc.insecure_channel(running.address) as channel:
        for mode in (STREAMED, BUFFERED, DUPLEX):
            call = EnvoyCall(channel)
            call.send(headers_message(mode=mode))
            call.send(body_message(b"x" * (3 << 20), ends=True))
            if mode != DUPLEX:
                call.receive()
            assert call.receive().immediate_response.status.code == 413
            assert call.status() is grpc.StatusCode.OK
        _until(running.is_idle)


@pytest.mark.interpreted
def test_a_fault_is_answered_to_the_client_while_envoy_can() -> None:
    def fault(request: object) -> None:
        raise RuntimeError("a fault")

    def break_it(gateway: Gateway) -> None:
        vars(gateway)["arrive"] = fault

    with picker() as running, grpc.insecure_channel(running.address) as channel:
        before = EnvoyCall(channel)
        assert destination(before.ask(headers_message()))
        running.do(break_it)
        call = EnvoyCall(channel)
        assert call.ask(headers_message()).immediate_response.status.code == 500
        assert call.status() is grpc.StatusCode.OK
        assert before.ask(response_message()).WhichOneof("response") == "response_headers"
        # After the response has begun, nobody but Envoy can be told.
        late = EnvoyCall(channel)
        late.send(headers_message("/v2", mode=STREAMED, response_mode=STREAMED))
        late.send(response_message())
        late.send(body_message(b"x" * (3 << 20), ends=True, response=True))
        assert late.status() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_without_memory_for_answers_undecided_calls_are_refused() -> None:
    def shed(gateway: Gateway) -> None:
        (listener, *_) = running.server._listeners._listeners
        for connection in listener.connections:
            assert isinstance(connection, Http2ServerConnection)
            for stream in list(connection.streams.values()):
                assert stream.consumer is not None
                stream.consumer.shed()

    with picker() as running, grpc.insecure_channel(running.address) as channel:
        decided, undecided = EnvoyCall(channel), EnvoyCall(channel)
        assert destination(decided.ask(headers_message()))
        undecided.ask(headers_message(mode=BUFFERED))
        running.do(shed)
        assert undecided.receive().immediate_response.status.code == 503
        assert undecided.status() is grpc.StatusCode.OK
        assert decided.ask(response_message()).WhichOneof("response") == "response_headers"
        _until(running.is_idle)


# Time.


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_a_deadline_ends_the_wait_for_a_body(mode: int) -> None:
    with picker() as running, grpc.insecure_channel(running.address) as channel:
        for headers in ({"x-request-timeout-ms": "5"}, {**_GRPC, "grpc-timeout": "5m"}):
            call = EnvoyCall(channel)
            path = _STREAM_INFER if "te" in headers else "/v2/models/m/infer"
            call.send(headers_message(path, headers=headers, mode=mode))
            if mode == DUPLEX:
                call.send(body_message(b"\0\0\0\0", ends=False))
            else:
                call.receive()
            _check_late(call.receive().immediate_response, "te" in headers)
            assert call.status() is grpc.StatusCode.OK
        nonsense = EnvoyCall(channel)
        refusal = nonsense.ask(headers_message(headers={"x-request-timeout-ms": "soon"}, mode=mode))
        assert refusal.immediate_response.status.code == 400
        _until(running.is_idle)


def _check_late(refusal: Any, is_grpc: bool) -> None:
    reasons = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
    assert reasons["x-llm-d-request-dropped-reason"] == b"rejected-ttl-expired"
    assert refusal.status.code == 504
    assert refusal.grpc_status.status == (4 if is_grpc else 0)


def test_the_deadline_of_a_models_rules_ends_the_wait_for_a_body() -> None:
    rules = GatewayRules(defaults=ModelRules(deadline_ns=SECOND // 200))
    with picker(rules) as running, grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        call.send(headers_message(mode=DUPLEX))
        _check_late(call.receive().immediate_response, False)


def test_a_body_that_makes_no_progress_is_answered_408() -> None:
    with picker(body_timeout=0.005) as running, grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        call.send(headers_message(mode=DUPLEX))
        call.send(body_message(b"{", ends=False))
        refusal = call.receive().immediate_response
        assert refusal.status.code == 408
        assert "body_timeout" in json.loads(refusal.body)["error"]
        assert call.status() is grpc.StatusCode.OK


@given(
    st.integers(0, 5 * SECOND),
    st.floats(0.1, 2.0),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(0, 3 * BODY_PROGRESS)), max_size=20),
)
def test_a_wait_ends_at_the_deadline_or_without_progress(
    timeout: int, body_timeout: float, steps: list[tuple[int, int]]
) -> None:
    arrived = now = 10 * SECOND
    times = BodyTimes(arrived, timeout, body_timeout)
    received = counted = 0
    progress_by = arrived + int(body_timeout * SECOND)
    for passed, came in steps:
        now, received = now + passed, received + came
        if timeout and now >= arrived + timeout:
            with pytest.raises(DeadlineExceeded):
                times.check(now, received)
            return
        if now >= progress_by:
            if received - counted < BODY_PROGRESS:
                with pytest.raises(BodyTimeout):
                    times.check(now, received)
                return
            counted, progress_by = received, now + int(body_timeout * SECOND)
        times.check(now, received)
        # A look at that time is never in vain, and never too late.
        assert now < times.due == min(progress_by, arrived + timeout if timeout else progress_by)
