"""ModelInfer's decoder and encoder: the memoised way must say exactly what upb says, for good and for bad messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.grpc import decoder as decoder_module
from isochrone.protocol.grpc.answers import id_field, plain_answer, render
from isochrone.protocol.grpc.decoder import InferDecoder, read_fields
from isochrone.protocol.grpc.infer import GrpcInferRequest
from isochrone.protocol.grpc.plan import Answer, plan_of
from isochrone.protocol.messages import InferRequest


class NoMemory:
    """The one thing a decoder asks of a service."""

    shared_memory = None


class Served:
    model_name = "m"
    model_version = "3"
    batched = True
    fixed_size = True


NAMES = st.text(alphabet="abcXYZ_0", min_size=1, max_size=6)
NUMBERS = {"FP32": np.float32, "INT64": np.int64, "UINT8": np.uint8, "FP16": np.float16}


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = service_pb2.ModelInferRequest(model_name=draw(NAMES), model_version=draw(st.sampled_from(["", "1"])))
    message.id = draw(st.sampled_from(["", "", "request-7", "request-8", "a", "é" * 70]))
    if draw(st.booleans()):
        message.parameters["priority"].uint64_param = draw(st.integers(0, 3))
    if draw(st.booleans()):
        message.parameters["sequence_id"].int64_param = draw(st.integers(1, 300))
        message.parameters["sequence_start"].bool_param = draw(st.booleans())
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        shape = draw(st.lists(st.integers(0, 40), min_size=0, max_size=3))
        datatype = draw(st.sampled_from(sorted(NUMBERS)))
        count = int(np.prod(shape)) if shape else 1
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        data = draw(st.binary(min_size=1, max_size=8)) * count * 8
        message.raw_input_contents.append(data[: count * np.dtype(NUMBERS[datatype]).itemsize])
    if draw(st.booleans()):
        message.outputs.add(name="out")
    return message


def decoded(decoder: InferDecoder, body: Any, start: int = 0) -> tuple[Any, Any]:
    plan, request_id, inputs = decoder.decode(body, start)
    shown = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in inputs.items()}
    sequence = (plan.sequence_id, plan.sequence_start, plan.sequence_end, plan.parameters)
    head = (plan.model_name, plan.model_version, request_id, plan.inputs, plan.outputs, plan.priority, sequence)
    return head, shown


#: Fields that a gateway appends: the version that it pins, and the model of a shadow copy.
APPENDED = st.sampled_from([b"", b"\x12\x013", b"\x12\x0212", b"\x0a\x05other\x12\x013"])


@given(
    st.lists(st.tuples(messages(), APPENDED, st.sampled_from([bytes, memoryview])), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 5])), min_size=1, max_size=12),
)
def test_any_order_of_messages_decodes_as_upb_decodes_each(
    pool: list[tuple[Any, bytes, Any]], order: list[tuple[int, int]]
) -> None:
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for index, start in order:
        written, appended, kind = pool[index % len(pool)]
        body = written.SerializeToString() + appended
        message = service_pb2.ModelInferRequest.FromString(body)
        head, inputs = decoded(decoder, kind(bytes(start) + body), start)
        assert head[:3] == (message.model_name, message.model_version, message.id)
        assert head[5] == (message.parameters["priority"].uint64_param if "priority" in message.parameters else 0)
        if "sequence_id" in message.parameters:
            assert head[6][:2] == (
                message.parameters["sequence_id"].int64_param,
                message.parameters["sequence_start"].bool_param,
            )
        for item, raw in zip(message.inputs, message.raw_input_contents, strict=True):
            dtype = np.dtype(NUMBERS[item.datatype]).newbyteorder("<")
            assert inputs[item.name] == (dtype.str, tuple(item.shape), raw)


@given(messages(), st.data())
def test_a_damaged_tail_behind_a_known_head_gets_the_verdict_of_a_fresh_decoder(
    message: Any, data: st.DataObject
) -> None:
    body = message.SerializeToString()
    warm = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for _ in range(2):
        warm.decode(body, 0)
    index = data.draw(st.integers(0, len(body) - 1))
    damaged = data.draw(
        st.sampled_from(
            [body[:index], body + body[index:], body[:index] + bytes([body[index] ^ 0x5A]) + body[index + 1 :]]
        )
    )
    outcomes = []
    for decoder in (warm, InferDecoder(NoMemory())):  # type: ignore[arg-type]
        try:
            outcomes.append(decoded(decoder, damaged))
        except IsochroneError as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_anything_else(body: bytes) -> None:
    try:
        InferDecoder(NoMemory()).decode(body, 0)  # type: ignore[arg-type]
    except IsochroneError:
        pass


def test_fields_behind_the_raw_contents_belong_to_the_head() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="UINT8", shape=[2])
    message.raw_input_contents.append(b"ab")
    late = message.SerializeToString() + service_pb2.ModelInferRequest(id="late").SerializeToString()
    assert [late[each.content : each.end] for each in read_fields(late, 0) if each.tag == 0x3A] == [b"ab"]
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for _ in range(2):
        _, request_id, inputs = decoder.decode(late, 0)
        assert request_id == "late"
        assert inputs["x"].tobytes() == b"ab"


class Parses:
    """Counts the messages that are parsed anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._parse = decoder_module.parse
        monkeypatch.setattr(decoder_module, "parse", self)

    def __call__(self, kind: Any, payload: bytes) -> Any:
        self.count += 1
        return self._parse(kind, payload)


def ordinary(model: str, request_id: str = "", value: int = 0, **parameters: int) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for key, number in parameters.items():
        message.parameters[key].int64_param = number
    message.inputs.add(name="x", datatype="INT64", shape=[1])
    message.raw_input_contents.append(value.to_bytes(8, "little"))
    return message.SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.interpreted
def test_other_ids_other_data_and_many_models_are_parsed_once_per_form(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = Parses(monkeypatch)
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for number in range(1000):
        body = ordinary(f"model-{number % 50:02}", f"request-{number:06}", number) + b"\x12\x013"
        plan, request_id, inputs = decoder.decode(body, 0)
        assert (plan.model_name, plan.model_version) == (f"model-{number % 50:02}", "3")
        assert (request_id, int(inputs["x"][0])) == (f"request-{number:06}", number)
    assert parses.count == 2 * 50, "what comes once is not remembered"


@pytest.mark.interpreted
def test_of_a_known_form_only_new_parameters_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = Parses(monkeypatch)
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for number in range(400):
        sequence = 1 + number % 20
        plan, _, _ = decoder.decode(ordinary("m", value=number, sequence_id=sequence), 0)
        assert plan.sequence_id == sequence
    assert parses.count == 2 + 2 * 19


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "_MAX_REMEMBERED", 10)
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for number in range(200):
        decoder.decode(ordinary(f"m{number // 2}", sequence_id=number // 2 + 1), 0)
        forms = [form for by_size in decoder._forms.values() for forms in by_size.values() for form in forms]
        assert sum(len(form.plans) for form in forms) <= 10


def test_messages_that_differ_each_time_neither_slow_others_down_nor_evict_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    ordinary_one = ordinary("m")
    for _ in range(2):
        decoder.decode(ordinary_one, 0)
    for number in range(10_000):
        unique = b"\x12\x0a%010d" % number if number % 2 else b"\x42\x0a%010d" % number
        decoder.decode(ordinary("m") + unique, 0)
    for number in range(8):  # forms that do repeat
        for _ in range(2):
            decoder.decode(ordinary("m") + b"\x12\x0a%010d" % number, 0)
    parses = Parses(monkeypatch)
    decoder.decode(ordinary_one, 0)
    assert parses.count == 0
    assert max(len(alike) for by_size in decoder._forms.values() for alike in by_size.values()) <= 4


def test_bytes_in_the_place_of_parameters_may_be_another_field() -> None:
    """The parameters of the second message are as long, and hold an output beside a parameter."""
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    body = ordinary("m", priority=3)
    for _ in range(2):
        plan, _, _ = decoder.decode(body, 0)
    section = next(each for each in read_fields(body, 0) if each.tag == 0x22)
    output = b"\x32\x03\x0a\x01y"
    padding = b"\x42" + bytes([section.end - section.start - len(output) - 2])
    other = output + padding + bytes(section.end - section.start - len(output) - 2)
    plan, _, _ = decoder.decode(body[: section.start] + other + body[section.end :], 0)
    assert (plan.outputs, plan.priority) == (("y",), 0)


def test_raw_and_typed_contents_do_not_mix() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    message.raw_input_contents.append(b"\0\0\0\0")
    with pytest.raises(InvalidArgument, match="contents field must not be specified when using raw_input_contents"):
        InferDecoder(NoMemory()).decode(message.SerializeToString(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_count", [0, 2])
def test_the_number_of_raw_contents_must_match(given_count: int) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT32", shape=[1])
    message.raw_input_contents.extend([b"\0\0\0\0"] * given_count)
    with pytest.raises(InvalidArgument, match="raw_input_contents"):
        InferDecoder(NoMemory()).decode(message.SerializeToString(), 0)  # type: ignore[arg-type]


def _plan(**fields: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="m", **fields)
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    return plan_of(message)


def _request(plan: Any, request_id: str = "") -> InferRequest:
    request = InferRequest(plan, request_id, {}, 0)
    request.served_by = Served()
    return request


@given(st.permutations(["a", "b", "c"]), st.integers(0, 4), st.sampled_from(["", "id-1"]))
def test_answers_parse_back_to_the_outputs_in_whatever_order_a_model_gives_them(
    names: list[str], rows: int, request_id: str
) -> None:
    plan = _plan()
    for order in (names, names[::-1]):
        outputs = {name: np.full((rows, 2), index, np.float32) for index, name in enumerate(order)}
        request = _request(plan, request_id)
        parts, size = render(request, plan, outputs, {"n": 1}, NoMemory())  # type: ignore[arg-type]
        rendered = b"".join(bytes(part) for part in parts)
        assert len(rendered) == size
        answer: Answer = plain_answer(request, plan, outputs)
        framed = GrpcInferRequest._join(
            answer.framed_with(id_field(request_id)) if request_id else answer.framed, answer, outputs
        )
        assert int.from_bytes(framed[1:5], "big") == len(framed) - 5
        for body in (rendered, framed[5:]):
            message = service_pb2.ModelInferResponse.FromString(body)
            assert (message.model_name, message.model_version, message.id) == ("m", "3", request_id)
            assert [output.name for output in message.outputs] == order
            for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
                assert tuple(output.shape) == (rows, 2)
                assert raw == outputs[output.name].tobytes()
