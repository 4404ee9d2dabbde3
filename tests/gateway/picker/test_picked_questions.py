"""Questions about a model: answered, or led to a worker, without being counted as work for the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from envoy_calls import EnvoyCall, RunningPicker, body_message, destination, headers_message, picker, set_headers
from isochrone.clock import SECOND
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.replicas import LoadReport
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.gateway.traffic.quota_rules import QuotaRules

NONE, BUFFERED, DUPLEX = 0, 2, 4
_GRPC = {"content-type": "application/grpc"}
_SERVICE = "/inference.GRPCInferenceService/"
_WORKERS = {"10.0.0.1:8000", "10.0.0.2:8000"}
_MESSAGES = {
    "ModelReady": service_pb2.ModelReadyRequest(name="m"),
    "ModelConfig": service_pb2.ModelConfigRequest(name="m"),
    "ModelMetadata": service_pb2.ModelMetadataRequest(name="m"),
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningPicker]:
    """One inference request is all that the quota has."""
    with picker(GatewayRules(quota=QuotaRules(rate=0.000_001, burst=1))) as made:
        yield made


@pytest.fixture
def channel(running: RunningPicker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address) as made:
        yield made


def _asked(channel: grpc.Channel, path: str, **given: Any) -> Any:
    call = EnvoyCall(channel)
    answer = call.ask(headers_message(path, **{"method": "GET", "ends": True, **given}))
    call.cancel()
    return answer


def _asked_by_grpc(channel: grpc.Channel, name: str) -> Any:
    call = EnvoyCall(channel)
    call.ask(headers_message(_SERVICE + name, headers=_GRPC, mode=BUFFERED))
    message = _MESSAGES[name].SerializeToString()
    answer = call.ask(body_message(b"\0" + len(message).to_bytes(4, "big") + message, ends=True))
    call.cancel()
    return answer


@pytest.mark.parametrize("mode", [NONE, BUFFERED, DUPLEX, None])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_readiness_is_answered_for_the_whole_fleet(channel: grpc.Channel, mode: int | None, method: str) -> None:
    for path in ("/v2/models/m/ready", "/v2/models/m/versions/3/ready", "/v2/models/m/ready/?a=b"):
        call = EnvoyCall(channel)
        answer = call.ask(headers_message(path, method=method, mode=mode, ends=mode != DUPLEX))
        assert answer.WhichOneof("response") == "immediate_response"
        assert (answer.immediate_response.status.code, answer.immediate_response.body) == (200, b"")
        assert call.status() is grpc.StatusCode.OK


@pytest.mark.parametrize("path", ["/v2/models/unknown/ready", "/v2/models/m/versions/9/ready"])
def test_what_is_not_ready_is_answered_as_by_a_gateway(channel: grpc.Channel, path: str) -> None:
    refusal = _asked(channel, path).immediate_response
    assert refusal.status.code == 400
    assert json.loads(refusal.body) == {"error": "Model version not ready"}
    assert {each.header.key: each.header.raw_value for each in refusal.headers.set_headers} == {
        "content-type": b"application/json"
    }


def test_readiness_is_not_posted(channel: grpc.Channel) -> None:
    refusal = _asked(channel, "/v2/models/m/ready", method="POST").immediate_response
    assert refusal.status.code == 405
    assert b"expected GET or HEAD" in refusal.body


def test_readiness_follows_what_is_committed() -> None:
    with picker(serves={"m": {"1": "", "2": ""}}) as running, grpc.insecure_channel(running.address) as channel:
        running.do(lambda gateway: gateway.fleet.lead())
        assert _asked(channel, "/v2/models/m/ready").immediate_response.status.code == 400
        running.do(lambda gateway: gateway.fleet.commit(1, {"m": Commitment(1, "1", {"1": ""})}))
        assert _asked(channel, "/v2/models/m/ready").immediate_response.status.code == 200
        assert _asked(channel, "/v2/models/m/versions/2/ready").immediate_response.status.code == 400
        pinned = set_headers(_asked(channel, "/v2/models/m/config").request_headers.response)
        assert pinned[":path"] == "/v2/models/m/versions/1/config"


def test_questions_use_up_no_quota(running: RunningPicker, channel: grpc.Channel) -> None:
    for _ in range(3):
        for path in ("/v2/models/m", "/v2/models/m/config", "/v2/models/m/versions/3/config"):
            assert destination(_asked(channel, path)) in _WORKERS
        for name in _MESSAGES:
            assert destination(_asked_by_grpc(channel, name)) in _WORKERS
        assert _asked(channel, "/v2/models/m/ready").immediate_response.status.code == 200
    infer = {"method": "POST", "ends": False}
    assert destination(_asked(channel, "/v2/models/m/infer", **infer)) in _WORKERS
    assert _asked(channel, "/v2/models/m/infer", **infer).immediate_response.status.code == 429
    # Now it is used up, which questions do not ask about.
    assert destination(_asked(channel, "/v2/models/m/config")) in _WORKERS


def test_questions_are_not_rejected_by_the_load_of_the_model(running: RunningPicker, channel: grpc.Channel) -> None:
    def load(gateway: Gateway) -> None:
        now = gateway.clock()
        for replica in gateway.fleet.model("n").current.replicas.values():
            # Reported for the future, so that no pause of this machine makes it old.
            replica.reported(LoadReport(9, 9, 60 * SECOND, SECOND), now)
            replica.reported_at = now + 50 * SECOND

    running.do(load)
    answer = _asked(channel, "/v2/models/n/config", headers={"x-request-timeout-ms": "20000"})
    assert destination(answer) in _WORKERS
    # Its deadline holds nevertheless.
    assert 0 < float(set_headers(answer.request_headers.response)["x-request-timeout-ms"]) < 20_000
