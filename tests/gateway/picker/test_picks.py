"""Picks over a real socket, with grpcio in Envoy's place."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from envoy_calls import (
    EnvoyCall,
    RunningPicker,
    body_message,
    destination,
    headers_message,
    picker,
    response_message,
    set_headers,
    trailers_message,
)
from ext_proc_messages import ProcessingRequest
from isochrone.clock import SECOND
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.resilience.hedging import HedgeRules
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.divisions import DivisionRules
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.gateway.traffic.shadow import ShadowRules
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.connect import connect_http2
from isochrone.wire.http2.client import request_block
from isochrone.wire.receiver import Gathering

NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)
WORKERS = {"10.0.0.1:8000", "10.0.0.2:8000"}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningPicker]:
    with picker() as made:
        yield made


@pytest.fixture
def channel(running: RunningPicker) -> Iterator[grpc.Channel]:
    """Every test leaves nothing in flight."""
    with grpc.insecure_channel(running.address) as made:
        yield made
    _until(running.is_idle)


def _until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def _framed(message: Any) -> bytes:
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + bytes(data)


def _infer(model: str = "m", *, raw: bytes = b"", **fields: Any) -> bytes:
    return _framed(service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[raw], **fields))


_GRPC = {"content-type": "application/grpc", "te": "trailers"}
_INFER = "/inference.GRPCInferenceService/ModelInfer"


# Decisions.


def test_a_pick_names_a_worker_and_pins_the_version(running: RunningPicker, channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    decision = call.ask(headers_message("/v2/models/m/infer?a=b"))
    assert destination(decision) in WORKERS
    common = decision.request_headers.response
    assert common.clear_route_cache
    assert set_headers(common)[":path"] == "/v2/models/m/versions/3/infer?a=b"
    assert running.in_flight()[destination(decision)] == 1
    reply = call.ask(response_message(200))
    assert reply.WhichOneof("response") == "response_headers"
    assert call.status() is grpc.StatusCode.OK
    assert running.in_flight()[destination(decision)] == 0


def test_a_version_that_the_caller_names_stays(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    common = call.ask(headers_message("/v2/models/m/versions/7/infer")).request_headers.response
    assert ":path" not in set_headers(common)
    call.cancel()


def test_work_in_flight_is_spread() -> None:
    # By a policy that counts requests alone: the default one also weighs how old its knowledge of a worker is.
    counting = GatewayRules(defaults=ModelRules(policy="least_connections"))
    with picker(counting) as running, grpc.insecure_channel(running.address) as channel:
        calls = [EnvoyCall(channel) for _ in range(8)]
        for call in calls:
            call.ask(headers_message())
        assert sorted(running.in_flight().values()) == [4, 4]
        for call in calls[:4]:
            call.cancel()
        for call in calls[4:]:
            call.end()
        _until(running.is_idle)


def test_what_a_client_forges_does_not_survive(channel: grpc.Channel) -> None:
    forged = {
        "x-gateway-destination-endpoint": "6.6.6.6:66",
        "x-isochrone-stages": "a=1",
        "x-isochrone-epoch": "current",
        "x-isochrone-explain": "1",
    }
    call = EnvoyCall(channel)
    decision = call.ask(headers_message(headers=forged))
    assert destination(decision) in WORKERS
    removed = set(decision.request_headers.response.header_mutation.remove_headers)
    assert removed == {"x-isochrone-stages", "x-isochrone-epoch", "x-isochrone-explain"}
    answered = set_headers(call.ask(response_message()).response_headers.response)
    assert json.loads(answered["x-isochrone-placement"])["worker"] == destination(decision)
    assert answered["x-isochrone-epoch"] == "0"


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2", "/v1/models"])
def test_calls_without_a_model_go_to_any_worker(channel: grpc.Channel, path: str) -> None:
    call = EnvoyCall(channel)
    assert destination(call.ask(headers_message(path, method="GET", ends=True))) in WORKERS
    # Nothing of the response matters: Envoy goes on alone.
    assert call.status() is grpc.StatusCode.OK


def test_calls_without_a_model_are_spread_over_idle_workers(channel: grpc.Channel) -> None:
    named = []
    for _ in range(6):
        call = EnvoyCall(channel)
        named.append(destination(call.ask(headers_message("/v2/health/ready", method="GET", ends=True))))
        assert call.status() is grpc.StatusCode.OK
    assert {name: named.count(name) for name in named} == dict.fromkeys(WORKERS, 3)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v2/repository/models/m/load", "POST", 501),
        ("/v2/models/m/trace/setting", "GET", 501),
        ("/v2/models/stats", "GET", 501),
        ("/nowhere", "GET", 404),
        ("/v2/models/m/infer", "GET", 405),
        ("/v2/models/%ff/infer", "POST", 400),
    ],
)
def test_what_no_worker_can_answer_alone_is_rejected(
    channel: grpc.Channel, path: str, method: str, status: int
) -> None:
    call = EnvoyCall(channel)
    refusal = call.ask(headers_message(path, method=method)).immediate_response
    assert refusal.status.code == status
    assert json.loads(refusal.body)["error"]
    assert call.status() is grpc.StatusCode.OK


# Deadlines, quotas, subsets.


def test_the_time_left_is_passed_on(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    given = headers_message(headers={"x-request-timeout-ms": "20000"})
    left = float(set_headers(call.ask(given).request_headers.response)["x-request-timeout-ms"])
    assert 0 < left < 20_000
    call.cancel()


def test_a_deadline_that_no_worker_meets_is_rejected_before_envoy_forwards(
    running: RunningPicker, channel: grpc.Channel
) -> None:
    def load(gateway: Gateway) -> None:
        now = gateway.clock()
        served = gateway.fleet.model("n")
        for replica in served.current.replicas.values():
            # Reported for the future, so that no pause of this machine makes it old.
            replica.reported(LoadReport(9, 9, 60 * SECOND, SECOND), now)
            replica.reported_at = now + 50 * SECOND

    running.do(load)
    call = EnvoyCall(channel)
    refusal = call.ask(headers_message("/v2/models/n/infer", headers={"x-request-timeout-ms": "500"}))
    refusal = refusal.immediate_response
    assert refusal.status.code == 504
    assert b"no worker can meet the deadline" in refusal.body
    reasons = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
    assert reasons["x-llm-d-request-dropped-reason"] == b"rejected-ttl-expired"
    assert reasons["content-type"] == b"application/json"
    assert running.is_idle()
    late = EnvoyCall(channel)
    sent = headers_message(_INFER, headers={**_GRPC, "grpc-timeout": "500m"}, mode=BUFFERED)
    late.ask(sent)
    refusal = late.ask(body_message(_infer("n"), ends=True)).immediate_response
    assert (refusal.grpc_status.status, refusal.body[:17]) == (4, b"Deadline Exceeded")


def test_envoy_adds_the_division_of_a_divided_model() -> None:
    rules = GatewayRules(models={"m": ModelRules(division=DivisionRules(("edge", "core")))})

    def report(gateway: Gateway) -> None:
        now = gateway.clock()
        for replica in gateway.fleet.model("m").current.replicas.values():
            replica.reported(LoadReport(1, 0, divisions=(60 * SECOND, 0, SECOND)), now)
            # For the future, so that no pause of this machine makes it old.
            replica.times_at = now + 50 * SECOND

    with picker(rules) as made, grpc.insecure_channel(made.address) as channel:
        made.do(report)
        for given, sent in (
            ({}, "prefer edge"),
            ({"x-request-timeout-ms": "30000", "x-isochrone-explain": "1"}, "prefer core"),
            ({"x-isochrone-division": "cut-2"}, None),
        ):
            call = EnvoyCall(channel)
            common = call.ask(headers_message(headers=given)).request_headers.response
            assert set_headers(common).get("x-isochrone-division") == sent
            assert "x-isochrone-division" not in common.header_mutation.remove_headers
            answered = set_headers(call.ask(response_message()).response_headers.response)
            if "x-isochrone-explain" in given:
                assert json.loads(answered["x-isochrone-placement"])["division"]["chosen"] == "core"
            assert call.status() is grpc.StatusCode.OK


def test_a_deadline_that_passes_is_answered_by_envoy(running: RunningPicker, channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    assert destination(call.ask(headers_message(headers={"x-request-timeout-ms": "1"})))
    refusal = call.receive().immediate_response
    assert refusal.status.code == 504
    assert call.status() is grpc.StatusCode.OK
    assert running.is_idle()


def test_a_deadline_that_makes_no_sense_is_the_clients_mistake(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    assert call.ask(headers_message(headers={"x-request-timeout-ms": "soon"})).immediate_response.status.code == 400


def test_quotas_are_answered_429() -> None:
    rules = GatewayRules(quota=QuotaRules(rate=0.001, burst=1))
    with picker(rules) as running, grpc.insecure_channel(running.address) as channel:
        first = EnvoyCall(channel)
        assert destination(first.ask(headers_message()))
        second = EnvoyCall(channel)
        refusal = second.ask(headers_message()).immediate_response
        assert refusal.status.code == 429
        headers = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
        assert headers["x-llm-d-request-dropped-reason"] == b"rejected-saturated"
        assert int(headers["retry-after"]) > 0
        first.cancel()
        _until(running.is_idle)


@pytest.mark.parametrize("subset", [["10.0.0.2:8000"], "10.0.0.2:8000", " 10.0.0.2:8000 , 10.9.9.9:1"])
def test_a_subset_restricts_the_choice(channel: grpc.Channel, subset: object) -> None:
    for _ in range(5):
        call = EnvoyCall(channel)
        assert destination(call.ask(headers_message(subset=subset))) == "10.0.0.2:8000"
        anybody = EnvoyCall(channel)
        assert destination(anybody.ask(headers_message("/v2", subset=subset))) == "10.0.0.2:8000"
        call.cancel()


@pytest.mark.parametrize("subset", [[], "", ["10.9.9.9:1"], 5.0, ["10.0.0.1"]])
@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2"])
def test_a_subset_without_a_worker_is_answered_503(channel: grpc.Channel, subset: object, path: str) -> None:
    call = EnvoyCall(channel)
    refusal = call.ask(headers_message(path, subset=subset)).immediate_response
    assert refusal.status.code == 503
    headers = {each.header.key: each.header.raw_value for each in refusal.headers.set_headers}
    assert headers["x-llm-d-request-dropped-reason"] == b"rejected-no-endpoints"


def test_a_subset_follows_the_health_of_its_workers() -> None:
    def set_health(gateway: Gateway, healthy: bool) -> None:
        member = gateway.fleet.members["10.0.0.2:8000"]
        member.endpoint.healthy = healthy
        gateway.fleet.health_changed(member)

    with picker() as running, grpc.insecure_channel(running.address) as channel:
        for healthy in (True, False, True):
            running.do(lambda gateway, healthy=healthy: set_health(gateway, healthy))
            call = EnvoyCall(channel)
            answer = call.ask(headers_message(subset="10.0.0.2:8000"))
            assert bool(destination(answer)) is healthy
            call.cancel()
        _until(running.is_idle)


def test_ports_for_grpc_are_named_and_found_in_subsets() -> None:
    workers = (Upstream("10.0.0.1", 8000, 8001), Upstream("::1", 8000, 8001))
    with picker(upstreams=workers) as running, grpc.insecure_channel(running.address) as channel:
        for subset, expected in (("10.0.0.1:8001", "10.0.0.1:8001"), ("[::1]:8001", "[::1]:8001")):
            call = EnvoyCall(channel)
            call.ask(headers_message(_INFER, headers=_GRPC, mode=BUFFERED, subset=subset))
            assert destination(call.ask(body_message(_infer(), ends=True))) == expected
            call.cancel()
        _until(running.is_idle)


# Bodies.


@pytest.mark.parametrize("mode", [NONE, STREAMED, PARTIAL, None])
def test_where_the_body_comes_later_the_headers_decide(channel: grpc.Channel, mode: int | None) -> None:
    call = EnvoyCall(channel)
    assert destination(call.ask(headers_message(mode=mode, response_mode=STREAMED)))
    if mode != NONE:
        for last in (False, True):
            reply = call.ask(body_message(b"x" * 1000, ends=last))
            assert reply.WhichOneof("response") == "request_body"
            assert not reply.request_body.response.HasField("body_mutation")
    call.ask(response_message())
    assert call.ask(body_message(b"{}", ends=True, response=True)).WhichOneof("response") == "response_body"
    call.end()
    assert call.status() is grpc.StatusCode.OK


def test_a_buffered_body_is_answered_with_the_decision(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    first = call.ask(headers_message(mode=BUFFERED))
    assert first.WhichOneof("response") == "request_headers"
    assert not destination(first)
    # What a client forged must not stand until the body comes, which may never happen.
    removed = first.request_headers.response.header_mutation.remove_headers
    assert list(removed) == ["x-gateway-destination-endpoint"]
    decision = call.ask(body_message(b'{"inputs":[]}', ends=True))
    assert destination(decision) in WORKERS
    assert not decision.request_body.response.HasField("body_mutation")
    assert set_headers(decision.request_body.response)[":path"].endswith("/versions/3/infer")
    call.ask(response_message())


def test_a_request_of_headers_and_trailers_is_refused_where_the_body_decides(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    call.ask(headers_message(mode=BUFFERED))
    refusal = call.ask(trailers_message()).immediate_response
    assert refusal.status.code == 400
    assert "no body" in json.loads(refusal.body)["error"]
    assert call.status() is grpc.StatusCode.OK


def test_a_buffered_grpc_message_gets_its_version(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    body = _infer(raw=b"x" * 100)
    call.ask(headers_message(_INFER, headers={**_GRPC, "content-length": str(len(body))}, mode=BUFFERED))
    common = call.ask(body_message(body, ends=True)).request_body.response
    stamped = common.body_mutation.body
    assert int.from_bytes(stamped[1:5], "big") == len(stamped) - 5
    request = service_pb2.ModelInferRequest.FromString(stamped[5:])
    assert (request.model_name, request.model_version, request.raw_input_contents[0]) == ("m", "3", b"x" * 100)
    assert set_headers(common)["content-length"] == str(len(stamped))
    call.cancel()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_full_duplex_hands_every_byte_back(running: RunningPicker, data: st.DataObject) -> None:
    with grpc.insecure_channel(running.address) as channel:
        is_grpc = data.draw(st.booleans())
        raw = b"y" * data.draw(st.integers(0, 150_000))
        body = _infer(raw=raw) if is_grpc else b'{"inputs":[]}' + raw
        headers = _GRPC if is_grpc else {"inference-header-content-length": "13"}
        cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
        pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        with_trailers = data.draw(st.booleans())
        call = EnvoyCall(channel)
        path = _INFER if is_grpc else "/v2/models/m/infer"
        call.send(headers_message(path, headers=headers, mode=DUPLEX, response_mode=DUPLEX))
        for index, piece in enumerate(pieces):
            call.send(body_message(piece, ends=index == len(pieces) - 1 and not with_trailers))
        if with_trailers:
            call.send(trailers_message())
        assert destination(call.receive()) in WORKERS
        received, is_last = b"", False
        while not is_last:
            reply = call.receive()
            if reply.WhichOneof("response") == "request_trailers":
                assert with_trailers
                break
            streamed = reply.request_body.response.body_mutation.streamed_response
            assert len(streamed.body) <= 62_000
            received, is_last = received + streamed.body, streamed.end_of_stream
        if is_grpc:
            assert int.from_bytes(received[1:5], "big") == len(received) - 5
            message = service_pb2.ModelInferRequest.FromString(received[5:])
            assert message.model_version == "3"
            message.ClearField("model_version")
            received = _framed(message)
        assert received == body
        assert is_last is not with_trailers
        call.ask(response_message())
        back = call.ask(body_message(b"z", ends=True, response=True)).response_body.response
        assert back.body_mutation.streamed_response.body == b"z"
        call.end()
        assert call.status() is grpc.StatusCode.OK
    _until(running.is_idle)


def test_every_message_of_a_stream_gets_its_version(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    call.send(headers_message(path, headers=_GRPC, mode=DUPLEX))
    call.send(body_message(_infer(), ends=False))
    assert destination(call.receive())
    for number in range(3):
        if number:
            call.send(body_message(_infer(id=str(number)), ends=False))
        body = call.receive().request_body.response.body_mutation.streamed_response.body
        assert service_pb2.ModelInferRequest.FromString(body[5:]).model_version == "3"
    call.cancel()


def test_openai_calls_are_pinned_by_a_header(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    call.send(headers_message("/v1/chat/completions", mode=DUPLEX))
    call.send(body_message(b'{"model": "m", "messages": []}', ends=True))
    assert set_headers(call.receive().request_headers.response)["x-isochrone-model"] == "m=3"
    call.receive()
    call.cancel()
    by_header = EnvoyCall(channel)
    decision = by_header.ask(headers_message("/v1/completions", headers={"x-isochrone-model": "m"}))
    assert set_headers(decision.request_headers.response)["x-isochrone-model"] == "m=3"
    by_header.cancel()
    nameless = EnvoyCall(channel)
    refusal = nameless.ask(headers_message("/v1/completions")).immediate_response
    assert refusal.status.code == 400
    assert "request_body_mode" in json.loads(refusal.body)["error"]["message"]


def test_requests_of_a_sequence_go_to_one_worker(channel: grpc.Channel) -> None:
    chosen = set()
    for step in range(6):
        call = EnvoyCall(channel)
        parameters = {"sequence_id": 77, "sequence_start": step == 0}
        call.ask(headers_message(mode=BUFFERED))
        body = json.dumps({"inputs": [], "parameters": parameters}).encode()
        chosen.add(destination(call.ask(body_message(body, ends=True))))
    assert len(chosen) == 1


def test_a_body_over_the_limit_is_rejected(channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    call.send(headers_message(mode=DUPLEX))
    for _ in range(3):
        call.send(body_message(b"x" * 600_000, ends=False))
    assert call.receive().immediate_response.status.code == 413
    assert call.status() is grpc.StatusCode.OK


# Responses.


def test_a_load_report_is_asked_for_read_and_hidden(running: RunningPicker, channel: grpc.Channel) -> None:
    running.do(lambda gateway: [setattr(each.endpoint, "asked_at", 0) for each in gateway.fleet.members.values()])
    for _ in range(200):
        call = EnvoyCall(channel)
        decision = call.ask(headers_message())
        if set_headers(decision.request_headers.response).get("endpoint-load-metrics-format") == "text":
            break
        call.ask(response_message())
    report = "TEXT named_metrics.in_flight=41, named_metrics.queue_depth=7"
    reply = call.ask(response_message(headers={"endpoint-load-metrics": report}))
    assert list(reply.response_headers.response.header_mutation.remove_headers) == ["endpoint-load-metrics"]

    def known(gateway: Gateway) -> tuple[int, int]:
        report = gateway.fleet.model("m").current.replicas[destination(decision)].report
        return report.in_flight, report.queue

    assert running.do(known) == (41, 7)


def test_failures_count_against_the_replica(running: RunningPicker, channel: grpc.Channel) -> None:
    def failures(gateway: Gateway) -> int:
        return gateway.fleet.model("m").failures

    before = running.do(failures)
    for status, headers in (
        (500, {"content-type": "application/json"}),
        # Envoy's own words: it could not reach the worker.
        (503, {"content-type": "text/plain", "server": "envoy"}),
    ):
        call = EnvoyCall(channel)
        call.ask(headers_message())
        call.ask(response_message(status, headers=headers))
        assert call.status() is grpc.StatusCode.OK
        # It is not sent again: nobody but Envoy could.
        assert call.left == []
    assert running.do(failures) == before + 2
    for status in (200, 400, 429, 503):
        call = EnvoyCall(channel)
        call.ask(headers_message())
        call.ask(response_message(status, headers={"content-type": "application/json"}))
    call = EnvoyCall(channel)
    call.ask(headers_message())
    # A worker's: Envoy knows how long it took.
    call.ask(response_message(503, headers={"content-type": "text/plain", "x-envoy-upstream-service-time": "3"}))
    assert running.do(failures) == before + 2


def test_nothing_is_hedged_or_copied() -> None:
    rules = GatewayRules(
        defaults=ModelRules(hedge=HedgeRules(enabled=True), shadow=ShadowRules(share=1.0, model="n", version="1"))
    )

    def hedge_at_once(gateway: Gateway) -> None:
        gateway.fleet.model("m").hedge_delay_ns = 1

    with picker(rules) as running, grpc.insecure_channel(running.address) as channel:
        running.do(hedge_at_once)
        call = EnvoyCall(channel)
        assert destination(call.ask(headers_message()))
        # A hedge would be due by now.
        running.do(lambda gateway: gateway.sweep(gateway.clock() + SECOND))
        assert sum(running.in_flight().values()) == 1
        call.ask(response_message())
        assert call.status() is grpc.StatusCode.OK
        assert call.left == []
        assert running.do(lambda gateway: gateway.fleet.model("m").hedges) == 0


def test_grpc_statuses_are_read_from_trailers(running: RunningPicker, channel: grpc.Channel) -> None:
    def failures(gateway: Gateway) -> int:
        return gateway.fleet.model("m").failures

    before = running.do(failures)
    # The first trailers tell the picker that it sees them.
    for status, expected in (("0", 0), ("13", 1), ("0", 1)):
        call = EnvoyCall(channel)
        call.ask(headers_message(_INFER, headers=_GRPC, mode=BUFFERED))
        call.ask(body_message(_infer(), ends=True))
        call.ask(response_message(headers={"content-type": "application/grpc"}))
        reply = call.ask(trailers_message({"grpc-status": status}, response=True))
        assert reply.WhichOneof("response") == "response_trailers"
        assert call.status() is grpc.StatusCode.OK
        assert running.do(failures) == before + expected


def test_what_one_envoy_sends_says_nothing_of_another() -> None:
    """One is told to send trailers, the other is not: its responses are over with their headers."""
    alone = (("grpc.use_local_subchannel_pool", 1),)
    with (
        picker() as running,
        grpc.insecure_channel(running.address, alone) as telling,
        grpc.insecure_channel(running.address, alone) as silent,
    ):
        for channel, has_trailers in ((telling, True), (silent, False), (telling, True)):
            call = EnvoyCall(channel)
            call.ask(headers_message(_INFER, headers=_GRPC, mode=BUFFERED))
            call.ask(body_message(_infer(), ends=True))
            call.ask(response_message(headers={"content-type": "application/grpc"}))
            if has_trailers:
                call.ask(trailers_message({"grpc-status": "0"}, response=True))
            assert running.is_idle()
            call.cancel()


def test_a_stream_is_in_flight_until_envoy_ends_it(running: RunningPicker, channel: grpc.Channel) -> None:
    call = EnvoyCall(channel)
    chosen = destination(call.ask(headers_message("/v2/models/m/generate_stream")))
    call.ask(response_message())
    assert running.in_flight()[chosen] == 1
    call.end()
    assert call.status() is grpc.StatusCode.OK
    assert running.is_idle()


# Versions.


def test_a_strict_switch_holds_picks_until_it_is_over() -> None:
    def commit(gateway: Gateway, epoch: int, version: str) -> None:
        gateway.fleet.commit(epoch, {"m": Commitment(epoch, version, {version: ""})})

    with picker(serves={"m": {"1": "", "2": ""}}) as running, grpc.insecure_channel(running.address) as channel:
        running.do(lambda gateway: gateway.fleet.lead())
        unknown = EnvoyCall(channel)
        assert unknown.ask(headers_message()).immediate_response.status.code in (404, 503)
        running.do(lambda gateway: commit(gateway, 1, "1"))
        first = EnvoyCall(channel)
        assert "/versions/1/" in set_headers(first.ask(headers_message()).request_headers.response)[":path"]
        running.do(lambda gateway: gateway.fleet.hold(["m"]))
        held = EnvoyCall(channel)
        held.send(headers_message(mode=STREAMED))
        held.send(body_message(b"{}", ends=True))
        gone = EnvoyCall(channel)
        gone.send(headers_message())
        _until(lambda: running.do(lambda gateway: gateway.machine.held) == 2)
        gone.cancel()
        _until(lambda: running.do(lambda gateway: gateway.machine.held) == 1)
        running.do(lambda gateway: commit(gateway, 2, "2"))
        running.do(lambda gateway: gateway.release())
        assert "/versions/2/" in set_headers(held.receive().request_headers.response)[":path"]
        assert held.receive().WhichOneof("response") == "request_body"
        # gRPC without its message cannot be pinned, and any other version would be wrong.
        unpinned = EnvoyCall(channel)
        refusal = unpinned.ask(headers_message(_INFER, headers={**_GRPC, "x-isochrone-model": "m"}))
        assert refusal.immediate_response.grpc_status.status == 3
        for call in (first, held):
            call.cancel()
        _until(running.is_idle)


# Nonsense.


def _nonsense() -> list[tuple[str, list[Any], grpc.StatusCode]]:
    observed = headers_message()
    observed.observability_mode = True
    pathless = ProcessingRequest()
    pathless.request_headers.SetInParent()
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    return [
        ("no protobuf", [b"\xff\xff\xff"], invalid),
        ("cut off", [headers_message().SerializeToString()[:-3]], invalid),
        ("empty", [ProcessingRequest()], invalid),
        ("a response first", [response_message()], invalid),
        ("a body first", [body_message(b"", ends=True)], invalid),
        ("headers twice", [headers_message(), headers_message()], invalid),
        ("a body in mode NONE", [headers_message(), body_message(b"x", ends=True)], invalid),
        ("a body after the end", [headers_message(mode=1, ends=True), body_message(b"x", ends=True)], invalid),
        (
            "trailers twice",
            [headers_message(mode=1), trailers_message(), trailers_message()],
            invalid,
        ),
        ("no path", [pathless], invalid),
        ("an unknown mode", [headers_message(mode=5)], grpc.StatusCode.UNIMPLEMENTED),
        ("observed only", [observed], grpc.StatusCode.UNIMPLEMENTED),
        ("too large", [b"\x22" + b"\xff" * 4 + b"\x0f" + b"x" * (3 << 20)], grpc.StatusCode.RESOURCE_EXHAUSTED),
    ]


@pytest.mark.parametrize(
    ("messages", "status"), [case[1:] for case in _nonsense()], ids=[case[0] for case in _nonsense()]
)
def test_nonsense_ends_one_call_and_no_other(
    channel: grpc.Channel, messages: list[Any], status: grpc.StatusCode
) -> None:
    other = EnvoyCall(channel)
    assert destination(other.ask(headers_message()))
    call = EnvoyCall(channel)
    for message in messages:
        call.send(message)
    assert call.status() is status
    assert call.details()
    assert other.ask(response_message()).WhichOneof("response") == "response_headers"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from([NONE, STREAMED, BUFFERED, DUPLEX, None]))
def test_any_order_of_messages_leaves_nothing_in_flight(
    running: RunningPicker, order: list[int], mode: int | None
) -> None:
    parts = [
        headers_message(mode=mode),
        body_message(b'{"inputs":[]}', ends=False),
        body_message(b"", ends=True),
        trailers_message(),
        response_message(),
        response_message(503, ends=True),
        body_message(b"x", ends=False, response=True),
        body_message(b"", ends=True, response=True),
        trailers_message({"grpc-status": "0"}, response=True),
        headers_message("/v2/models/m/generate_stream", mode=mode, headers={"x-request-timeout-ms": "9000"}),
    ]
    with grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        for index in order:
            call.send(parts[index])
        call.end()
        assert call.status() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    _until(running.is_idle)


def test_clients_that_give_up_at_once_cost_the_others_nothing(running: RunningPicker) -> None:
    """Every one of them is a reset on the connection that all clients of an Envoy share."""

    async def give_up() -> bytes:
        limits = WireLimits(max_control_frames_per_second=1_000_000)
        connection = await connect_http2("127.0.0.1", int(running.address.rpartition(":")[2]), limits=limits)
        fields = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
        path = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        block = request_block(b"POST", b"http", b"x", path, fields)
        message = headers_message().SerializeToString()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        for _ in range(500):
            streams = [connection.open(block, [framed], Gathering(connection.loop, 1), end=False) for _ in range(10)]
            await asyncio.sleep(0)
            for stream in streams:
                stream.cancel()
        last = Gathering(connection.loop, 1 << 20)
        connection.open(block, [framed], last, end=True)
        answer = bytes((await last.future).body)
        connection.close()
        return answer

    assert b"x-gateway-destination-endpoint" in asyncio.run(give_up())
    _until(running.is_idle)


# Health, and the end.


@pytest.mark.parametrize("on_health_port", [True, False])
def test_health_services(on_health_port: bool) -> None:
    with picker() as running:
        address = running.health_address if on_health_port else running.address
        names = ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension")
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert {
                name: stub.Check(health_pb2.HealthCheckRequest(service=name)).status for name in names
            } == dict.fromkeys(names, 1)
            running.do(
                lambda gateway: [setattr(each.endpoint, "healthy", False) for each in gateway.fleet.members.values()]
            )
            after = {name: stub.Check(health_pb2.HealthCheckRequest(service=name)).status for name in names}
            assert after == {**dict.fromkeys(names, 2), "liveness": 1}
            watched = {
                name: next(stub.Watch(health_pb2.HealthCheckRequest(service=name))).status
                for name in ("liveness", "readiness", "unknown")
            }
            assert watched == {"liveness": 1, "readiness": 2, "unknown": 3}
            with pytest.raises(grpc.RpcError) as caught:
                stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_picker_that_stops_lets_envoy_go_on_alone() -> None:
    with picker() as running, grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        assert destination(call.ask(headers_message()))
        running.close()
        assert call.status() is grpc.StatusCode.OK


def test_no_worker_is_answered_503() -> None:
    with picker(upstreams=()) as running, grpc.insecure_channel(running.address) as channel:
        call = EnvoyCall(channel)
        refusal = call.ask(headers_message()).immediate_response
        assert refusal.status.code == 503
