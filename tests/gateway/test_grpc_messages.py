"""A request's first fields read without parsing it: what protobuf would say, for every message it can write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest
from isochrone.gateway.grpc_messages import Opening, read_opening, version_field

names = st.text(max_size=300)


@st.composite
def requests(draw: st.DrawFn) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(
        model_name=draw(names), model_version=draw(st.sampled_from(("", "1", "23"))), id=draw(st.text(max_size=200))
    )
    if draw(st.booleans()):
        message.parameters["sequence_id"].int64_param = draw(st.integers(0, 2**63 - 1))
    elif draw(st.booleans()):
        message.parameters["sequence_id"].string_param = draw(st.text(max_size=40))
    if draw(st.booleans()):
        message.parameters["timeout"].int64_param = draw(st.integers(0, 2**62))
    if draw(st.booleans()):
        message.parameters["priority"].uint64_param = draw(st.integers(0, 2**32))
    if draw(st.booleans()):
        message.parameters["binary_data_output"].bool_param = True
        message.parameters["share"].double_param = 0.5
    if draw(st.booleans()):
        message.inputs.add(name="x", datatype="FP32", shape=[2])
        message.raw_input_contents.append(draw(st.binary(max_size=64)))
    return message


def expected(message: service_pb2.ModelInferRequest) -> Opening:
    parameters = message.parameters
    sequence = b""
    if "sequence_id" in parameters:
        one = parameters["sequence_id"]
        number = b"%d" % one.int64_param if one.int64_param else b""
        sequence = one.string_param.encode() if one.WhichOneof("parameter_choice") == "string_param" else number
    return Opening(
        message.model_name.encode(),
        message.model_version.encode(),
        sequence,
        parameters["timeout"].int64_param * 1000 if "timeout" in parameters else 0,
        parameters["priority"].uint64_param if "priority" in parameters else 0,
    )


@given(requests(), st.binary(max_size=9))
def test_as_protobuf_reads_it(message: service_pb2.ModelInferRequest, before: bytes) -> None:
    wanted = expected(message)
    assert read_opening(before + message.SerializeToString(), len(before)) == wanted


@given(requests(), st.sampled_from(("1", "9", "12345678901234567890")))
def test_a_version_that_is_appended_wins(message: service_pb2.ModelInferRequest, version: str) -> None:
    stamped = service_pb2.ModelInferRequest.FromString(message.SerializeToString() + version_field(version))
    message.model_version = version
    assert stamped == message


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        opening = read_opening(data, 0)
    except MalformedRequest:
        return
    assert len(opening.model) <= len(data)


@given(requests(), st.data())
def test_a_message_that_is_cut_off_is_refused_or_left_to_the_worker(
    message: service_pb2.ModelInferRequest, data: st.DataObject
) -> None:
    whole = message.SerializeToString()
    cut = data.draw(st.integers(0, len(whole)))
    try:
        opening = read_opening(whole[:cut], 0)
    except MalformedRequest:
        return
    assert opening.model in (message.model_name.encode(), b"")


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x0a" + b"\x80" * 12, b"\x22\x02\x0a\xff"])
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_opening(data, 0)
