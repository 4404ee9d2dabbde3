"""Headers that APIs need, and headers that become parameters."""

from __future__ import annotations

import re

import pytest

from isochrone.errors import Restricted
from isochrone.protocol.access.restrictions import APIS, RequiredHeader, check_grpc, check_rest, grpc_api, rest_api
from isochrone.protocol.grpc.control import METHODS, SERVICE
from isochrone.protocol.grpc.router import STREAMING
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.protocol.rest.control import CONTROL_PATHS
from isochrone.protocol.services.forwarded_headers import WithHeaders, forwarded
from isochrone.wire.exchange import Head

KEY = RequiredHeader("Admin-Key", "secret")


def head(target: bytes, *headers: tuple[bytes, bytes]) -> Head:
    return Head(b"GET", target, headers)


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v2", "metadata"),
        ("/v2/", "metadata"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/1/ready/", "health"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/stats", "statistics"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/", "statistics"),
        ("/v2/models/stats/infer", "inference"),
        ("/v2/models/config/versions/1/infer", "inference"),
        ("/v2/models/versions/versions/1/infer/", "inference"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/1/generate_stream", "inference"),
        ("/v1/chat/completions", "inference"),
        ("/v1/completions/", "inference"),
        ("/v1/completions//", "inference"),
        ("/v1/chat/completions///", "inference"),
        ("/v1/models", "metadata"),
        ("/v1/models/m", "metadata"),
        ("/v1/embeddings", None),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/systemsharedmemory/region/r/register", "shared-memory"),
        ("/v2/cudasharedmemory/status", "shared-memory"),
        ("/elsewhere", None),
    ],
)
def test_the_api_of_a_path(path: str, api: str | None) -> None:
    assert rest_api(path) == api


def test_every_path_that_is_served_belongs_to_an_api() -> None:
    for pattern, _ in CONTROL_PATHS:
        path = re.sub(r"\(\?P<\w+>\[\^/\]\+\)", "x", pattern.pattern).replace("[^/]+", "x")
        path = re.sub(r"\(\?:(.*?)\)\?", r"\1", path).removesuffix("/?$")
        assert pattern.match(path), f"the test cannot make a path out of {pattern.pattern}"
        assert rest_api(path) in APIS, path


def test_every_method_but_reflection_belongs_to_an_api() -> None:
    for path in (*METHODS, *STREAMING, SERVICE + b"ModelStreamInfer"):
        assert (grpc_api(path.decode()) in APIS) != (b"reflection" in path), path


def test_a_restricted_api_needs_its_header() -> None:
    rules = {"model-config": KEY}
    check_rest(rules, head(b"/v2/models/m"))
    check_rest(rules, head(b"/v2/models/m/config?x=1", (b"admin-key", b"secret")))
    for given in ((), ((b"admin-key", b"wrong"),), ((b"other", b"secret"),)):
        with pytest.raises(Restricted, match="This API is restricted, expecting header 'Admin-Key'"):
            check_rest(rules, head(b"/v2/models/m/config", *given))


def test_grpc_asks_for_the_header_under_a_prefix() -> None:
    rules = {"inference": KEY}
    path = b"/inference.GRPCInferenceService/ModelStreamInfer"
    check_grpc(rules, head(b"/inference.GRPCInferenceService/ServerLive"))
    check_grpc(rules, head(path, (b"triton-grpc-protocol-admin-key", b"secret")))
    with pytest.raises(Restricted, match="expecting header 'triton-grpc-protocol-Admin-Key'"):
        check_grpc(rules, head(path, (b"admin-key", b"secret")))


def test_headers_that_match_anywhere_are_forwarded() -> None:
    pattern = re.compile("my_.*", re.IGNORECASE)
    given = head(b"/", (b":path", b"my_"), (b"my_a", b"x"), (b"xmy_b", b"y"), (b"other", b"my_"))
    assert forwarded(pattern, given) == {"my_a": "x", "xmy_b": "y"}


class Recorder:
    """The end of the way: keeps what came."""

    name = "recorder"

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def infer(self, request: InferRequest) -> None:
        self.plans.append(request.plan)


def test_requests_of_a_head_carry_its_parameters_and_their_plan_is_checked_once() -> None:
    service = Recorder()
    with_headers = WithHeaders(service, {"my_a": "x"})  # type: ignore[arg-type]
    assert with_headers.name == "recorder"
    shared = Plan("m", "", (), None, {"p": 1})
    shared.checked_by = service
    for _ in range(2):
        with_headers.infer(InferRequest(shared, "", {}, 0))
    assert service.plans[0] is service.plans[1]
    assert service.plans[0].parameters == {"p": 1, "my_a": "x"}
    assert service.plans[0].checked_by is None
    assert shared.parameters == {"p": 1}
    for number in range(200):
        with_headers.infer(InferRequest(Plan(str(number), "", (), None), "", {}, 0))
    assert len(with_headers._plans) <= 64
