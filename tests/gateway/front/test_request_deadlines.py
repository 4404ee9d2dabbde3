"""The deadline of a request: the earliest that its caller gives, or the model's where the caller gives none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from offline import Caller
from tritonclient.grpc import service_pb2

from isochrone.clock import MILLISECOND, NEVER
from isochrone.gateway.caller_requests import CallerRequest
from isochrone.gateway.front.application import GatewayApplication
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Head

pytestmark = pytest.mark.interpreted

#: Milliseconds of the head, of the parameter ``timeout``, of the rules; and what holds. 0: not given.
CASES = [
    (0, 0, 0, 0),
    (0, 0, 50, 50),
    (20, 0, 0, 20),
    (20, 0, 50, 20),
    (80, 0, 50, 80),
    (0, 20, 50, 20),
    (0, 80, 50, 80),
    (20, 80, 50, 20),
    (80, 20, 50, 20),
]


def deadline(head: Head, body: bytes, rules_ms: int) -> int:
    """In ms after the arrival; 0: none."""
    defaults = replace(ModelRules(), deadline_ns=rules_ms * MILLISECOND)
    gateway = Gateway(GatewayRules(defaults=defaults), WireLimits(), seed=1)
    arrived: list[CallerRequest] = []
    gateway.arrive = arrived.append  # type: ignore[method-assign]
    caller = Caller(head, body)
    GatewayApplication(gateway).route(head).handle(cast(Any, caller))
    (request,) = arrived
    return 0 if request.deadline == NEVER else (request.deadline - request.arrived) // MILLISECOND


@pytest.mark.parametrize(("given", "parameter", "rules", "holds"), CASES)
def test_http(given: int, parameter: int, rules: int, holds: int) -> None:
    fields = ((b"x-request-timeout-ms", b"%d" % given),) if given else ()
    parameters = b',"parameters":{"timeout":%d}' % (parameter * 1000) if parameter else b""
    head = Head(b"POST", b"/v2/models/m/infer", ((b"host", b"gw"), *fields))
    assert deadline(head, b'{"inputs":[]%s}' % parameters, rules) == holds


@pytest.mark.parametrize(("given", "parameter", "rules", "holds"), CASES)
def test_grpc(given: int, parameter: int, rules: int, holds: int) -> None:
    fields = ((b"grpc-timeout", b"%dm" % given),) if given else ()
    head = Head(
        b"POST", b"/inference.GRPCInferenceService/ModelInfer", ((b"content-type", b"application/grpc"), *fields)
    )
    head.is_http2 = head.is_grpc = True
    message = service_pb2.ModelInferRequest(model_name="m")
    if parameter:
        message.parameters["timeout"].int64_param = parameter * 1000
    payload = message.SerializeToString()
    assert deadline(head, b"\0" + len(payload).to_bytes(4, "big") + payload, rules) == holds
