"""A drained gateway: not ready to whoever balances over gateways, and of service to whoever comes."""

from __future__ import annotations

from typing import Any

import pytest
from offline import add_members
from tritonclient.grpc import service_pb2

from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.grpc.health import NOT_SERVING, SERVING, HealthCheckResponse
from isochrone.protocol.headers.orca import ORCA_FORMAT_HEADER, ORCA_HEADER, parse_orca_header
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head


class Answered:
    """An exchange that keeps its answer, over either protocol."""

    body = b"\0\0\0\0\0"
    arrived = 0
    owner: Any = None

    def respond(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.headers = status, dict(headers)

    def respond_unary(self, headers: bytes, body: bytes, size: int, trailers: bytes) -> None:
        self.message = bytes(body[5:])


@pytest.fixture
def gateway() -> Gateway:
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    add_members(gateway.fleet, {"m": {"1": ""}})
    gateway.fleet.lead()
    gateway.fleet.commit(1, {"m": Commitment(1, "1", {"1": ""})})
    return gateway


def asked(gateway: Gateway, head: Head) -> Answered:
    answer = Answered()
    GatewayApplication(gateway).route(head).handle(answer)  # type: ignore[arg-type]
    return answer


def call(gateway: Gateway, path: bytes) -> bytes:
    head = Head(b"POST", path, ((b"content-type", b"application/grpc"),))
    head.is_http2 = True
    return asked(gateway, head).message


@pytest.mark.interpreted
def test_it_is_not_ready_until_the_drain_ends(gateway: Gateway) -> None:
    for draining in (False, True, False):
        gateway.draining = draining
        answer = asked(gateway, Head(b"GET", b"/v2/health/ready", ((ORCA_FORMAT_HEADER, b"text"),)))
        assert answer.status == (400 if draining else 200)
        assert parse_orca_header(answer.headers[ORCA_HEADER])["draining"] == float(draining)
        ready = call(gateway, b"/inference.GRPCInferenceService/ServerReady")
        assert service_pb2.ServerReadyResponse.FromString(ready).ready is not draining
        health = HealthCheckResponse.FromString(call(gateway, b"/grpc.health.v1.Health/Check"))
        assert health.status == (NOT_SERVING if draining else SERVING)


def test_it_lives_and_its_models_are_ready(gateway: Gateway) -> None:
    gateway.draining = True
    assert asked(gateway, Head(b"GET", b"/v2/health/live", ())).status == 200
    assert asked(gateway, Head(b"GET", b"/v2/models/m/ready", ())).status == 200
    assert gateway.fleet.model("m").plain, "requests are placed as ever"
