"""A request's first fields read without parsing it: what protobuf would say, for every message it can write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest
from isochrone.protocol.grpc.routing_fields import Opening, layout_of, name_field, read_opening, version_field

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
    elif draw(st.booleans()):
        message.parameters["timeout"].bool_param = True
    if draw(st.booleans()):
        message.parameters["priority"].uint64_param = draw(st.integers(0, 2**32))
    for key in ("time_to_first_token_ms", "inter_token_ms"):
        if draw(st.booleans()):
            field = draw(st.sampled_from(("int64_param", "uint64_param", "double_param", "string_param", "bool_param")))
            values = {"double_param": st.floats(allow_nan=False), "string_param": st.text(max_size=9)}
            value = True if field == "bool_param" else draw(values.get(field, st.integers(0, 2**63 - 1)))
            setattr(message.parameters[key], field, value)
    if draw(st.booleans()):
        message.parameters[draw(st.sampled_from(("sequence_id", "timeout", "priority")))].double_param = 3.0
    if draw(st.booleans()):
        message.parameters["sequence_start"].bool_param = draw(st.booleans())
        message.parameters["binary_data_output"].bool_param = True
        message.parameters["share"].double_param = 0.5
    if draw(st.booleans()):
        message.inputs.add(name="x", datatype="FP32", shape=[2])
        message.raw_input_contents.append(draw(st.binary(max_size=64)))
    return message


def milliseconds(message: service_pb2.ModelInferRequest, key: str) -> float | str:
    if key not in message.parameters:
        return 0
    choice = message.parameters[key].WhichOneof("parameter_choice")
    found: float | str = 0 if choice == "bool_param" else getattr(message.parameters[key], choice)
    return found


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
        "sequence_start" in parameters and parameters["sequence_start"].bool_param,
        milliseconds(message, "time_to_first_token_ms"),
        milliseconds(message, "inter_token_ms"),
    )


@given(requests(), st.binary(max_size=9))
def test_as_protobuf_reads_it(message: service_pb2.ModelInferRequest, before: bytes) -> None:
    wanted = expected(message)
    assert read_opening(before + message.SerializeToString(), len(before)) == wanted


@given(st.lists(requests(), min_size=1, max_size=4))
def test_the_last_of_several_wins_wherever_it_stands(pieces: list[service_pb2.ModelInferRequest]) -> None:
    """Messages one behind the other are one message: names and parameters then stand behind tensors, and repeat."""
    joined = b"".join(piece.SerializeToString() for piece in pieces)
    assert read_opening(joined, 0) == expected(service_pb2.ModelInferRequest.FromString(joined))


#: Fields that this protocol does not have: varint 100, fixed64 17, fixed32 18, bytes 100; and one tag in three bytes.
UNKNOWN = (b"\xa0\x06\x05", b"\x89\x01" + b"x" * 8, b"\x95\x01" + b"x" * 4, b"\xa2\x06\x02ab")


@given(requests(), st.sampled_from(UNKNOWN), names)
def test_fields_of_a_later_protocol_are_stepped_over(
    message: service_pb2.ModelInferRequest, unknown: bytes, name: str
) -> None:
    body = message.SerializeToString() + unknown + name_field(name)
    assert read_opening(body, 0) == expected(service_pb2.ModelInferRequest.FromString(body))
    assert read_opening(b"\x8a\x80\x00" + name_field(name)[1:], 0) == Opening(name.encode())


@given(requests(), requests())
def test_messages_that_end_with_their_tensors(
    message: service_pb2.ModelInferRequest, other: service_pb2.ModelInferRequest
) -> None:
    message.ClearField("parameters")
    message.ClearField("model_version")
    head = name_field(message.model_name)
    message.ClearField("model_name")
    body = head + message.SerializeToString()
    assert layout_of(body, len(head))
    rest = other.SerializeToString()
    for name in ("inputs", "raw_input_contents", "id"):
        other.ClearField(name)
    assert bool(layout_of(body + rest, len(head))) == (other.ByteSize() == 0)
    if body[len(head) :]:
        assert layout_of(body[:-1], len(head)) is None


@given(requests(), requests(), st.data())
def test_messages_with_the_same_layout_say_the_same(
    message: service_pb2.ModelInferRequest, other: service_pb2.ModelInferRequest, data: st.DataObject
) -> None:
    """Whatever bytes come: if they have the layout of a known message, they have its opening."""
    message.ClearField("parameters")
    message.ClearField("model_version")
    message.model_name = message.model_name or "m"
    known = message.SerializeToString()
    layout = layout_of(known, len(name_field(message.model_name)))
    assert layout is not None
    changed = bytearray(known)
    for place in data.draw(st.lists(st.integers(0, len(known) - 1), max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    strange = other.SerializeToString()[: len(known)].ljust(len(known), b"\x3a")
    for candidate in (bytes(changed), strange, known):
        if all(candidate[start:end] == expected for start, end, expected in layout):
            assert read_opening(candidate, 0) == read_opening(known, 0)


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


KEY = b"\x0a\x08priority"
ONE = b"\x28\x01"


@pytest.mark.parametrize(
    "entry",
    [
        KEY + b"\x12\x02" + ONE,
        b"\x8a\x00\x08priority\x12\x02" + ONE,
        b"\x0a\x88\x00priority\x12\x02" + ONE,
        KEY + b"\x92\x00\x02" + ONE,
        KEY + b"\x12\x04" + ONE + b"\x78\x01",
        KEY + b"\x12\x05" + ONE + b"\x7a\x01x",
        KEY + b"\x12\x04" + ONE + b"\x7b\x7c",
        KEY + b"\x12\x03\xa8\x00\x01",
        KEY + b"\x12\x02" + ONE + b"\x12\x00",
        KEY + b"\x12\x0b\x28\x81" + b"\x80" * 8 + b"\x02",
        KEY + b"\x12\x0b" + ONE + b"\x29" + bytes(8),
        KEY + b"\x12\x04" + ONE + b"\x18\x05",
        b"\x12\x02" + ONE + KEY,
        b"\x18\x01" + KEY + b"\x12\x02" + ONE,
        KEY + b"\x12\x02\x28\x07" + KEY + b"\x12\x02" + ONE,
        KEY + b"\x12\x04\x28\x07\x10\x01",
    ],
)
def test_a_parameter_in_a_strange_spelling_means_what_protobuf_says(entry: bytes) -> None:
    """A role's limit of the priority would be passed by one that the worker reads and the gateway does not."""
    message = b"\x22" + bytes((len(entry),)) + entry
    parsed = service_pb2.ModelInferRequest.FromString(message)
    parameter = parsed.parameters.get("priority")
    wanted = getattr(parameter, parameter.WhichOneof("parameter_choice")) if parameter is not None else 0
    assert read_opening(message, 0) == Opening(b"", priority=wanted)


@pytest.mark.parametrize("entry", [b"\x0a\x7fx", KEY + b"\x12\x7f", b"\xff", KEY + b"\x12\x01\x28", b"\x0f"])
def test_a_parameter_that_is_cut_off_is_malformed(entry: bytes) -> None:
    with pytest.raises(MalformedRequest, match="parameter"):
        read_opening(b"\x22" + bytes((len(entry),)) + entry, 0)


@pytest.mark.parametrize(
    ("rest", "is_remembered"),
    [
        (b"\x3a\x00" * 64, True),
        (b"\x3a\x00" * 65, False),
        # Varints may be written with more bytes than they need, which then have to be the same.
        (b"\x3a\x80\x80\x00" * 60, True),
        (b"\x3a\x00" * 500_000, False),
    ],
)
def test_of_messages_with_many_fields_nothing_is_remembered(rest: bytes, is_remembered: bool) -> None:
    head = name_field("m")
    assert (layout_of(head + rest, len(head)) is not None) == is_remembered
