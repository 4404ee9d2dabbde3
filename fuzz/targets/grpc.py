"""gRPC: splitting into messages, the partial readers of ModelInferRequest, and Envoy's external processing.

A gateway reads the few fields that it routes, counts and admits by; the worker reads all of them. Where protobuf
accepts a message, both must name the model that protobuf names: otherwise a caller passes a rule for one model and runs
another.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from fuzz.target import Target, cuts, outcome, parts
from isochrone.gateway.picker.received import Part, Received, read_body, read_headers, read_subset, read_trailers
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.protocol.grpc.routing_fields import (
    Opening,
    layout_of,
    name_field,
    read_opening,
    request_id,
    version_field,
)

_LIMIT = 1000


class _Stream:
    """As much of a stream as the reader uses."""

    def __init__(self) -> None:
        self.reserved = 0
        self.connection: Any = self
        self.listener: Any = self

    def reserve(self, size: int) -> bool:
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        self.reserved -= size

    def no_memory(self) -> str:
        return "no memory"


def messages(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    assert _split(data, []) == _split(data, cuts(data, seed))


def _split(data: bytes, places: list[int]) -> list[tuple[int, bytes]]:
    stream, start = _Stream(), 0
    reader = MessageReader(_LIMIT, stream)
    found: list[tuple[int, bytes]] = []
    for place in [*places, len(data)]:
        reader.feed(data[start:place])
        start = place
        while True:
            ok, message = outcome(reader.take)
            if not ok or message is None:
                break
            flag, payload = message
            found.append((flag, bytes(payload)))
            reader.give_back(len(payload))
        if not ok:
            break
    assert stream.reserved <= len(data) + _LIMIT
    position = 0
    for flag, payload in found:
        assert data[position] == flag
        assert data[position + 5 : position + 5 + len(payload)] == payload
        position += 5 + len(payload)
    return found


def _parsed(message: bytes) -> Any:
    try:
        return service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return None


def opening(data: bytes) -> None:
    """A gateway's reading beside protobuf's."""
    ok, found = outcome(read_opening, data, 0)
    message = _parsed(data)
    if message is not None and ok:
        _compare(found, message)
        stamped = _parsed(data + version_field("7") + name_field("other"))
        assert (stamped.model_name, stamped.model_version) == ("other", "7")
    request_id(data)
    layout = layout_of(data, _behind_name(data)) if data[:1] == b"\n" and len(data) > 2 and data[1] < 128 else None
    if ok and layout is not None:
        # Other contents with the same tags and lengths: the gateway takes what it read before.
        other = bytearray(b"\x01" * len(data))
        other[: _behind_name(data)] = data[: _behind_name(data)]
        for start, end, expected in layout:
            other[start:end] = expected
        again = read_opening(bytes(other), 0)
        assert again == found, "two messages of one layout are not routed alike"


def _behind_name(data: bytes) -> int:
    return 2 + data[1]


def _compare(found: Any, message: Any) -> None:
    opened: Opening = found
    assert opened.model == message.model_name.encode(), "the gateway routes another model"
    assert opened.version == message.model_version.encode(), "the gateway routes another version"
    given = message.parameters
    if "sequence_id" in given:
        choice = given["sequence_id"].WhichOneof("parameter_choice")
        if choice == "string_param":
            assert opened.sequence == given["sequence_id"].string_param.encode(), "another sequence"
        elif choice == "int64_param" and given["sequence_id"].int64_param > 0:
            assert opened.sequence == b"%d" % given["sequence_id"].int64_param, "another sequence"
    if "priority" in given and given["priority"].WhichOneof("parameter_choice") == "uint64_param":
        assert opened.priority == given["priority"].uint64_param, "another priority"
    if "timeout" in given and given["timeout"].WhichOneof("parameter_choice") == "int64_param":
        timeout = given["timeout"].int64_param
        assert timeout < 0 or opened.timeout_ns == timeout * 1000, "another timeout"


class _NoMemory:
    """The one thing a decoder asks of a service."""

    shared_memory = None


def decoder(data: bytes) -> None:
    """A worker's decoder, which remembers forms of messages, beside one that remembers nothing, and beside protobuf."""
    remembering = InferDecoder(_NoMemory())
    given = parts(data)[:4]
    for message in given * 3:
        found = outcome(_decoded, remembering, message)
        assert found == outcome(_decoded, InferDecoder(_NoMemory()), message), "what was remembered says something else"
        if found[0]:
            parsed = _parsed(message)
            assert parsed is not None, "it accepts what protobuf rejects"
            name, version, identity, *_ = found[1]
            assert (name, version, identity) == (parsed.model_name, parsed.model_version, parsed.id)


def _decoded(decoder_: InferDecoder, message: bytes) -> tuple[Any, ...]:
    plan, identity, inputs = decoder_.decode(message, 0)
    shown = {name: (array.dtype.str, array.shape, repr(array.tolist())) for name, array in inputs.items()}
    sequence = (plan.sequence_id, plan.sequence_start, plan.sequence_end, repr(plan.parameters))
    return plan.model_name, plan.model_version, identity, plan.inputs, plan.outputs, plan.priority, sequence, shown


def external_processing(data: bytes) -> None:
    ok, received = outcome(Received, data)
    for read in (read_headers, read_trailers, read_body, read_subset):
        for content in (data, received.content if ok else b"", received.metadata if ok else b""):
            # What was remembered of the first reading says the same.
            assert outcome(read, content) == outcome(read, content)
    if ok:
        assert received.part in Part


def _request(**options: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="detector", id="request-7", **options)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    message.raw_input_contents.append(b"\0\0\x80?" * 2)
    return message


def _with_parameters() -> Any:
    message = _request(model_version="3")
    message.parameters["sequence_id"].int64_param = 42
    message.parameters["timeout"].int64_param = 5000
    message.parameters["priority"].uint64_param = 1
    message.parameters["time_to_first_token_ms"].double_param = 2.5
    return message


def _named_sequence() -> bytes:
    message = _request()
    message.parameters["sequence_id"].string_param = "camera-1"
    message.parameters["sequence_start"].bool_param = True
    return bytes(message.SerializeToString())


def _typed() -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="a", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"x", b"yz"])
    message.outputs.add(name="y").parameters["classification"].int64_param = 2
    return bytes(message.SerializeToString())


_PLAIN = bytes(_request().SerializeToString())
_FULL = bytes(_with_parameters().SerializeToString())
_HEADER = b"\x0a\x07:method\x1a\x04POST"
_HEADERS = b"\x0a" + bytes((len(_HEADER) + 2,)) + b"\x0a" + bytes((len(_HEADER),)) + _HEADER + b"\x18\x01"
_SUBSET_VALUE = b"\x1a\x0e10.0.0.1:8001,b"
_SUBSET_FIELD = b"\x0a\x25x-gateway-destination-endpoint-subset\x12" + bytes((len(_SUBSET_VALUE),)) + _SUBSET_VALUE
_SUBSET_STRUCT = b"\x0a" + bytes((len(_SUBSET_FIELD),)) + _SUBSET_FIELD
_SUBSET_ENTRY = b"\x0a\x14envoy.lb.subset_hint\x12" + bytes((len(_SUBSET_STRUCT),)) + _SUBSET_STRUCT
_SUBSET = b"\x0a" + bytes((len(_SUBSET_ENTRY),)) + _SUBSET_ENTRY

TARGETS = (
    Target(
        "grpc_messages",
        ("isochrone.protocol.grpc.message_reader",),
        "the same messages however the bytes are cut; memory at most that of the input and one message; only our "
        "errors",
        messages,
        (
            b"\3\0\0\0\0\3abc\1\0\0\0\0\0\0\0\0\1x",
            b"\0\0\0\0\x40\0too large",
            b"\7\0\0\0\2\xbc" + bytes(700) + b"\0\0\0\0\1x",
        ),
    ),
    Target(
        "grpc_routing_fields",
        ("isochrone.protocol.grpc.routing_fields",),
        "where protobuf accepts a message, the same model, version, sequence, priority and timeout; messages of one "
        "layout are routed alike; a version appended holds; only our errors",
        opening,
        (
            _PLAIN,
            _FULL,
            _named_sequence(),
            _typed(),
            _FULL + version_field("9") + name_field("late"),
            b"\x0a\x01m\x08\x07\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x82\x06\x01x",
        ),
    ),
    Target(
        "grpc_decoder",
        ("isochrone.protocol.grpc.decoder", "isochrone.protocol.grpc.plan"),
        "the same plan, id and tensors with and without remembered forms; model, version and id are those of protobuf; "
        "nothing accepted that protobuf rejects; only our errors",
        decoder,
        (
            _PLAIN,
            _PLAIN + b"\xff\xfe" + _PLAIN.replace(b"request-7", b"request-8") + b"\xff\xfe" + _FULL,
            _typed(),
            _named_sequence() + b"\xff\xfe" + _FULL,
            _PLAIN + version_field("9"),
        ),
    ),
    Target(
        "external_processing",
        ("isochrone.gateway.picker.received",),
        "the same reading when it comes again; only our errors",
        external_processing,
        (
            b"\x12" + bytes((len(_HEADERS),)) + _HEADERS,
            b"\x22\x08\x0a\x04body\x10\x01\x50\x01\x5a\x04\x08\x01\x10\x02",
            b"\x42" + bytes((len(_SUBSET),)) + _SUBSET + b"\x12\0",
            _SUBSET,
        ),
    ),
)
