"""The hand-written codec of external processing, beside protobuf's own."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc_messages import HeaderMutation, ProcessingRequest, ProcessingResponse
from isochrone.errors import MalformedRequest
from isochrone.gateway.picker import replies
from isochrone.gateway.picker.received import Part, Received, read_body, read_headers, read_subset, read_trailers

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz-:", min_size=1, max_size=40)
_VALUES = st.binary(max_size=300)
_HEADERS = st.lists(st.tuples(_NAMES, _VALUES), max_size=20)
_STRUCTS = st.dictionaries(
    st.text(max_size=10), st.one_of(st.text(max_size=10), st.floats(allow_nan=False), st.booleans()), max_size=3
)
_PART_NAMES = {part: part.name.lower() for part in Part if part}


def _request(part: Part, headers: list[tuple[str, bytes]], body: bytes, ends: bool) -> Any:
    message = ProcessingRequest()
    content = getattr(message, _PART_NAMES[part])
    content.SetInParent()
    if part in (Part.REQUEST_BODY, Part.RESPONSE_BODY):
        content.body, content.end_of_stream = body, ends
        return message
    if part in (Part.REQUEST_HEADERS, Part.RESPONSE_HEADERS):
        content.end_of_stream = ends
    target = content.headers if hasattr(content, "headers") else content.trailers
    for name, value in headers:
        target.headers.add(key=name, raw_value=value)
    return message


@given(
    part=st.sampled_from([part for part in Part if part]),
    headers=_HEADERS,
    body=_VALUES,
    ends=st.booleans(),
    attributes=st.dictionaries(st.text(max_size=10), _STRUCTS, max_size=2),
    modes=st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5)),
    observed=st.booleans(),
)
def test_reads_what_protobuf_writes(
    part: Part,
    headers: list[tuple[str, bytes]],
    body: bytes,
    ends: bool,
    attributes: dict[str, dict[str, Any]],
    modes: tuple[int, int] | None,
    observed: bool,
) -> None:
    message = _request(part, headers, body, ends)
    for name, fields in attributes.items():
        message.attributes[name].update(fields)
    message.observability_mode = observed
    if modes is not None:
        message.protocol_config.SetInParent()
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    received = Received(message.SerializeToString())
    assert received.part is part
    assert received.is_observed_only is observed
    if modes is None:
        assert received.config is None
    else:
        assert received.config is not None
        assert (received.config.request_body, received.config.response_body) == modes
    expected = tuple((name.encode(), value) for name, value in headers)
    if part in (Part.REQUEST_BODY, Part.RESPONSE_BODY):
        assert read_body(received.content) == (body, ends)
    elif part in (Part.REQUEST_HEADERS, Part.RESPONSE_HEADERS):
        assert read_headers(received.content) == (expected, ends)
    else:
        assert read_trailers(received.content) == expected


def test_reads_values_of_old_envoys() -> None:
    message = ProcessingRequest()
    message.request_headers.headers.headers.add(key="a", value="text")
    assert read_headers(Received(message.SerializeToString()).content) == (((b"a", b"text"),), False)


@given(
    addresses=st.lists(st.from_regex(r"[0-9]{1,3}\.0\.0\.1:[0-9]{1,5}", fullmatch=True), max_size=5),
    as_list=st.booleans(),
    others=st.dictionaries(st.text(max_size=12), _STRUCTS, max_size=3),
)
def test_reads_both_forms_of_subsets(addresses: list[str], as_list: bool, others: dict[str, dict[str, Any]]) -> None:
    message = ProcessingRequest()
    for name, fields in others.items():
        message.metadata_context.filter_metadata[name].update(fields)
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    value: object = addresses if as_list else ", ".join(addresses)
    hint.update({"other": "x", "x-gateway-destination-endpoint-subset": value})
    assert read_subset(Received(message.SerializeToString()).metadata) == frozenset(addresses)


@pytest.mark.parametrize("value", [5.0, True, None, {"a": "b"}, [1.0, {}]])
def test_a_subset_of_another_kind_names_nobody(value: object) -> None:
    message = ProcessingRequest()
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": value})
    assert read_subset(Received(message.SerializeToString()).metadata) == frozenset()


def test_without_a_hint_any_endpoint_may_be_chosen() -> None:
    message = ProcessingRequest()
    message.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-subset": "a:1"})
    assert read_subset(Received(message.SerializeToString()).metadata) is None
    assert read_subset(b"") is None


def _whole_message(part: Part, headers: list[tuple[str, bytes]], body: bytes) -> Any:
    """One with all that a picker reads, metadata among it, and with something that it steps over."""
    message = _request(part, headers, body, True)
    message.attributes["envoy.filters.http.ext_proc"].update({"a": "b", "c": 1.0})
    message.metadata_context.filter_metadata["envoy.lb"].update({"x": "y"})
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": ["10.0.0.1:8000", "10.0.0.2:8000"]})
    message.protocol_config.request_body_mode = 2
    return message


def _read_by_picker(data: bytes) -> tuple[object, ...]:
    received = Received(data)
    part = received.part
    content: object
    if part in (Part.REQUEST_BODY, Part.RESPONSE_BODY):
        content = read_body(received.content)
    elif part in (Part.REQUEST_TRAILERS, Part.RESPONSE_TRAILERS):
        content = read_trailers(received.content)
    else:
        content = read_headers(received.content)
    config = received.config
    modes = None if config is None else (config.request_body, config.response_body)
    return part, content, read_subset(received.metadata), modes, received.is_observed_only


def _read_by_protobuf(data: bytes) -> tuple[object, ...]:
    """The same, by protobuf's own code."""
    message = ProcessingRequest.FromString(data)
    name = message.WhichOneof("request")
    part = Part[name.upper()] if name else Part.NOTHING
    given = getattr(message, name) if name else message.request_headers
    content: object
    if part in (Part.REQUEST_BODY, Part.RESPONSE_BODY):
        content = given.body, given.end_of_stream
    elif part in (Part.REQUEST_TRAILERS, Part.RESPONSE_TRAILERS):
        content = _pairs(given.trailers)
    else:
        content = _pairs(given.headers), given.end_of_stream
    config = message.protocol_config
    modes = (config.request_body_mode, config.response_body_mode) if message.HasField("protocol_config") else None
    return part, content, _subset_by_protobuf(message), modes, message.observability_mode


def _pairs(header_map: Any) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((each.key.encode(), each.raw_value or each.value.encode()) for each in header_map.headers)


def _subset_by_protobuf(message: Any) -> frozenset[str] | None:
    namespaces = message.metadata_context.filter_metadata
    fields = namespaces["envoy.lb.subset_hint"].fields if "envoy.lb.subset_hint" in namespaces else {}
    if "x-gateway-destination-endpoint-subset" not in fields:
        return None
    value = fields["x-gateway-destination-endpoint-subset"]
    values = value.list_value.values if value.WhichOneof("kind") == "list_value" else [value]
    texts = [each.string_value for each in values if each.WhichOneof("kind") == "string_value"]
    return frozenset(address.strip() for text in texts for address in text.split(",") if address.strip())


def _check_damaged(damaged: bytes) -> bool:
    """The picker reads what protobuf reads, or says that it is malformed; returns whether it has read it."""
    found: tuple[object, ...] | MalformedRequest
    try:
        found = _read_by_picker(damaged)
    except MalformedRequest as error:
        found = error
    try:
        expected = _read_by_protobuf(damaged)
    except DecodeError:
        # The picker may be more lenient: it steps over what it does not need.
        return not isinstance(found, MalformedRequest)
    if isinstance(found, MalformedRequest):
        # Groups: Envoy's messages have none.
        assert "wire type 3" in str(found) or "wire type 4" in str(found)
        return False
    if found[2] == frozenset() and expected[2] is None:
        # An entry of a map without its value is none to protobuf. Here it names nobody, which is the safer reading.
        found = (*found[:2], None, *found[3:])
    assert found == expected
    return True


@settings(max_examples=150)
@given(
    part=st.sampled_from([part for part in Part if part]),
    headers=st.lists(st.tuples(_NAMES, st.binary(max_size=20)), max_size=3),
    body=st.binary(max_size=40),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    cut=st.just(0) | st.integers(0, 1 << 20),
    inserted=st.just(b"") | st.binary(max_size=6),
)
def test_a_damaged_message_is_malformed_or_read(
    part: Part,
    headers: list[tuple[str, bytes]],
    body: bytes,
    flips: list[tuple[int, int]],
    cut: int,
    inserted: bytes,
) -> None:
    whole = _whole_message(part, headers, body).SerializeToString()
    damaged = bytearray(whole)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    place = len(inserted) * 7919 % len(damaged)
    damaged[place:place] = inserted
    _check_damaged(bytes(damaged[: len(damaged) - cut % len(damaged)]))
    # Nothing damaged is remembered as what is whole.
    assert _read_by_picker(whole) == _read_by_protobuf(whole)


@pytest.mark.parametrize("part", [part for part in Part if part])
def test_every_byte_of_a_message_may_be_wrong(part: Part) -> None:
    """Also those of the metadata."""
    whole = _whole_message(part, [(":path", b"/v2"), ("a", b"b")], b"xyz").SerializeToString()
    assert _check_damaged(whole)
    read = [
        _check_damaged(whole[:place] + bytes((value,)) + whole[place + 1 :])
        for place in range(len(whole))
        for value in (0x00, 0x0A, 0x7F, 0x80, 0xFF, whole[place] ^ 0x01, whole[place] ^ 0x08)
    ]
    assert any(read)
    assert not all(read)


@given(headers=_HEADERS, cut=st.integers(1, 60), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))))
def test_damaged_messages_raise_nothing_else(
    headers: list[tuple[str, bytes]], cut: int, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(_request(Part.REQUEST_HEADERS, headers, b"", True).SerializeToString())
    for place, value in flips:
        if place < len(data):
            data[place] = value
    try:
        read_headers(Received(bytes(data[:-cut])).content)
    except MalformedRequest:
        return


def test_what_is_cut_off_is_malformed() -> None:
    whole = _request(Part.REQUEST_HEADERS, [("a", b"bcd"), (":path", b"/v2")], b"", True).SerializeToString()
    for cut in range(1, len(whole)):
        with pytest.raises(MalformedRequest):
            Received(whole[:-cut])
    content = Received(whole).content
    for cut in range(1, 20):
        with pytest.raises(MalformedRequest):
            read_headers(content[:cut])


def _parsed(framed: bytes) -> Any:
    assert framed[0] == 0
    assert int.from_bytes(framed[1:5], "big") == len(framed) - 5
    return ProcessingResponse.FromString(framed[5:])


@given(
    address=st.from_regex(r"[0-9]{1,3}\.0\.0\.1:[0-9]{1,5}", fullmatch=True),
    mutations=st.lists(st.tuples(_NAMES, _VALUES), max_size=4),
    removed=st.lists(_NAMES, max_size=3),
    body=st.none() | st.binary(max_size=400),
    part=st.sampled_from([Part.REQUEST_HEADERS, Part.REQUEST_BODY]),
)
def test_protobuf_reads_decisions(
    address: str, mutations: list[tuple[str, bytes]], removed: list[str], body: bytes | None, part: Part
) -> None:
    changes = [replies.set_header(name.encode(), value) for name, value in mutations]
    changes += [replies.remove_header(name.encode()) for name in removed]
    response = _parsed(replies.decision(part, address.encode(), changes, body))
    assert response.WhichOneof("response") == _PART_NAMES[part]
    common = getattr(response, _PART_NAMES[part]).response
    assert common.clear_route_cache
    assert common.HasField("body_mutation") is (body is not None)
    assert common.body_mutation.body == (body or b"")
    first, *others = common.header_mutation.set_headers
    assert (first.header.key, first.header.raw_value) == ("x-gateway-destination-endpoint", address.encode())
    assert {option.append_action for option in common.header_mutation.set_headers} == {2}
    assert [(each.header.key, each.header.raw_value) for each in others] == mutations
    assert list(common.header_mutation.remove_headers) == removed
    assert response.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == address


@given(
    body=st.integers(0, 200_000).map(lambda size: (bytes(range(251)) * 800)[:size]),
    ends=st.booleans(),
    part=st.sampled_from([Part.REQUEST_BODY, Part.RESPONSE_BODY]),
)
def test_bodies_are_handed_back_whole(body: bytes, ends: bool, part: Part) -> None:
    responses = [_parsed(framed) for framed in replies.handed_back(part, body, ends)]
    streamed = [getattr(each, _PART_NAMES[part]).response.body_mutation.streamed_response for each in responses]
    assert b"".join(each.body for each in streamed) == body
    assert all(len(each.body) <= 62_000 for each in streamed)
    assert [each.end_of_stream for each in streamed] == [False] * (len(streamed) - 1) + [ends]


@pytest.mark.parametrize("part", [part for part in Part if part])
def test_protobuf_reads_replies_that_change_nothing(part: Part) -> None:
    response = _parsed(replies.unchanged(part))
    assert response.WhichOneof("response") == _PART_NAMES[part]
    assert replies.changed(part, []) == replies.unchanged(part)
    changed = _parsed(replies.changed(part, [replies.set_header(b"a", b"b"), replies.remove_header(b"c")]))
    content = getattr(changed, _PART_NAMES[part])
    mutation = content.header_mutation if "TRAILERS" in part.name else content.response.header_mutation
    expected = HeaderMutation(remove_headers=["c"])
    expected.set_headers.add(append_action=2).header.MergeFromString(b"\x0a\x01a\x1a\x01b")
    assert mutation == expected


@given(
    status=st.sampled_from([400, 404, 429, 503, 504]),
    headers=_HEADERS,
    body=_VALUES,
    grpc_status=st.none() | st.integers(0, 16),
)
def test_protobuf_reads_refusals(
    status: int, headers: list[tuple[str, bytes]], body: bytes, grpc_status: int | None
) -> None:
    pairs = [(name.encode(), value) for name, value in headers]
    response = _parsed(replies.immediate(status, pairs, body, grpc_status, b"reason")).immediate_response
    assert (response.status.code, response.body, response.details) == (status, body, "reason")
    assert response.HasField("grpc_status") is (grpc_status is not None)
    assert response.grpc_status.status == (grpc_status or 0)
    assert [(each.header.key.encode(), each.header.raw_value) for each in response.headers.set_headers] == pairs
