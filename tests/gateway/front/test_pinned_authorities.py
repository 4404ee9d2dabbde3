"""A gateway does not take part of a pin: it rejects calls to names of the control plane's routes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from offline import Caller
from tritonclient.grpc import service_pb2

from isochrone.errors import GRPC_INVALID_ARGUMENT
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules
from isochrone.protocol.grpc.calls import frame_message
from isochrone.protocol.headers.version_pins import model_authority, pinned_authority
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head
from isochrone.wire.http2.hpack import Decoder

pytestmark = pytest.mark.interpreted


class GrpcCaller(Caller):
    """Keeps the trailers of its answer."""

    trailers: dict[bytes, bytes] | None = None

    def end_with_trailers(self, block: bytes) -> None:
        self.trailers = dict(Decoder(4096).decode(block))


def _called(authority: str, method: str) -> tuple[list[CallerRequest], GrpcCaller]:
    """The requests that arrive, and the caller."""
    gateway = Gateway(GatewayRules(), WireLimits(), seed=1)
    arrived: list[CallerRequest] = []
    gateway.arrive = arrived.append  # type: ignore[method-assign]
    head = Head(
        b"POST", b"/inference.GRPCInferenceService/" + method.encode(), ((b"content-type", b"application/grpc"),)
    )
    head.is_http2 = head.is_grpc = True
    head.authority = authority.encode()
    message = service_pb2.ModelInferRequest(model_name="chain").SerializeToString()
    caller = GrpcCaller(head, frame_message(message))
    GatewayApplication(gateway).route(head).handle(cast(Any, caller))
    return arrived, caller


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "ModelReady"])
@pytest.mark.parametrize(
    "authority", [pinned_authority("chain", "2"), pinned_authority("chain", "2", b"a=4"), model_authority("chain")]
)
def test_neither_the_version_nor_the_stages_of_a_pin_are_taken(authority: str, method: str) -> None:
    arrived, caller = _called(authority, method)
    assert arrived == []
    assert caller.trailers is not None
    assert caller.trailers[b"grpc-status"] == b"%d" % GRPC_INVALID_ARGUMENT
    assert b"the gateway's own name" in caller.trailers[b"grpc-message"]


@pytest.mark.parametrize("authority", ["", "10.0.0.1:8001", "gateway.internal"])
def test_calls_by_the_gateways_own_name_arrive(authority: str) -> None:
    arrived, caller = _called(authority, "ModelInfer")
    assert (len(arrived), caller.trailers) == (1, None)
