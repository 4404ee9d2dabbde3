"""The version that a control plane's route chose, in the authority of a gRPC call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import InvalidArgument
from isochrone.protocol.grpc.calls import CallHead
from isochrone.protocol.grpc.pinned_plans import PinnedPlans
from isochrone.protocol.grpc.plan import GrpcPlan, plan_of
from isochrone.protocol.stages import stages_value
from isochrone.protocol.version_pins import DOMAIN, Pin, model_authority, pin_of, pinned_authority
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
    assert pin_of(authority.encode()) is None


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
    pinned, plan = PinnedPlans(Pin("solo", "2", None)), _plan("solo")
    plan.checked_by, plan.answers = object(), {"kept": None}  # type: ignore[dict-item]
    made = pinned.of(plan)
    assert (made.key, made.model_version, made.checked_by, made.answers) == (("solo", "2"), "2", None, {})
    assert pinned.of(plan) is made, "the plan of a message that repeats is checked once"
    assert (plan.model_version, plan.key) == ("", ("solo", "")), "calls of other authorities share it"
    own = _plan("solo", "2")
    assert pinned.of(own) is own
    for _ in range(1000):
        pinned.of(_plan("solo"))
    assert len(pinned._plans) <= 256


@pytest.mark.parametrize(
    ("model", "version", "named"), [("other", "", "x-isochrone-model"), ("solo", "3", "x-isochrone-model: solo=3")]
)
def test_a_message_that_contradicts_its_route_is_rejected(model: str, version: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        PinnedPlans(Pin("solo", "2", None)).of(_plan(model, version))


def _call(authority: str, *headers: tuple[bytes, bytes]) -> Any:
    head = Head(b"POST", b"/inference.GRPCInferenceService/ModelInfer", headers)
    head.authority = authority.encode()
    return CallHead(head)


def test_a_pinned_call_carries_its_stages_and_gets_a_load_report() -> None:
    call = _call(pinned_authority("chain", "1", b"a=4,b=2"))
    assert (call.stages, call.wants_load, call.is_plain) == ({"a": "4", "b": "2"}, True, False)
    plain = _call("10.0.0.1:8001", (b"x-isochrone-stages", b"a=3"))
    assert (plain.pin, plain.stages, plain.wants_load) == (None, {"a": "3"}, False)
