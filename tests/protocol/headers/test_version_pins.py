"""The version that a control plane's route chose, in the authority of a gRPC call."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import InvalidArgument
from isochrone.protocol.grpc.calls import CallHead, frame_message
from isochrone.protocol.grpc.infer import InferRoute
from isochrone.protocol.grpc.pinned_plans import pinned_plan
from isochrone.protocol.grpc.plan import GrpcPlan, plan_of, with_parameters
from isochrone.protocol.grpc.router import GrpcRouter
from isochrone.protocol.headers.stages import stages_value
from isochrone.protocol.headers.version_pins import (
    DOMAIN,
    Pin,
    Pins,
    is_of_pins,
    model_authority,
    pin_of,
    pinned_authority,
)
from isochrone.protocol.messages import InferRequest
from isochrone.wire.exchange import Head

VERSIONS = st.integers(1, 10**18).map(str)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(NAMES, VERSIONS, st.none() | st.dictionaries(NAMES, VERSIONS, min_size=1, max_size=3))
def test_what_is_written_is_read(model: str, version: str, stages: dict[str, str] | None) -> None:
    authority = pinned_authority(model, version, stages_value(stages) if stages else b"")
    assert pin_of(authority.encode("ascii")) == Pin(model, version, stages)
    assert not set(authority) & set(" \t\r\n/?#@"), "an authority by RFC 3986"


@given(st.binary(max_size=40))
def test_bytes_in_the_domain_are_a_pin_or_an_error(start: bytes) -> None:
    try:
        pin = pin_of(start + DOMAIN.encode())
    except InvalidArgument:
        return
    assert pin is not None
    assert pin.version.isdigit()


@pytest.mark.parametrize(
    "authority", ["", "10.0.0.1:8001", "detector", "gateway.internal", f"{DOMAIN}:443", f"{DOMAIN}.x"]
)
def test_other_authorities_pin_nothing(authority: str) -> None:
    pins = Pins()
    assert pins.of(authority.encode()) is None
    assert not is_of_pins(authority.encode())
    assert pins._known == {}


@given(st.lists(st.tuples(NAMES, VERSIONS), min_size=1, max_size=8))
def test_pins_that_are_remembered_are_those_that_are_read(named: list[tuple[str, str]]) -> None:
    pins = Pins()
    for model, version in named * 2:
        assert pins.of(pinned_authority(model, version).encode()) == Pin(model, version, None)
    assert len(pins._known) == len(set(named))


def test_what_is_remembered_of_authorities_is_bounded() -> None:
    pins, most = Pins(), 0
    for number in range(1, 1000):
        stages = {f"stage{each}": "1" for each in range(number % 100)}
        authority = pinned_authority("m", str(number), stages_value(stages)).encode()
        assert pins.of(authority) == pins.of(authority) == Pin("m", str(number), stages or None)
        most = max(most, sum(map(len, pins._known)))
    assert 200_000 < most <= 256 * 1024


@pytest.mark.parametrize("authority", [DOMAIN, f"v1.chain;a.{DOMAIN}"])
def test_errors_are_not_remembered(authority: str) -> None:
    pins = Pins()
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            pins.of(authority.encode())
    assert pins._known == {}


@pytest.mark.parametrize(
    "authority", [DOMAIN, model_authority("solo"), f"v0.solo.{DOMAIN}", f"v.solo.{DOMAIN}", f"v1.{DOMAIN}"]
)
def test_a_client_that_does_not_replace_the_authority_is_told_what_to_set(authority: str) -> None:
    """Otherwise "latest" would mean whatever each worker has loaded."""
    with pytest.raises(InvalidArgument, match="trusted_xds_server"):
        pin_of(authority.encode())


@pytest.mark.parametrize("authority", [f"v1.%FF.{DOMAIN}", f"v1.chain;a.{DOMAIN}", f"v1.chain;a=1,a=2.{DOMAIN}"])
def test_pins_that_make_no_sense(authority: str) -> None:
    with pytest.raises(InvalidArgument):
        pin_of(authority.encode())


def _plan(model: str, version: str = "") -> GrpcPlan:
    return plan_of(service_pb2.ModelInferRequest(model_name=model, model_version=version))


def test_a_message_gets_the_version_of_its_route_and_keeps_its_own_if_that_is_the_same() -> None:
    pin, plan = Pin("solo", "2", None), _plan("solo")
    plan.checked_by, plan.answers = object(), {"kept": None}  # type: ignore[dict-item]
    made = pinned_plan(plan, pin)
    assert (made.key, made.model_version, made.checked_by, made.answers) == (("solo", "2"), "2", None, {})
    assert pinned_plan(plan, Pin("solo", "2", {"a": "1"})) is made, "the plan of a message that repeats is checked once"
    assert (plan.model_version, plan.key) == ("", ("solo", "")), "calls of other authorities share it"
    own = _plan("solo", "2")
    assert pinned_plan(own, pin) is own


def test_versions_of_one_plan_are_kept_apart_and_are_few() -> None:
    plan = _plan("solo")
    present, previous = (pinned_plan(plan, Pin("solo", version, None)) for version in "21")
    assert (present.model_version, previous.model_version) == ("2", "1")
    with pytest.raises(InvalidArgument, match="names model 'solo'"):
        pinned_plan(plan, Pin("other", "2", None))
    for version in range(1, 1000):
        assert pinned_plan(plan, Pin("solo", str(version), None)).key == ("solo", str(version))
    assert plan.pinned is not None
    assert len(plan.pinned) <= 8


def test_other_parameters_are_another_plan_with_each_version() -> None:
    pin, plan = Pin("solo", "2", None), _plan("solo")
    pinned_plan(plan, pin)
    message = service_pb2.ModelInferRequest()
    message.parameters["priority"].uint64_param = 3
    made = pinned_plan(with_parameters(plan, message), pin)
    assert (made.priority, made.model_version) == (3, "2")


@pytest.mark.parametrize(
    ("model", "version", "named"), [("other", "", "x-isochrone-model"), ("solo", "3", "x-isochrone-model: solo=3")]
)
def test_a_message_that_contradicts_its_route_is_rejected(model: str, version: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        pinned_plan(_plan(model, version), Pin("solo", "2", None))


def _head(authority: str, *headers: tuple[bytes, bytes], method: str = "ModelInfer") -> Head:
    head = Head(b"POST", b"/inference.GRPCInferenceService/" + method.encode(), headers)
    head.authority = authority.encode()
    head.is_http2 = head.is_grpc = True
    return head


class Service:
    """Keeps the requests that it gets."""

    shared_memory = None
    control_token = None

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []

    def infer(self, request: InferRequest) -> None:
        self.requests.append(request)

    def is_decoupled(self, model: str, version: str) -> bool:
        return False


class Stream:
    """A call whose answer nobody reads."""

    owner = None
    arrived = 1
    unsent = 0

    def __init__(self, head: Head, body: bytes) -> None:
        self.head, self.body = head, body

    def reserve(self, size: int) -> bool:
        return True

    def give_back(self, size: int) -> None: ...

    def send_headers(self, block: bytes, last: bool) -> None: ...

    def end_with_trailers(self, block: bytes) -> None:
        raise AssertionError(block)


def _body() -> bytes:
    message = service_pb2.ModelInferRequest(model_name="solo", raw_input_contents=[b"\0" * 4])
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    payload: bytes = message.SerializeToString()
    return frame_message(payload)


def test_a_pinned_call_carries_its_stages_and_gets_a_load_report() -> None:
    authority = pinned_authority("chain", "1", b"a=4,b=2")
    call = CallHead(_head(authority), pin_of(authority.encode()))
    assert (call.stages, call.wants_load, call.is_plain) == ({"a": "4", "b": "2"}, True, False)
    plain = CallHead(_head("10.0.0.1:8001", (b"x-isochrone-stages", b"a=3")))
    assert (plain.pin, plain.stages, plain.wants_load) == (None, {"a": "3"}, False)


@pytest.mark.interpreted
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_pinned_calls_with_a_trace_of_their_own_share_a_plan(method: str) -> None:
    """Every such call has a header block, and so a route, of its own; the plan must not be checked for each."""
    service = Service()
    router = GrpcRouter(service, 1 << 20)  # type: ignore[arg-type]
    for number in range(6):
        authority = pinned_authority("solo", "2", b"a=4" if number % 2 else b"")
        head = _head(authority, (b"traceparent", b"00-%032x-01" % number), method=method)
        stream, route = Stream(head, _body()), router.route(head)
        if route.streaming:
            route.open(cast(Any, stream)).data_received(stream.body)
        else:
            route.handle(cast(Any, stream))
    assert [request.plan.key for request in service.requests] == [("solo", "2")] * 6
    assert [request.stages for request in service.requests] == [None, {"a": "4"}] * 3
    # The decoder remembers a message when it comes for the second time.
    assert len({id(request.plan) for request in service.requests[1:]}) == 1


def test_an_authority_is_read_once() -> None:
    router = GrpcRouter(Service(), 1 << 20)  # type: ignore[arg-type]
    authority = pinned_authority("chain", "1", b"a=4,b=2")
    first, second = (router.route(_head(authority, (b"traceparent", b"%d" % number))) for number in range(2))
    assert isinstance(first, InferRoute)
    assert isinstance(second, InferRoute)
    assert first.call.pin is not None
    assert first.call.pin is second.call.pin


@pytest.mark.interpreted
def test_a_call_without_a_pin_keeps_the_version_of_its_message() -> None:
    service = Service()
    router = GrpcRouter(service, 1 << 20)  # type: ignore[arg-type]
    for authority in (pinned_authority("solo", "2"), "10.0.0.1:8001") * 3:
        head = _head(authority)
        router.route(head).handle(cast(Any, Stream(head, _body())))
    assert [request.plan.model_version for request in service.requests] == ["2", ""] * 3
